#!/bin/bash
# plimsoll-train as people run it: within a budget, stopped and resumed, and told nonsense.
#   program_test.sh PROGRAM FORKS
set -euo pipefail
program=$1 forks=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
source "$(dirname "$0")/forks.sh"
tiny=(gpt --width 32 --layers 2 --heads 2 --context 32 --batch 8)
small=("${tiny[@]}" --workers 1)

fail() {
  echo "program_test: $1"
  exit 1
}
losses() { grep -o '"loss":[^,]*' "$1"; }

"$program" "${small[@]}" --steps 6 --log "$folder/whole" 2>/dev/null
"$program" "${small[@]}" --steps 3 --log "$folder/parts" --save "$folder/state" 2>/dev/null
"$program" "${small[@]}" --steps 6 --log "$folder/parts" --save "$folder/state" --resume 2>/dev/null
[[ $(losses "$folder/whole") == $(losses "$folder/parts") ]] || fail "a resumed run goes on otherwise"

run "${small[@]}" --steps 3 --budget 2MiB --log "$folder/tight" 2>/dev/null
awk -F'"peak_reserved":' '{split($2, a, ","); if (a[1] > 2097152) exit 1}' "$folder/tight" ||
  fail "more is held than the budget"
# What threads load ahead is in no budget: however many there are, the levers and the figures are the same.
without_times() { sed 's/"ms":[^,]*,//' "$1"; }
for workers in 0 4; do
  run "${tiny[@]}" --steps 3 --budget 2MiB --workers $workers --log "$folder/tight.$workers" 2>/dev/null
  [[ $(without_times "$folder/tight.$workers") == $(without_times "$folder/tight") ]] || fail "$workers workers: other levers"
done

for model in unet classifier mlp; do
  run "$model" --width 8 --image 32 --steps 2 --batch 4 --log "$folder/$model" 2>/dev/null
  [[ $(wc -l <"$folder/$model") == 2 ]] || fail "$model: not a line a step"
done

# One line and the exit code: 1 if it does not fit, 2 for what cannot be used.
complains() {
  local want=$1 code=0
  shift
  run "$@" >"$folder/out" 2>&1 || code=$?
  [[ $code == "$want" ]] || fail "'$*' ends with $code, not $want: $(cat "$folder/out")"
  [[ $(wc -l <"$folder/out") == 1 ]] || fail "'$*' does not say it in one line: $(cat "$folder/out")"
}
complains 1 "${small[@]}" --steps 1 --budget 100KiB
complains 2 gpt --budget banana
complains 2 gpt --data "$folder/nothing"
complains 2 unet --checkpoint sometimes
complains 2 gpt --resume
complains 2 "${small[@]}" --steps 1 --save "$folder/state"
grep -q -- '--resume goes on from it' "$folder/out" || fail "an earlier state is not named: $(cat "$folder/out")"
echo garbage >"$folder/state"
complains 2 "${small[@]}" --steps 9 --save "$folder/state" --resume
printf 'plimsoll train state 1\nanything' >"$folder/state"
complains 2 "${small[@]}" --steps 9 --save "$folder/state" --resume
grep -q 'no longer read' "$folder/out" || fail "the former format is not named: $(cat "$folder/out")"

# Another optimizer's state is refused and stays as it is; no name reaches the terminal as it is.
escape=$folder/$'\033[2J'
run "${small[@]}" --steps 2 --save "$escape" 2>/dev/null
cp "$escape" "$folder/before"
complains 2 "${small[@]}" --steps 9 --optimizer sgd --save "$escape" --resume --allow-changes
cmp -s "$escape" "$folder/before" || fail "a state that was refused has changed"
grep -q 'the optimizer AdamW, and here is SGD' "$folder/out" || fail "not named: $(cat "$folder/out")"
! grep -q $'\033' "$folder/out" || fail "an escape sequence is printed"
complains 2 gpt --width 64 --layers 2 --heads 2 --context 32 --batch 8 --steps 9 --save "$escape" --resume
grep -q "saved with --width '32', and now it is '64'" "$folder/out" || fail "not named: $(cat "$folder/out")"

# What cannot work in the end is said at the beginning.
complains 2 "${small[@]}" --steps 1 --save "$folder/nowhere/state"
complains 2 "${small[@]}" --steps 1 --log "$folder/nowhere/log"
complains 2 "${small[@]}" --steps 1 --save "$folder/never" --save-every -1
grep -q -- "--save-every: '-1' is not a whole number from 1 to" "$folder/out" || fail "not named: $(cat "$folder/out")"
for flag in --save --log --weights --from --snapshot --data; do
  complains 2 "${small[@]}" --steps 1 "$flag" "$folder"
  grep -q -- "$flag: $folder is a folder, and should be a file" "$folder/out" || fail "$flag: $(cat "$folder/out")"
