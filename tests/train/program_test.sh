#!/bin/bash
# plimsoll-train as people run it: within a budget, stopped and resumed, and told nonsense.
#   program_test.sh PROGRAM
set -euo pipefail
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
small=(gpt --width 32 --layers 2 --heads 2 --context 32 --batch 8 --workers 1)

fail() {
  echo "program_test: $1"
  exit 1
}
losses() { grep -o '"loss":[^,]*' "$1"; }

"$program" "${small[@]}" --steps 6 --log "$folder/whole" 2>/dev/null
"$program" "${small[@]}" --steps 3 --log "$folder/parts" --save "$folder/state" 2>/dev/null
"$program" "${small[@]}" --steps 6 --log "$folder/parts" --save "$folder/state" --resume 2>/dev/null
[[ $(losses "$folder/whole") == $(losses "$folder/parts") ]] || fail "a resumed run goes on otherwise"

"$program" "${small[@]}" --steps 3 --budget 2MiB --log "$folder/tight" 2>/dev/null
awk -F'"peak_reserved":' '{split($2, a, ","); if (a[1] > 2097152) exit 1}' "$folder/tight" ||
  fail "more is held than the budget"

for model in unet classifier mlp; do
  "$program" "$model" --width 8 --image 32 --steps 2 --batch 4 --log "$folder/$model" 2>/dev/null
  [[ $(wc -l <"$folder/$model") == 2 ]] || fail "$model: not a line a step"
done

# One line and the exit code: 1 if it does not fit, 2 for what cannot be used.
complains() {
  local want=$1 code=0
  shift
  "$program" "$@" >"$folder/out" 2>&1 || code=$?
  [[ $code == "$want" ]] || fail "'$*' ends with $code, not $want: $(cat "$folder/out")"
  [[ $(wc -l <"$folder/out") == 1 ]] || fail "'$*' does not say it in one line: $(cat "$folder/out")"
}
complains 1 "${small[@]}" --steps 1 --budget 100KiB
complains 2 gpt --budget banana
complains 2 gpt --data "$folder/nothing"
complains 2 unet --checkpoint sometimes
complains 2 gpt --resume
echo garbage >"$folder/state"
complains 2 "${small[@]}" --steps 9 --save "$folder/state" --resume
printf 'plimsoll train state 1\nanything' >"$folder/state"
complains 2 "${small[@]}" --steps 9 --save "$folder/state" --resume
grep -q 'no longer read' "$folder/out" || fail "the former format is not named: $(cat "$folder/out")"

# Another optimizer's state is refused and stays as it is; no name reaches the terminal as it is.
escape=$folder/$'\033[2J'
"$program" "${small[@]}" --steps 2 --save "$escape" 2>/dev/null
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

# Changed flags are refused, or allowed and told.
"$program" "${small[@]}" --steps 2 --save "$folder/changed" 2>/dev/null
complains 2 "${small[@]}" --learning-rate 0.1 --steps 4 --save "$folder/changed" --resume
"$program" "${small[@]}" --learning-rate 0.1 --steps 4 --save "$folder/changed" --resume --allow-changes 2>"$folder/out"
grep -q "learning-rate was '0.001' and is now '0.1'" "$folder/out" || fail "a change is not told: $(cat "$folder/out")"

# Weights go out and in as safetensors.
"$program" "${small[@]}" --steps 2 --weights "$folder/w.safetensors" 2>/dev/null
"$program" "${small[@]}" --steps 1 --from "$folder/w.safetensors" --log "$folder/from.log" 2>/dev/null
[[ $(losses "$folder/from.log") != $(losses "$folder/whole" | head -1) ]] || fail "the weights were not taken"
complains 2 "${small[@]}" --steps 1 --from "$folder/state"

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
"$program" "${small[@]}" --steps $((done_steps + 2)) --save "$folder/stopped" --resume --log "$folder/stopped.log" 2>/dev/null
"$program" "${small[@]}" --steps $((done_steps + 2)) --log "$folder/straight.log" 2>/dev/null
[[ $(losses "$folder/stopped.log") == $(losses "$folder/straight.log") ]] || fail "an interrupted run goes on otherwise"
echo "program_test: as it should be"
