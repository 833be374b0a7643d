#!/bin/bash
# The release: a wheel, a .deb and a .tar.gz for every Linux with glibc 2.28 or newer, of this machine's architecture.
#   packaging/release.sh FOLDER          on Debian 12, as root, with the network; packaging/Containerfile does the same
# g++ compiles for the glibc of its own machine. zig is a clang that brings the interfaces of older ones along, so no
# old system is needed; its C++ library is an archive. The other libraries are compiled from Debian's sources, whose
# signatures apt checks.
set -euo pipefail
mkdir -p "$1"
out=$(realpath "$1")
cd "$(dirname "$0")/.."

glibc=2.28
zig=0.17.0
root=$PWD/build/package
build=$PWD/build/release-$glibc
jobs=$(getconf _NPROCESSORS_ONLN)

get_sources() {
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main
deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian-security bookworm-security main" \
    >"$root/sources.list"
  mkdir -p "$root/lists/partial" "$root/sources"
  local apt=(apt-get -qq -o "Dir::Etc::SourceList=$root/sources.list" -o Dir::Etc::SourceParts=/dev/null
             -o "Dir::State::Lists=$root/lists" -o APT::Sandbox::User=root)
  "${apt[@]}" update
  (cd "$root/sources" && "${apt[@]}" source fmtlib nlohmann-json3 zlib xz-utils libzstd re2 sqlite3)
}

# One program for each name that CMake asks for.
wrap_zig() {
  local program name
  "$root/venv/bin/python" -m pip --quiet install "ziglang==$zig"
  program=$("$root/venv/bin/python" -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).with_name("zig"))')
  mkdir -p "$root/zig"
  for name in cc c++ ar ranlib; do
    local target=
    [[ $name != c* ]] || target="-target $(uname -m)-linux-gnu.$glibc"
    printf '#!/bin/sh\nexec "%s" %s %s "$@"\n' "$program" "$name" "$target" >"$root/zig/$name"
    chmod +x "$root/zig/$name"
  done
}

tools/install_deps.sh build
apt-get install -y -qq --no-install-recommends dpkg-dev make python3-venv tcl </dev/null
tools/package_tools
[[ -f $root/venv/ready ]] || exit 1
[[ -d $root/sources ]] || get_sources
wrap_zig
export CC=$root/zig/cc CXX=$root/zig/c++
[[ -f $root/prefix/lib/libsqlite3.a ]] || packaging/libraries.sh "$root/sources" "$root/prefix"
cmake --preset release -B "$build" -DCMAKE_PREFIX_PATH="$root/prefix" -DCMAKE_AR="$root/zig/ar" \
  -DCMAKE_RANLIB="$root/zig/ranlib" --log-level=WARNING
cmake --build "$build" --parallel "$jobs"
tools/make_archives "$build" "$out"
tools/make_wheel "$build/src/cli/plimsoll" "$out"
