#!/bin/bash
# Runs a golden case, or a table of refusals: tests/golden/run.sh [--approve [--code]] PROGRAM CASE
#
# CASE is a folder:
#   cmd            the arguments, one line, as a shell would read them; run from the repository root
#   stdin          what the program reads from standard input (optional)
#   expected       what it must print
#   expected_err   what it must print to standard error (optional: not compared where missing)
#   expected_code  its exit code (optional: 0)
#   columns        the width of the terminal (optional: 100)
#   nvml           what a stand-in for NVIDIA's driver says (optional: there is no driver)
#   select         the parts of the answer that the case is about, one a line (optional: all of it; select.awk)
#   filter         a script for sed -E that takes out what differs from run to run (optional)
# or a file errors.txt, for what is refused with one line and exit code 2: a line "$ ARGUMENTS" and the line printed.
#
# --approve writes what the program does today instead. It refuses an answer that has become empty, and an exit code
# that has changed unless --code is given.
set -euo pipefail

approve= may_change_code=
if [[ ${1:-} == --approve ]]; then approve=1; shift; fi
if [[ ${1:-} == --code ]]; then may_change_code=1; shift; fi
if (($# != 2)) || [[ ! -f $2/cmd && ! -f $2 ]]; then
  echo "usage: run.sh [--approve [--code]] PROGRAM CASE   (a folder with a file cmd, or an errors.txt)" >&2
  exit 2
fi
program=$(realpath "$1")
case=$(realpath "$2")
here=$(realpath "$(dirname "$0")")
cd "$here/../.."

# The same on every machine: no terminal, no colour, one width, one locale, one time zone.
unset PLIMSOLL_COLOR CLICOLOR_FORCE FORCE_COLOR
export COLUMNS=100 NO_COLOR=1 TERM=dumb LC_ALL=C.UTF-8 TZ=UTC
# Never the driver of this machine, nor its jobs.
export PLIMSOLL_NVML=/nonexistent/libnvidia-ml.so.1 PLIMSOLL_RUNS=/nonexistent PLIMSOLL_SYSFS=/nonexistent

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
compare() {  # compare WHAT EXPECTED ACTUAL
  diff -u --label "$1 expected" --label "$1 now" "$2" "$3" || failed=1
}
# ask ARGUMENTS: as a shell would read them. Sets `code`.
ask() {
  eval "arguments=($1)"
  code=0
  "$program" "${arguments[@]}" <"${2:-/dev/null}" >"$out/stdout" 2>"$out/stderr" || code=$?
}
how_to_accept() {
  echo
  echo "If this is what it should print now: tests/golden/approve.sh ${case#"$here/cases/"}"
}

if [[ -f $case ]]; then
  while IFS= read -r line; do
    [[ $line == '$ '* ]] || continue
    ask "${line#'$ '}"
    printf '%s\n' "$line"
    cat "$out/stdout" "$out/stderr"
    ((code == 2)) || echo "(exit code $code)"
  done <"$case" >"$out/table"
  if [[ -n $approve ]]; then cp "$out/table" "$case"; exit; fi
  compare table "$case" "$out/table"
  ((!failed)) || how_to_accept
  exit "$failed"
fi

[[ -f $case/columns ]] && COLUMNS=$(<"$case/columns")
if [[ -f $case/nvml ]]; then
  export FAKE_NVML=$case/nvml
  PLIMSOLL_NVML=$(dirname "$program")/../../tests/nvml/libfake_nvml.so
fi
wanted=0
[[ -f $case/expected_code ]] && wanted=$(<"$case/expected_code")
input=/dev/null
[[ -f $case/stdin ]] && input=$case/stdin
ask "$(<"$case/cmd")" "$input"
if [[ -f $case/filter ]]; then sed -E -i -f "$case/filter" "$out/stdout"; fi
if [[ -f $case/select ]]; then
  awk -f "$here/select.awk" -v names="$(<"$case/select")" "$out/stdout" >"$out/selected"
  mv "$out/selected" "$out/stdout"
fi

if [[ -n $approve ]]; then
  if [[ ! -s $out/stdout && ! -s $out/stderr || -s $case/expected && ! -s $out/stdout ]]; then
    echo "approve: ${case##*/}: prints nothing now; its files are left as they were" >&2
    head -n 3 "$out/stderr" >&2
    exit 1
  fi
  if [[ -f $case/expected && -z $may_change_code ]] && ((code != wanted)); then
    echo "approve: ${case##*/}: ends with $code instead of $wanted; --code accepts that" >&2
    exit 1
  fi
  cp "$out/stdout" "$case/expected"
  if ((code != 0)); then echo "$code" >"$case/expected_code"; else rm -f "$case/expected_code"; fi
  if [[ -s $out/stderr ]]; then cp "$out/stderr" "$case/expected_err"; else rm -f "$case/expected_err"; fi
  exit 0
fi

if [[ -f $case/expected ]]; then
  compare stdout "$case/expected" "$out/stdout"
else
  echo "no file $case/expected yet"
  failed=1
fi
[[ -f $case/expected_err ]] && compare stderr "$case/expected_err" "$out/stderr"
if ((code != wanted)); then
  echo "exit code $code, expected $wanted"
  # A crash or a refusal explains itself there.
  [[ -f $case/expected_err ]] || head -n 20 "$out/stderr"
  failed=1
fi
if ((failed)); then
  echo
  echo "command: plimsoll $(<"$case/cmd")"
  how_to_accept
fi
exit "$failed"
