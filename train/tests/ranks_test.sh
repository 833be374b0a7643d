#!/bin/bash
# plimsoll-train --ranks: the losses of one process, stopped and resumed with another number of ranks, and what is said of a
# rank that is killed: ranks_test.sh PROGRAM FORKS
set -euo pipefail
program=$1 forks=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
source "$(dirname "$0")/forks.sh"
fail() { echo "ranks_test: $*"; exit 1; }
# begun LOG PROCESS OUT: it has made a step.
begun() { until [[ -s $1 ]]; do kill -0 "$2" 2>/dev/null || fail "it does not begin: $(cat "$3")"; sleep 0.05; done; }
small=(gpt --width 32 --layers 2 --heads 2 --context 32 --workers 1 --batch 8)
# To four digits, which the order of sums does not change.
losses() { sed -n 's/.*"loss":\([0-9]*\.[0-9]\{4\}\).*/\1/p' "$@"; }

# A rank of a pipeline that stops is noticed at the limit; until then something else is done.
"$program" "${small[@]}" --rank-limit 10 --ranks 2 --pipeline 2 --steps 100000 \
  --log "$folder/halted.log" 2>"$folder/halted.out" &
halted=$!
begun "$folder/halted.rank1.log" $halted "$folder/halted.out"
for child in $(pgrep -P $halted); do
  ! tr '\0' '\n' <"/proc/$child/environ" | grep -qx RANK=1 || kill -STOP "$child"
done

"$program" "${small[@]}" --steps 8 --log "$folder/whole.log" --weights "$folder/whole.safetensors" 2>/dev/null
for shard in nothing parameters; do
  state=$folder/$shard.state
  run "${small[@]}" --ranks 3 --shard $shard --steps 3 --save "$state" --log "$folder/$shard.log" 2>/dev/null
  run "${small[@]}" --ranks 2 --shard $shard --steps 8 --save "$state" --resume --log "$folder/$shard.log" \
    --weights "$folder/$shard.safetensors" 2>"$folder/out" || fail "it does not go on: $(cat "$folder/out")"
  [[ $(grep -c 'goes on after step 3' "$folder/out") == 1 ]] || fail "not told once: $(cat "$folder/out")"
  [[ $(losses "$folder/$shard.rank0.log") == $(losses "$folder/whole.log") ]] || fail "other losses with --shard $shard"
  [[ $(stat -c %s "$folder/$shard.safetensors") == $(stat -c %s "$folder/whole.safetensors") ]] || fail "other weights"
done

