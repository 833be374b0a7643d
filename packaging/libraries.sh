#!/bin/bash
# The libraries that plimsoll links, as archives: packaging/libraries.sh SOURCES PREFIX
# SOURCES is a folder in which this was run:
#   apt-get source fmtlib nlohmann-json3 zlib xz-utils libzstd re2 sqlite3
# apt checks Debian's signatures. Compiled with CC and CXX, for where no archives are installed, as in the images of
# manylinux, or for another C library. Needs CMake, make and tclsh.
set -euo pipefail
sources=$(realpath "$1")
mkdir -p "$2"
prefix=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# with_cmake FOLDER OPTIONS...
with_cmake() {
  local folder
  folder=$(echo "$sources"/$1)
  shift
  echo "libraries: ${folder#"$sources"/}"
  rm -rf "$work/build"
  { cmake -S "$folder" -B "$work/build" -G "Unix Makefiles" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
    -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF "$@" &&
    cmake --build "$work/build" --target install; } >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}

# By its own script: Debian leaves out a file that its CMakeLists.txt wants.
zlib() {
  echo "libraries: $(basename "$sources"/zlib-*)"
  cp -r "$sources"/zlib-* "$work/zlib"
  (cd "$work/zlib" && CFLAGS="-O2 -fPIC" ./configure --static --prefix="$prefix" && make install) \
    >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}

sqlite() {
  local folder
  folder=$(echo "$sources"/sqlite3-*)
  echo "libraries: ${folder#"$sources"/}"
  mkdir -p "$work/sqlite" "$prefix/include" "$prefix/lib"
  # One file of all of it, which its own Makefile writes; it needs no configuration to be read with.
  (cd "$work/sqlite" && CC=cc "$folder/configure" && make sqlite3.c) >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  ${CC:-cc} -O2 -fPIC -DSQLITE_OMIT_LOAD_EXTENSION -c "$work/sqlite/sqlite3.c" -o "$work/sqlite/sqlite3.o"
  ar rcs "$prefix/lib/libsqlite3.a" "$work/sqlite/sqlite3.o"
  cp "$work/sqlite/sqlite3.h" "$prefix/include"
}

with_cmake 'fmtlib-*' -DFMT_TEST=OFF -DFMT_DOC=OFF
with_cmake 'nlohmann-json3-*' -DJSON_BuildTests=OFF
zlib
with_cmake 'xz-utils-*'
with_cmake 'libzstd-*/build/cmake' -DZSTD_BUILD_PROGRAMS=OFF -DZSTD_BUILD_SHARED=OFF -DZSTD_BUILD_TESTS=OFF
with_cmake 're2-*' -DRE2_BUILD_TESTING=OFF
sqlite
