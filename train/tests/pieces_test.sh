#!/bin/bash
# The blocks of docs/NAME.md are lines of the example of that name, and the example runs:
#   pieces_test.sh PROGRAM NAME
set -euo pipefail
program=$1 name=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
document=$root/docs/$name.md

flat() { sed 's/^ *//; s/ *$//'; }
source=$(flat <"$root/train/examples/$name/main.cc")
blocks=0 block=
while IFS= read -r line; do
  if [[ $line == '```cpp' ]]; then
    block=begun
  elif [[ $line == '```' && -n $block ]]; then
    block=$(flat <<<"${block#begun}")
    [[ $source == *"${block#$'\n'}"* ]] || { echo "pieces_test: not in the example:"; echo "$block"; exit 1; }
    blocks=$((blocks + 1)) block=
  elif [[ -n $block ]]; then
    block+=$'\n'$line
  fi
done <"$document"
((blocks > 2)) || { echo "pieces_test: only $blocks blocks"; exit 1; }
"$program" "$name" >/dev/null
echo "pieces_test: $name: $blocks blocks, as they should be"
