#!/bin/bash
# Accepts what the program prints today: tests/golden/approve.sh [--code] [CASE…]   (default: every case)
# A case is a folder or an errors.txt below tests/golden/cases, such as explain/group. The program is the newest that
# was built, or $PLIMSOLL. --code accepts other exit codes too. Read the difference (git diff) afterwards.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

program=${PLIMSOLL:-$(ls -t "$root"/build/*/src/cli/plimsoll 2>/dev/null | head -n 1)}
if [[ ! -x $program ]]; then
  echo "approve: no program in build/*/src/cli; build it first (make release), or set PLIMSOLL" >&2
  exit 2
fi
code=()
if [[ ${1:-} == --code ]]; then code=(--code); shift; fi
cd "$here/cases"
cases=("$@")
((${#cases[@]})) || cases=(*/*/cmd */errors.txt)
echo "approve: with ${program#"$root"/}"
failed=0
for name in "${cases[@]}"; do
  name=${name%/cmd}
  if "$here/run.sh" "$program" "$name" >/dev/null 2>&1; then continue; fi
  if "$here/run.sh" --approve "${code[@]}" "$program" "$name"; then echo "approve: $name changed"; else failed=1; fi
done
exit "$failed"
