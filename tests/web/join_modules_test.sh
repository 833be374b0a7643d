#!/bin/bash
# cmake/join_modules.cmake joins what it knows and refuses the rest: tests/web/join_modules_test.sh
set -euo pipefail
cmake_folder=$(realpath "$(dirname "$0")/../../cmake")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
printf 'const own = 2;\nexport const two = own;\nexport async function wait() {}\n' > first.js

join() { cmake "-DFILES=$folder/first.js,$folder/second.js" "-DOUT=$folder/out.js" -P "$cmake_folder/join_modules.cmake"; }

printf 'import {two, wait} from "./first.js";\nimport * as all from "./first.js";\nexport class C { own = two; }\n' > second.js
join
grep -q 'const {two, wait} = module_first;' out.js
grep -q 'return {two, wait};' out.js
! grep -Eq '^(import|export)' out.js

refuses() {
  printf '%b\n' "$1" > second.js
  if join > log 2>&1; then
    echo "joined, and should not have: $1" >&2
    exit 1
  fi
  grep -q 'second.js' log || { cat log >&2; exit 1; }
}
refuses 'import {three} from "./first.js";'
refuses 'import {two} from "./third.js";'
refuses 'import two from "./first.js";'
refuses 'import "./first.js";'
refuses "import {two} from './first.js';"
refuses 'import {\n  two,\n} from "./first.js";'
refuses 'import {two as deux} from "./first.js";'
refuses 'export default 3;'
refuses 'const a = 1;\nexport {a};'
refuses 'export let a = 1;'
refuses 'export * from "./first.js";'
refuses 'const a = await import("./first.js");'