done
complains 2 unet --steps 1 --data "$folder/whole"
grep -q 'should be a folder of images' "$folder/out" || fail "not named: $(cat "$folder/out")"
complains 2 mlp --steps 1 --data "$folder/whole"
complains 2 "${small[@]}" --steps 1 --from "$folder/nothing"
[[ ! -e $folder/never ]] || fail "something was trained before the flags were read"

# One mistyped name costs nothing: no output is an input or another output, and what is there is of its kind.
for _ in {1..40}; do echo 'a text that is dear to somebody'; done >"$folder/dear"
cp "$folder/dear" "$folder/dear.before"
same() { complains 2 "${small[@]}" --steps 1 "$@"; grep -q 'name the same file' "$folder/out" || fail "$*: $(cat "$folder/out")"; }
same --data "$folder/dear" --weights "$folder/dear"
same --data "$folder/dear" --log "$folder/./dear"
same --save "$folder/new" --weights "$folder/new"
same --save "$folder/new" --snapshot "$folder/new"
ln -s dear "$folder/link"
same --data "$folder/dear" --weights "$folder/link"
for flag in --log --weights --snapshot; do
  complains 2 "${small[@]}" --steps 1 "$flag" "$folder/dear"
  grep -q 'is there already and is no ' "$folder/out" || fail "$flag: $(cat "$folder/out")"
done
cmp -s "$folder/dear" "$folder/dear.before" || fail "a file was written over"

# Nobody is waited for, and no name is found too long after the last step.
mkfifo "$folder/pipe"
for flag in --data --from --plan --log --weights --save; do
  complains 2 "${small[@]}" --steps 1 "$flag" "$folder/pipe"
  grep -q -- "$flag: .* is a pipe\|--save: .* is there already" "$folder/out" || fail "$flag: $(cat "$folder/out")"
done
for length in 245 300; do
  complains 2 "${small[@]}" --steps 1 --save "$folder/$(head -c $length /dev/zero | tr '\0' x)"
  grep -q -- '--save: .*File name too long' "$folder/out" || fail "a long name: $(cat "$folder/out")"
done

# What the model would say in its own words is said with the flag's name.
named() { complains 2 "${@:2}" --steps 1; grep -q -- "^plimsoll-train: $1" "$folder/out" || fail "${*:2}: $(cat "$folder/out")"; }
named '--width: 1 cannot be split' gpt --width 1 --heads 2
named '--width: the mlp' mlp --width 1
named '--image: the unet' unet --image 20
named '--vocabulary: .*dear has the token' gpt --context 32 --vocabulary 10 --data "$folder/dear"
named "--seed: '18446744073709551616' is not" mlp --seed 18446744073709551616
named "--dropout: '2' is not" gpt --dropout 2
named "--learning-rate: 'nan' is not" mlp --learning-rate nan
named 'with classifier .*--width 8' classifier --width 8 --image 1 --batch 1 --normalization batch
# And flags that change nothing are told.
run mlp --layers 100000 --separable --allow-changes --steps 1 2>"$folder/out"
for flag in --layers --separable --allow-changes; do
  grep -q -- "^$flag has no effect" "$folder/out" || fail "$flag: $(cat "$folder/out")"
done

# Changed flags are refused, or allowed and told.
run "${small[@]}" --steps 2 --save "$folder/changed" 2>/dev/null
complains 2 "${small[@]}" --learning-rate 0.1 --steps 4 --save "$folder/changed" --resume
run "${small[@]}" --learning-rate 0.1 --steps 4 --save "$folder/changed" --resume --allow-changes 2>"$folder/out"
grep -q "learning-rate was '0.001' and is now '0.1'" "$folder/out" || fail "a change is not told: $(cat "$folder/out")"

# Weights go out and in as safetensors.
run "${small[@]}" --steps 2 --weights "$folder/w.safetensors" 2>/dev/null
run "${small[@]}" --steps 1 --from "$folder/w.safetensors" --log "$folder/from.log" 2>/dev/null
[[ $(losses "$folder/from.log") != $(losses "$folder/whole" | head -1) ]] || fail "the weights were not taken"
complains 2 "${small[@]}" --steps 1 --from "$folder/state"

# Adapters alone are trained; the weights that are written know nothing of them. Checkpoints change nothing.
lora=("${small[@]}" --lora 4 --learning-rate 0.01)
run "${lora[@]}" --from "$folder/w.safetensors" --steps 4 --weights "$folder/tuned.safetensors" \
  --log "$folder/lora.log" 2>"$folder/out"
grep -q 'layers have adapters of rank 4: .* parameters are trained' "$folder/out" ||
  fail "adapters are not told: $(cat "$folder/out")"
