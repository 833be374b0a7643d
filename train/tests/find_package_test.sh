#!/bin/bash
# Installs the build, looks at what was installed, and builds and runs a project that finds it:
#   find_package_test.sh BUILD LIBTORCH FLAGS
set -euo pipefail
build=$1 libtorch=$2 flags=$3
repository=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
prefix=$folder/prefix

quietly() { "$@" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }; }
# none WHAT COMMAND...: the command, a search, finds nothing.
none() {
  local what=$1 found
  shift
  found=$("$@" || true)
  [[ -z $found ]] || { printf 'installed, but should not be: %s\n%s\n' "$what" "$found"; exit 1; }
}

# Moved afterwards: a package that knew where it was would not be found.
quietly cmake --install "$build" --prefix "$folder/elsewhere" --component plimsoll_train
mv "$folder/elsewhere" "$prefix"

package=$prefix/lib/cmake/plimsoll
[[ -s $package/plimsollTargets.cmake ]]
none "absolute paths" grep -rnE '(^|[[:space:]";:=]|-[LI]|-isystem)/[A-Za-z]' "$package"
for place in "$build" "$repository" "$folder"; do
  none "paths of the build" grep -rnF "$place" "$package" "$prefix/include"
done
none "flags of the build" grep -rnE -e '-fsanitize|-W[a-z]' "$package"
none "headers of tests" find "$prefix" -name '*_for_tests*'
# All by their installed names, since nothing but the folder plimsoll lies there.
while read -r header; do
  [[ -f $prefix/include/$header ]] || { echo "included, but not installed: $header"; exit 1; }
done < <(grep -rhoP '#include "\K[^"]+' "$prefix/include" | sort -u)

# Nearly all that there is to compile is LibTorch's headers. By day they come precompiled from this build, with the flags
# of one of its own examples; where they lie is still for the package to say. By night as anybody would compile it.
precompiled=()
if [[ -z ${PLIMSOLL_NIGHTLY:-} ]]; then
  own=$(sed -n '/^build .*tests\/examples\.cc\.o:/,/^$/{s/^  DEFINES = //p;s/^  FLAGS = //p}' "$build/build.ninja")
  precompiled=(-DCMAKE_BUILD_TYPE=Precompiled -DCMAKE_CXX_EXTENSIONS=OFF
    "-DCMAKE_CXX_FLAGS_PRECOMPILED=$(tr '\n' ' ' <<<"${own//-Werror/}")")
fi
quietly cmake -S "$repository/train/examples/train_in_budget" -B "$folder/build" -G Ninja \
  -DCMAKE_PREFIX_PATH="$prefix;$libtorch" -DCMAKE_CXX_FLAGS="$flags" "${precompiled[@]}"
quietly cmake --build "$folder/build"

# Peaks in MiB, one a step.
peaks() { grep -oP "^loss .*at most \K[0-9.]+(?= MiB held, .*$2)" "$1"; }
"$folder/build/train_in_budget" 16 | tee "$folder/within"
"$folder/build/train_in_budget" 1024 | tee "$folder/plain"
# Not one sample fits there without checkpointing, which the model of the example is made for.
[[ $(peaks "$folder/within" 'checkpoint (?!none)' | awk '$1 <= 16' | wc -l) == 5 ]]
[[ $(peaks "$folder/plain" 'checkpoint none' | awk '$1 > 16' | wc -l) == 5 ]]
