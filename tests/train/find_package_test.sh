#!/bin/bash
# Installs the build and compiles a project that finds it: find_package_test.sh BUILD LIBTORCH FLAGS
set -euo pipefail
build=$1 libtorch=$2 flags=$3
source=$(cd "$(dirname "$0")/../../examples/train_in_budget" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cmake --install "$build" --prefix "$folder/prefix" --component plimsoll_train >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
cmake -S "$source" -B "$folder/build" -G Ninja -DCMAKE_PREFIX_PATH="$folder/prefix;$libtorch" \
  -DCMAKE_CXX_FLAGS="$flags" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
cmake --build "$folder/build" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
"$folder/build/train_in_budget" | tee "$folder/out"
[[ $(grep -c '^loss ' "$folder/out") == 5 ]]
