#!/bin/bash
# Time and memory of `plimsoll explain --json` against CPython's bare pickle.load of the same file:
#   lab/explain_vs_pickle.sh PROGRAM [EVENTS]          (REPEATS=5, FRAMES=41 from the environment)
# Everything is measured in one run, as ratios, so that the machine drops out. The snapshots are
# generated under build/bench and kept. Without python3 only our own side is measured.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$(realpath "${1:?usage: explain_vs_pickle.sh PROGRAM [EVENTS]}")
events=${2:-750000}
repeats=${REPEATS:-5}
frames=${FRAMES:-41}
tools=${BENCH_TOOLS:-build/bench/bench}
data=build/bench/data
mkdir -p "$data"
load='import pickle, sys; pickle.load(open(sys.argv[1], "rb"))'

snapshot() {  # snapshot EVENTS: the file's name, made if it is not there
  local file=$data/$1x$frames.pickle
  if [[ ! -f $file ]]; then
    "$tools/generate_snapshot" "$1" "$frames" "$file.part" >&2
    mv "$file.part" "$file"
  fi
  echo "$file"
}

python=
if command -v python3 >/dev/null && python3 -c 'import pickle'; then
  python=1
  # The generator's promise: CPython would have written the same bytes.
  if ! python3 -c '
import pickle, sys
data = open(sys.argv[1], "rb").read()
sys.exit(pickle.dumps(pickle.loads(data), protocol=4) != data)' "$(snapshot 20000)"; then
    echo "explain_vs_pickle: the generated file is not what CPython writes" >&2
    exit 1
  fi
else
  echo "explain_vs_pickle: no python3, so pickle.load is not compared"
fi

full=$(snapshot "$events")
size=$(stat -c %s "$full")
cat "$full" >/dev/null  # both sides read from memory
ours=$("$tools/measure" "$repeats" "$program" explain --json "$full")
theirs="0 0 0 0"
[[ -z $python ]] || theirs=$("$tools/measure" "$repeats" python3 -c "$load" "$full")

awk -v ours="$ours" -v theirs="$theirs" -v size="$size" -v events="$events" -v frames="$frames" \
    -v repeats="$repeats" '
  function row(name, cost) {
    printf "%-24s %8.2f s %9.1f MB %12.1f MB\n", name, cost[1], cost[3] / 1e6, cost[4] / 1e6
  }
  function bar(text, met) { printf "%s: %s\n", text, met ? "met" : "MISSED" }
  BEGIN {
    split(ours, o, " "); split(theirs, t, " ")
    printf "%d events with %d frames each, %.1f MB; medians of %d runs\n\n", events, frames, size / 1e6, repeats
    printf "%-24s %10s %12s %15s\n", "", "time", "private", "resident"
    row("plimsoll explain --json", o)
    if (t[1] > 0) row("pickle.load", t)
    print ""
    if (t[1] > 0) bar(sprintf("time      1/%.1f of pickle.load (bar: 1/10)", t[1] / o[1]), o[1] * 10 <= t[1])
    bar(sprintf("private   %.2f of the file (bar: 0.50)", o[3] / size), o[3] < 0.5 * size)
  }'

# Time grows linearly: the same cost an event at a quarter, half and all of them.
for part in $((events / 4)) $((events / 2)) "$events"; do
  file=$(snapshot "$part")
  cat "$file" >/dev/null
  echo "$part $("$tools/measure" "$repeats" "$program" explain --json "$file")"
done | awk '
  {events[NR] = $1; seconds[NR] = $2}
  END {
    print ""
    for (i = 1; i <= NR; i++)
      printf "%9d events %8.3f s %7.3f us an event\n", events[i], seconds[i], seconds[i] / events[i] * 1e6
    growth = (seconds[NR] / events[NR]) / (seconds[1] / events[1])
    printf "linearity an event costs %.2f times as much in the full file as in a quarter: %s\n", growth, growth <= 1.25 ? "met" : "MISSED"
  }'
