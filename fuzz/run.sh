#!/bin/bash
# Builds the fuzz targets and runs each for SECONDS (60), FUZZ_JOBS (2) at a time:
#   fuzz/run.sh [SECONDS] [NAME…]
# Findings stay in build/fuzz/findings/NAME-*, new inputs in build/fuzz/grown/NAME. Add a finding to
# fuzz/corpus/NAME together with its fix. Exits with a failure if anything was found.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${FUZZ_JOBS:-2}
seconds=${1:-60}
shift || true

cmake --preset fuzz --log-level=WARNING
cmake --build --preset fuzz --target fuzzers --parallel "$jobs"
mkdir -p build/fuzz/findings build/fuzz/grown build/fuzz/logs

names=("$@")
if ((${#names[@]} == 0)); then
  for source in fuzz/fuzz_*.cc; do
    name=${source#fuzz/fuzz_}
    names+=("${name%.cc}")
  done
fi

fuzz_one() {
  local name=$1 seconds=$2 grown=build/fuzz/grown/$1 log=build/fuzz/logs/$1
  mkdir -p "$grown"
  local flags=(-max_total_time="$seconds" -timeout=120 -report_slow_units=60 -rss_limit_mb=2048 -max_len=65536
               -print_final_stats=1 -artifact_prefix="build/fuzz/findings/$name-")
  [[ -f fuzz/$name.dict ]] && flags+=(-dict="fuzz/$name.dict")
  # A few bytes may unpack to a thousand times as many; long inputs only make that slow.
  [[ $name == unpack ]] && flags+=(-max_len=4096)
  local corpus=fuzz/corpus/$name status=0
  [[ $name == explain ]] && corpus=fuzz/corpus  # it reads whatever the others read
  build/fuzz/fuzz/"$name"_fuzz "${flags[@]}" "$grown" "$corpus" >"$log" 2>&1 || status=$?
  local runs coverage found
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  coverage=$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1 | cut -d' ' -f2)
  found=$(find build/fuzz/findings -name "$name-*" | wc -l)
  printf '%-16s %10s %8s %9s\n' "$name" "${runs:--}" "${coverage:--}" "$found"
  return $((status != 0))
}
export -f fuzz_one
printf '%-16s %10s %8s %9s\n' target runs coverage findings
printf '%s\n' "${names[@]}" | xargs -P "$jobs" -I{} bash -c 'fuzz_one "$1" "$2"' _ {} "$seconds"
