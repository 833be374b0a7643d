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
refuse "directory" "folder without memory snapshots" explain "$work"
: >"$work/empty.pickle"
refuse "empty file" "empty" explain "$work/empty.pickle"
refuse "empty standard input" "empty" explain -
# Root may read anything; this file answers every read with an error, even to root.
refuse "unreadable file" "" explain /proc/self/mem
for command in explain report "diff $data" replay pack; do
  # shellcheck disable=SC2086  # a command and its first file are two words
  refuse "$command: a file of no size" "no size|pagemap" $command /proc/self/pagemap
  # shellcheck disable=SC2086
  refuse "$command: a device" "device" $command /dev/zero
done
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

for seconds in nan inf -1; do
  refuse "pack --seconds $seconds" "seconds" pack "$data" --seconds "$seconds"
done
head -c 200000000 /dev/zero | gzip >"$work/bomb.gz"
refuse "a file that unpacks a thousandfold" "unpack to more than" explain "$work/bomb.gz"
step=$PWD/tests/data/steps/mlp_adamw_fp32.step.json.gz
zstd -dcq data/h200.calibration.zst >"$work/whole.calibration" 2>/dev/null || rm -f "$work/whole.calibration"
if [[ -s $work/whole.calibration ]]; then
  head -c 1000000 "$work/whole.calibration" >"$work/cut.calibration"
  refuse "a calibration file that is cut short" "damaged" predict "$step" --gpu H200 --batch 8 --calibration "$work/cut.calibration"
  (head -n 1 "$work/whole.calibration"; cat "$work/noise") >"$work/random.calibration"
  refuse "a calibration file of noise" "damaged" predict "$step" --gpu H200 --batch 8 --calibration "$work/random.calibration"
fi

# Names that would colour the terminal, turn the text round, or be a formula in a spreadsheet.
cat >"$work/names.json" <<'END'
{"segments": [], "device_traces": [[
 {"action": "segment_alloc", "addr": 18446744073709547520, "size": 1048576, "stream": 0, "frames": []},
 {"action": "segment_alloc", "addr": 4096, "size": 1048576, "stream": 0, "frames": []},
 {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "user_metadata": "\u001b[31m\u202enote", "frames": [
  {"filename": "=cmd\u001b[31m\u202e.py", "line": 3, "name": "@f\u200b\u009b\u2066"},
  {"filename": "train.py", "line": 4, "name": "\n\r\u007f"}]}]],
 "external_annotations": [{"stage": "START", "name": "\u001b]0;x\u0007\u202e", "device": 0, "time_us": 1}]}
END
# clean WHAT ARGUMENT…: answers, and prints no such character.
clean() {
  local what=$1
  shift
  count=$((count + 1))
  timeout 60 "$program" "$@" </dev/null >"$work/out" 2>"$work/err"
  local code=$? why=
  ((code <= 1)) || why+=" exit code $code;"
  [[ -s $work/out ]] || why+=" nothing on stdout;"
  # ESC, CR, DEL, CSI (U+009B), U+200B to U+200F, U+202A to U+202E, U+2066 to U+2069
  ! LC_ALL=C grep -qP '\x1b|\r|\x7f|\xc2\x9b|\xe2\x80[\x8b-\x8f\xaa-\xae]|\xe2\x81[\xa6-\xa9]' "$work/out" ||
    why+=" a control or format character on stdout;"
  [[ $what != *csv ]] || ! grep -qE '(^|,)"?[=@]' "$work/out" || why+=" a cell that is a formula;"
  if [[ -n $why ]]; then
    echo "FAILED $what:$why"
    failed=1
  fi
}
clean "explain" explain "$work/names.json"
clean "explain --json" explain --json "$work/names.json"
for format in perfetto speedscope csv; do
  clean "report --format $format" report --format $format -o - "$work/names.json"