run "${lora[@]}" --from "$folder/w.safetensors" --steps 4 --checkpoint all --log "$folder/lora2.log" 2>/dev/null
[[ $(losses "$folder/lora.log") == $(losses "$folder/lora2.log") ]] || fail "adapters learn otherwise with checkpoints"
run "${lora[@]}" --from "$folder/w.safetensors" --steps 2 --save "$folder/lora" --log "$folder/lora3.log" 2>/dev/null
run "${lora[@]}" --steps 4 --save "$folder/lora" --resume --log "$folder/lora3.log" 2>/dev/null
[[ $(losses "$folder/lora.log") == $(losses "$folder/lora3.log") ]] || fail "adapters go on otherwise"
[[ $(stat -c %s "$folder/tuned.safetensors") == $(stat -c %s "$folder/w.safetensors") ]] || fail "adapters are in the weights"
! cmp -s "$folder/tuned.safetensors" "$folder/w.safetensors" || fail "nothing was learnt"
run "${small[@]}" --steps 1 --from "$folder/tuned.safetensors" 2>/dev/null
complains 2 "${small[@]}" --learning-rate 0.01 --steps 6 --save "$folder/lora" --resume
grep -q "saved with --lora '4', and now it is '0'" "$folder/out" || fail "not named: $(cat "$folder/out")"
complains 2 gpt --lora 0

# A batch by its tokens or pixels: 270 tokens are eight samples of 32.
by_tokens=(gpt --width 32 --layers 2 --heads 2 --context 32 --workers 1 --batch-tokens 270)
run "${by_tokens[@]}" --steps 6 --log "$folder/tokens.log" 2>/dev/null
[[ $(losses "$folder/tokens.log") == $(losses "$folder/whole") ]] || fail "270 tokens are not eight samples"
run unet --width 8 --image 32 --steps 1 --batch-pixels 4200 --log "$folder/pixels.log" 2>/dev/null
[[ $(losses "$folder/pixels.log") == $(losses "$folder/unet" | head -1) ]] || fail "4200 pixels are not four images"
complains 2 "${by_tokens[@]}" --batch 8
complains 2 gpt --context 32 --batch-tokens 31
complains 2 unet --batch-tokens 100
complains 2 gpt --batch-pixels 100

# Broken images stop it, or are left out and counted.
mkdir -p "$folder/photos/a" "$folder/photos/b"
for i in 1 2 3 4; do
  { printf 'P6\n4 4\n255\n'; head -c 48 /dev/zero; } >"$folder/photos/a/$i.ppm"
  { printf 'P6\n4 4\n255\n'; head -c 48 /dev/zero | tr '\0' '\377'; } >"$folder/photos/b/$i.ppm"
done
printf 'P6\n4 4\n255\nshort' >"$folder/photos/b/5.ppm"
photos=(classifier --width 8 --image 16 --batch 3 --data "$folder/photos" --steps 6)
code=0
run "${photos[@]}" 2>"$folder/out" || code=$?
[[ $code == 2 ]] || fail "a broken image ends with $code"
mkdir "$folder/photos/c"
cp "$folder/photos/a/1.ppm" "$folder/photos/c"
named '--classes: .*photos has folders of 3 classes, and the classifier tells 2 apart' "${photos[@]:0:5}" --classes 2 --data "$folder/photos"
rm -r "$folder/photos/c"
run "${photos[@]}" --skip-broken 2>"$folder/out" || fail "a broken image is not left out: $(cat "$folder/out")"
grep -q '^1 broken sample was left out; the first: .*b/5.ppm' "$folder/out" || fail "not told: $(cat "$folder/out")"

# Interrupted, it finishes its step, saves, and goes on bit for bit.
"$program" "${small[@]}" --steps 100000 --save "$folder/stopped" --log "$folder/stopped.log" 2>"$folder/out" &
process=$!
until [[ -s $folder/stopped.log ]]; do sleep 0.05; done
kill -INT $process
code=0
wait $process || code=$?
[[ $code == 130 ]] || fail "interrupted it ends with $code"
grep -q 'stopped after step .*; saved, --resume goes on' "$folder/out" || fail "it does not say so: $(cat "$folder/out")"
done_steps=$(wc -l <"$folder/stopped.log")
run "${small[@]}" --steps $((done_steps + 2)) --save "$folder/stopped" --resume --log "$folder/stopped.log" 2>/dev/null
run "${small[@]}" --steps $((done_steps + 2)) --log "$folder/straight.log" 2>/dev/null
[[ $(losses "$folder/stopped.log") == $(losses "$folder/straight.log") ]] || fail "an interrupted run goes on otherwise"
echo "program_test: as it should be"