# Ranks that share the layers: saved in parts, resumed, and weights as one process writes them or stage by stage.
run "${small[@]}" --steps 1 --from "$folder/whole.safetensors" --log "$folder/from.log" 2>/dev/null
for way in "--pipeline 2" "--tensor 2"; do
  state=$folder/parts${way// /}.state
  # shellcheck disable=SC2086
  run "${small[@]}" --ranks 4 $way --steps 3 --save "$state" --log "$state.log" 2>/dev/null
  # shellcheck disable=SC2086
  run "${small[@]}" --ranks 2 $way --steps 8 --save "$state" --resume --log "$state.log" \
    --weights "$state.safetensors" 2>"$folder/out" || fail "$way does not go on: $(cat "$folder/out")"
  [[ $(losses "$state.rank0.log") == $(losses "$folder/whole.log") ]] || fail "other losses with $way"
  [[ $(stat -c %s "$state.safetensors") == $(stat -c %s "$folder/whole.safetensors") ]] || fail "other weights with $way"
  # They are those that it would go on with.
  run "${small[@]}" --steps 1 --from "$state.safetensors" --log "$state.from.log" 2>/dev/null
  [[ $(losses "$state.from.log") == $(losses "$folder/from.log") ]] || fail "other weights with $way"
done
# A save of another way is refused, and what is not of a save is left alone.
touch "$folder/parts--tensor2.state.parts/mine.txt"
code=0
run "${small[@]}" --ranks 2 --steps 9 --save "$folder/parts--tensor2.state" --resume 2>"$folder/out" || code=$?
[[ $code == 2 ]] && grep -q 'parts--tensor2.state: it was saved by layers split among 2 ranks, and here are' "$folder/out" ||
  fail "another way: $code, $(cat "$folder/out")"
run "${small[@]}" --ranks 2 --tensor 2 --steps 9 --save "$folder/parts--tensor2.state" --resume 2>/dev/null
[[ -e $folder/parts--tensor2.state.parts/mine.txt ]] || fail "a file of another is gone"


# As a plan says, but for the flags.
cat >"$folder/plan.json" <<'PLAN'
{"schema": "plimsoll.plan/1", "ways": [{"batch": 2, "passes": 2, "samples": 8,
  "levers": [
   {"lever": "parallel", "set_to": "zero2:2", "value": {"kind": "zero2", "ranks": 2, "views": false}},
   {"lever": "checkpointing", "set_to": "h.0,h.1", "value": {"modules": ["h.0", "h.1"]}},
   {"lever": "accumulation", "set_to": "2", "value": {"passes": 2}},
   {"lever": "allocator", "set_to": "expandable_segments:True", "value": {"conf": "expandable_segments:True"}}]}]}
PLAN
run gpt --width 32 --layers 2 --heads 2 --context 32 --workers 1 --steps 8 --plan "$folder/plan.json" \
  --log "$folder/plan.log" 2>"$folder/out" || fail "the plan is not followed: $(cat "$folder/out")"
[[ $(losses "$folder/plan.rank1.log") == $(losses "$folder/whole.log") ]] || fail "other losses as planned"
grep -q '"checkpoint":"plan:0,1","loss"\|"checkpoint":"plan:0,1"' "$folder/plan.rank0.log" || fail "no checkpoints: $(head -1 "$folder/plan.rank0.log")"
[[ $(grep -c 'not done here: allocator expandable_segments:True' "$folder/out") == 1 ]] || fail "not told: $(cat "$folder/out")"

# Interrupted, all stop after the same step.
"$program" "${small[@]}" --ranks 3 --steps 100000 --save "$folder/stopped" --log "$folder/stopped.log" 2>"$folder/out" &
process=$!
begun "$folder/stopped.rank0.log" $process "$folder/out"
kill -INT $process
code=0
wait $process || code=$?
[[ $code == 130 ]] || fail "interrupted it ends with $code: $(cat "$folder/out")"
[[ $(wc -l <"$folder/stopped.rank0.log") == $(wc -l <"$folder/stopped.rank2.log") ]] || fail "ranks stop after different steps"
steps=$(($(wc -l <"$folder/stopped.rank0.log") + 1))
run "${small[@]}" --ranks 2 --steps $steps --save "$folder/stopped" --resume 2>/dev/null

# One is killed: the others say which, and it ends.
"$program" "${small[@]}" --ranks 3 --steps 100000 --log "$folder/killed.log" 2>"$folder/out" &
process=$!
begun "$folder/killed.rank1.log" $process "$folder/out"
for child in $(pgrep -P $process); do
  ! tr '\0' '\n' <"/proc/$child/environ" | grep -qx RANK=1 || kill -KILL "$child"
done
code=0
wait $process || code=$?
[[ $code != 0 ]] || fail "a rank was killed, and it ends well"
grep -q 'rank 1 was killed: Killed' "$folder/out" || fail "the killed rank is not told: $(cat "$folder/out")"
[[ $(grep -c 'rank 1 does not answer any more' "$folder/out") == 2 ]] || fail "the others do not say so: $(cat "$folder/out")"

# One is killed before they have met: the others are told by whoever started them, and wait for nobody.
"$program" "${small[@]}" --ranks 3 --steps 100000 2>"$folder/out" &
process=$!
victim=
until [[ -n $victim ]]; do
  for child in $(pgrep -P $process); do
    # Others are in the midst of becoming a rank.
    ! { tr '\0' '\n' <"/proc/$child/environ" | grep -qx RANK=1; } 2>/dev/null || victim=$child
  done
done
kill -KILL "$victim"
code=0
wait $process || code=$?
[[ $code == 137 ]] || fail "a rank was killed before they met, and it ends with $code"
[[ $(grep -c 'of 3: rank 1 was killed: Killed\( before all ranks had met\|, and nobody can\)' "$folder/out") == 2 ]] ||
  fail "the others do not say who was killed: $(cat "$folder/out")"

# What does not fit is told, and cannot be is refused before anything starts.
code=0
run "${small[@]}" --ranks 2 --budget 100KiB 2>"$folder/out" || code=$?
[[ $code == 1 ]] || fail "what does not fit ends with $code: $(cat "$folder/out")"
echo '{"schema": "plimsoll.plan/1", "ways": []}' >"$folder/empty.json"
for wrong in "--pipeline 2 --tensor 2" "--ranks 3 --pipeline 2" "--ranks 2 --tensor 2 --shard gradients" "--way 1" \
  "--plan $folder/plan.json --way 1" "--plan $folder/empty.json" "--plan $folder/whole.log" "--plan /no/plan" \
  "--plan $folder/plan.json --ranks 3" "--ranks 0" "--shard everything" "--ranks 2 --save /no/such/folder/x" "--rank-limit 0"; do
  code=0
  # shellcheck disable=SC2086
  run "${small[@]}" $wrong 2>"$folder/out" || code=$?
  [[ $code == 2 && $(wc -l <"$folder/out") == 1 ]] || fail "$wrong: $code, $(cat "$folder/out")"
done

code=0
wait $halted || code=$?
[[ $code != 0 ]] || fail "a rank of a pipeline was stopped, and it ends well"
grep -q 'rank 1 does not answer any more' "$folder/halted.out" || fail "the stopped rank is not told: $(cat "$folder/halted.out")"
echo "ranks_test: as it should be"
