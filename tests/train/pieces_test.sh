#!/bin/bash
# The blocks of docs/train_pieces.md are lines of its example, and the example runs: pieces_test.sh PROGRAM
set -euo pipefail
program=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
document=$root/docs/train_pieces.md

flat() { sed 's/^ *//; s/ *$//'; }
source=$(flat <"$root/examples/train_pieces/main.cc")
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
((blocks > 5)) || { echo "pieces_test: only $blocks blocks"; exit 1; }
"$program" >/dev/null
echo "pieces_test: $blocks blocks, as they should be"
