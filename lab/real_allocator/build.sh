#!/bin/bash
# Builds the fake CUDA libraries and the programs against one release: build.sh RELEASES BUILD VERSION
# RELEASES is the folder that fetch_release.py filled. The programs end up in BUILD/VERSION.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
releases=$(cd "$1" && pwd)
mkdir -p "$2" && build=$(cd "$2" && pwd)
version=$3
minor=$(cut -d. -f2 <<<"$version")
home=$releases/$version/torch
cuda=$(grep -ao 'libcudart\.so\.1[0-9]' "$home/lib/libc10_cuda.so" | head -n 1 | grep -o '1[0-9]$')
fake=$build/cuda$cuda
runtime=libcudart.so.$cuda
cxx=${CXX:-g++}
standard=17
((minor < 14)) || standard=20 # the headers ask for it
abi=1
((minor >= 7)) || abi=0 # the wheels up to 2.6 have the strings of before C++11
flags=(-std=c++$standard -Wall -Wextra -isystem "$releases/cuda$cuda")

# Is the first file newer than all the others?
fresh() {
  local made=$1 source
  shift
  for source in "$@"; do [[ $made -nt $source ]] || return 1; done
}

# Releases up to 2.7 look the driver up in libcuda.so.1, and all look up libnvidia-ml.so.1: an empty
# library that depends on the runtime will do, since dlsym searches the dependencies too.
build_fake() {
  local empty sources=("$here"/fake_{runtime,driver,missing}.cc)
  fresh "$fake/libcuda.so.1" "${sources[@]}" "$here"/{address_space,fake_device,fake_cuda}.h && return
  mkdir -p "$fake"
  printf '%s { global: cu*; nvml*; fake_cuda*; local: *; };\n' "$runtime" >"$fake/versions"
  "$cxx" "${flags[@]}" -fPIC -shared "${sources[@]}" -ldl -Wl,-soname,"$runtime" \
    -Wl,--version-script="$fake/versions" -o "$fake/$runtime"
  for empty in libnvidia-ml.so.1 libcuda.so.1; do
    "$cxx" -shared -Wl,-soname,$empty -Wl,--no-as-needed "$fake/$runtime" -o "$fake/$empty"
  done
}

# build_program NAME SOURCE…
build_program() {
  local out=$build/$version/$1
  shift
  fresh "$out" "$@" "$here"/{context,dump,fake_cuda,release}.h && return
  mkdir -p "$build/$version"
  "$cxx" "${flags[@]}" -D_GLIBCXX_USE_CXX11_ABI=$abi -DTORCH_MINOR="$minor" \
    -isystem "$home/include" "$@" -o "$out" -L"$home/lib" -lc10_cuda -lc10 \
    -Wl,--no-as-needed "$fake/$runtime" "$fake/libcuda.so.1" "$fake/libnvidia-ml.so.1" \
    -Wl,-rpath,"$home/lib" -Wl,-rpath,"$fake" -Wl,-rpath-link,"$fake"
}

build_fake
build_program conf "$here/conf.cc"
build_program load "$here/load.cc" "$here/dump.cc"
