#!/bin/bash
# Accepts what the program prints today: tests/golden/approve.sh [CASE…]   (default: every case)
# The program is the newest that was built, or $PLIMSOLL. Read the difference (git diff) afterwards.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

program=${PLIMSOLL:-$(ls -t "$root"/build/*/src/cli/plimsoll 2>/dev/null | head -n 1)}
if [[ ! -x $program ]]; then
  echo "approve: no program in build/*/src/cli; build it first (make release), or set PLIMSOLL" >&2
  exit 2
fi
cases=("$@")
if ((${#cases[@]} == 0)); then
  for folder in "$here"/cases/*/; do cases+=("$(basename "$folder")"); done
fi
echo "approve: with ${program#"$root"/}"
for name in "${cases[@]}"; do
  name=${name#golden.}
  if "$here/run.sh" "$program" "$here/cases/$name" >/dev/null 2>&1; then continue; fi
  "$here/run.sh" --approve "$program" "$here/cases/$name"
  echo "approve: $name changed"
done
