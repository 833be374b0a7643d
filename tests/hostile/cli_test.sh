#!/bin/bash
# What the program does with flags and files that cannot be used: exit code 2, nothing on standard
# output, and exactly one line on standard error that says what to do. tests/hostile/cli_test.sh PROGRAM
set -uo pipefail
program=$(realpath "${1:?usage: cli_test.sh PROGRAM}")
cd "$(dirname "$0")/../.."
data=$PWD/tests/data/snapshots/libtorch_mlp_cpp.pickle.xz
work=$(mktemp -d)
trap 'chmod -R u+rwx "$work"; rm -rf "$work"' EXIT
export NO_COLOR=1 COLUMNS=100
failed=0 count=0

# refuse WHAT TEXT ARGUMENT…: the line must hold TEXT (a pattern of grep -E; empty: anything).
refuse() {
  local what=$1 text=$2 code lines
  shift 2
  count=$((count + 1))
  timeout 60 "$program" "$@" </dev/null >"$work/out" 2>"$work/err"
  code=$?
  lines=$(wc -l <"$work/err")
  local why=
  ((code == 2)) || why+=" exit code $code instead of 2;"
  ((lines == 1)) || why+=" $lines lines on stderr instead of 1;"
  [[ ! -s $work/out ]] || why+=" something on stdout;"
  [[ -z $text ]] || grep -qE -- "$text" "$work/err" || why+=" the line does not say \"$text\";"
  if [[ -n $why ]]; then
    echo "FAILED $what:$why"
    head -n 5 "$work/err" | sed 's/^/    /'
    failed=1
  fi
}

refuse "unknown command" "frobnicate" frobnicate
refuse "unknown flag" "--frobnicate" explain --frobnicate "$data"
refuse "a file is missing from the command" "" explain
refuse "missing file" "nowhere.pickle" explain "$work/nowhere.pickle"
refuse "directory" "$work" explain "$work"
: >"$work/empty.pickle"
refuse "empty file" "empty" explain "$work/empty.pickle"
refuse "empty standard input" "empty" explain -
# Root may read anything; this file answers every read with an error, even to root.
refuse "unreadable file" "" explain /proc/self/mem
if ((EUID != 0)); then
  cp "$data" "$work/secret.pickle" && chmod 000 "$work/secret.pickle"
  refuse "no permission" "secret.pickle" explain "$work/secret.pickle"
fi
head -c 20000 /dev/zero | tr '\0' '\377' >"$work/ones"
refuse "binary garbage" "ones" explain "$work/ones"
head -c 20000 /dev/zero >"$work/zeros"
refuse "zeros" "zeros" explain "$work/zeros"
awk 'BEGIN {srand(7); for (i = 0; i < 20000; i++) printf "%c", int(rand() * 255) + 1}' >"$work/noise"
refuse "noise" "noise" explain "$work/noise"
head -c 1500 "$data" >"$work/cut.pickle.xz"
refuse "truncated xz" "cut.pickle.xz" explain "$work/cut.pickle.xz"
printf '\200\002cos\nsystem\n(X\004\000\000\000truetR.' >"$work/code.pickle"
refuse "a pickle that calls os.system" "code" explain "$work/code.pickle"
refuse "the same, as JSON" "code" explain --json "$work/code.pickle"
printf 'hello, this is a log without an error\n' >"$work/plain.log"
refuse "a log without an out-of-memory message" "plain.log" explain "$work/plain.log"
refuse "diff with one file" "" diff "$data"
refuse "diff with a size that is none" "" diff "$data" "$data" --fail-above lots
refuse "an event that is no number" "" explain --at lots "$data"
refuse "an event below the first" "from 0 on" explain --at -1 "$data"
refuse "an event beyond all numbers" "from 0 on" explain --at 99999999999999999999 "$data"
refuse "a flag without its value" "--capacity" tune "$data" --capacity
refuse "a flag given twice" "--capacity" tune "$data" --capacity 1GiB --capacity 2GiB
refuse "a size without a unit" "12GiB" tune "$data" --capacity 12
refuse "a size that is not a number" "nan" tune "$data" --capacity nanGiB
refuse "a time that is not a number" "seconds" pack "$data" --seconds nan
refuse "a card without a name" "GPU" tune "$data" --gpu ""
refuse "a very long card" "GPU" tune "$data" --gpu "$(printf 'x%.0s' {1..5000})"
refuse "an escape sequence as a command" "no command" $'\033[2J'
refuse "a shell without completion" "bash" completion tcsh
refuse "help on what is not there" "frobnicate" help frobnicate

# One bad file among several: the others are still explained, and the exit code tells.
count=$((count + 1))
timeout 60 "$program" explain "$data" "$work/nowhere.pickle" </dev/null >"$work/out" 2>"$work/err"
code=$?
if ((code != 2)) || [[ $(wc -l <"$work/err") != 1 ]] || ! grep -q "run out of memory" "$work/out"; then
  echo "FAILED one of two files missing: exit code $code, one line and an explanation are wanted"
  failed=1
fi

# And what is not an error: help, the version.
for flag in --help --version; do
  count=$((count + 1))
  if ! "$program" $flag </dev/null >"$work/out" 2>"$work/err" || [[ ! -s $work/out || -s $work/err ]]; then
    echo "FAILED $flag: exit code 0 and text on stdout only"
    failed=1
  fi
done
# Every command explains itself, with examples.
for command in explain report diff replay tune predict pack gpus; do
  count=$((count + 1))
  if ! "$program" $command --help </dev/null | grep -A1 '^Examples' | grep -q "plimsoll $command"; then
    echo "FAILED $command --help: no examples"
    failed=1
  fi
done
((failed)) || echo "cli_test: $count cases, each refused with one line and exit code 2"
exit "$failed"