done
clean "report" report -o - "$work/names.json"
clean "diff" diff "$work/names.json" "$work/names.json"
clean "replay" replay "$work/names.json"
clean "tune --json" tune --json "$work/names.json"
printf 'id,lower,upper,size\n=1+1,0,2,4\n@x\033[31m,1,3,4\n' >"$work/ids.csv"
clean "pack --csv" pack --csv "$work/ids.csv"

# What is read is never written over, by whatever name; nor is half a file left anywhere.
cp "$data" "$work/own.pickle.xz" && ln "$work/own.pickle.xz" "$work/other_name"
refuse "a page over its input" "overwrite" report "$work/own.pickle.xz" -o "$work/own.pickle.xz"
refuse "the same by another name" "overwrite" report "$work/own.pickle.xz" -o "$work/other_name"
refuse "a page over what it is compared with" "overwrite" report "$data" --compare "$work/own.pickle.xz" -o "$work/own.pickle.xz"
step=$PWD/tests/data/steps/mlp_adamw_fp32.step.json.gz
cp "$step" "$work/own.step.json.gz"
refuse "a prediction's page over its step" "overwrite" predict "$work/own.step.json.gz" --html "$work/own.step.json.gz"
refuse "a plan's page over its step" "overwrite" plan "$work/own.step.json.gz" --html "$work/own.step.json.gz"
printf 'print()\n' >"$work/train.py"
refuse "a step over its script" "overwrite" predict --run --keep-step "$work/train.py" -- python "$work/train.py"
refuse "a step where none can be" "cannot be written" plan --run --keep-step "$work/no/folder" -- python "$work/train.py"
if ! cmp -s "$data" "$work/own.pickle.xz" || [[ $(cat "$work/train.py") != "print()" ]]; then
  echo "FAILED an input was overwritten"
  failed=1
fi
ulimit -S -f 4
printf 'old\n' >"$work/page.html"
refuse "a file larger than the limit" "File too large" report "$data" -q -o "$work/page.html"
ulimit -S -f unlimited
long=$work/$(printf 'n%.0s' {1..245})
"$program" report "$data" -q -o "$long" </dev/null || failed=1
if [[ $(cat "$work/page.html") != old || ! -s $long ]] || compgen -G "$work/*.part" >/dev/null; then
  echo "FAILED half a file was left, or none under a long name"
  failed=1
fi
# No room for another file: only root can make such a place.
mkdir "$work/full"
if unshare -m true 2>/dev/null; then
  count=$((count + 1))
  unshare -m bash -c 'mount -t tmpfs -o nr_inodes=2 none "$2" || exit 0; echo old >"$2/page"
    "$1" report "$3" -q -o "$2/page" 2>"$2/../err"; code=$?; [[ $code == 2 && $(cat "$2/page") == old ]] &&
    [[ $(wc -l <"$2/../err") == 1 ]]' _ "$program" "$work/full" "$data" || {
    echo "FAILED a page where no file can be made: one line, and the old page stays"
    failed=1
  }
fi
mkfifo "$work/pipe"
refuse "a pipe that nobody writes to" "nobody writes" explain "$work/pipe"

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
# A log is read as a stream: one of 150 MB in 120 MB of addresses, as it is, packed and from a pipe. (Sanitizers need
# terabytes of addresses.)
if ! grep -q __asan_init "$program"; then
  {
    yes '2025-06-01 12:00:00 step 812 loss 2.3112 lr 3e-4 mem 61.2GiB(77%)' | head -c 150000000
    cat tests/data/errors/stage_model_to.txt
  } >"$work/long.log"
  gzip -1 -k "$work/long.log"
  for file in "$work/long.log" "$work/long.log.gz" -; do
    count=$((count + 1))
    if ! (ulimit -v 120000; exec "$program" explain "$file") <"$work/long.log" 2>&1 | grep -q 'train.py:41 in main'; then
      echo "FAILED a long log in little memory: $file"
      failed=1
    fi
  done
fi
((failed)) || echo "cli_test: $count cases, each refused with one line and exit code 2"
exit "$failed"
