#!/bin/bash
# Runs one golden case: tests/golden/run.sh [--approve] PROGRAM CASE_DIR
#   cmd            the arguments, one line, as a shell would read them; run from the repository root
#   stdin          what the program reads from standard input (optional)
#   expected       what it must print
#   expected_err   what it must print to standard error (optional: not compared where missing)
#   expected_code  its exit code (optional: 0)
#   columns        how wide the terminal is (optional: 100)
#   nvml           what a stand-in for NVIDIA's driver tells (optional: there is no driver)
#   filter         a script for sed -E that takes out what differs from run to run (optional)
# --approve writes what the program does today into those files instead.
set -euo pipefail

approve=
if [[ ${1:-} == --approve ]]; then approve=1; shift; fi
if (($# != 2)) || [[ ! -f $2/cmd ]]; then
  echo "usage: run.sh [--approve] PROGRAM CASE_DIR   (a case has a file cmd)" >&2
  exit 2
fi
program=$(realpath "$1")
case_dir=$(realpath "$2")
cd "$(dirname "$0")/../.."

# The same on every machine: no terminal, no colour, one width, one locale, one time zone.
unset PLIMSOLL_COLOR CLICOLOR_FORCE FORCE_COLOR
export COLUMNS=100 NO_COLOR=1 TERM=dumb LC_ALL=C.UTF-8 TZ=UTC

[[ -f $case_dir/columns ]] && COLUMNS=$(<"$case_dir/columns")

# Never the driver of this machine, nor its jobs.
export PLIMSOLL_NVML=/nonexistent/libnvidia-ml.so.1 PLIMSOLL_RUNS=/nonexistent PLIMSOLL_SYSFS=/nonexistent
if [[ -f $case_dir/nvml ]]; then
  export FAKE_NVML=$case_dir/nvml
  PLIMSOLL_NVML=$(dirname "$program")/../../tests/nvml/libfake_nvml.so
fi

eval "arguments=($(<"$case_dir/cmd"))"
input=/dev/null
[[ -f $case_dir/stdin ]] && input=$case_dir/stdin

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
code=0
"$program" "${arguments[@]}" <"$input" >"$out/stdout" 2>"$out/stderr" || code=$?
[[ -f $case_dir/filter ]] && sed -E -i -f "$case_dir/filter" "$out/stdout"

if [[ -n $approve ]]; then
  cp "$out/stdout" "$case_dir/expected"
  if ((code != 0)); then echo "$code" >"$case_dir/expected_code"; else rm -f "$case_dir/expected_code"; fi
  if [[ -s $out/stderr ]]; then cp "$out/stderr" "$case_dir/expected_err"; else rm -f "$case_dir/expected_err"; fi
  exit 0
fi

failed=0
compare() {  # compare WHAT EXPECTED ACTUAL
  diff -u --label "$1 expected" --label "$1 now" "$2" "$3" || failed=1
}
if [[ -f $case_dir/expected ]]; then
  compare stdout "$case_dir/expected" "$out/stdout"
else
  echo "no file $case_dir/expected yet"
  failed=1
fi
[[ -f $case_dir/expected_err ]] && compare stderr "$case_dir/expected_err" "$out/stderr"
wanted=0
[[ -f $case_dir/expected_code ]] && wanted=$(<"$case_dir/expected_code")
if ((code != wanted)); then
  echo "exit code $code, expected $wanted"
  # A crash or a refusal explains itself there.
  [[ -f $case_dir/expected_err ]] || head -n 20 "$out/stderr"
  failed=1
fi
if ((failed)); then
  echo
  echo "case:    ${case_dir#"$PWD"/}"
  echo "command: plimsoll $(<"$case_dir/cmd")"
  echo "If this is what it should print now: tests/golden/approve.sh $(basename "$case_dir")"
fi
exit "$failed"
