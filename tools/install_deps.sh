#!/bin/bash
# Installs what is missing to build (build), to build the tests (test), that tests start (programs), to fuzz (fuzz) or to
# lint (tidy). Debian and Ubuntu: through apt-get, as root or with sudo. Elsewhere: says what is needed, exits 2.
# Quick and without the network when everything is there.
set -euo pipefail

purpose=${1:-build}
want=(g++ cmake ninja-build libfmt-dev nlohmann-json3-dev zlib1g-dev liblzma-dev
      libzstd-dev libre2-dev libsqlite3-dev node-d3)
# Without these the checks that need them are skipped, aloud; the rest still runs.
nice_to_have=()
# What is looked for when a test begins and never by CMake: tools/run_tests installs it while the compiler works.
programs=(clang-format-16 mkdocs mkdocs-material chromium chromium-driver python3-selenium groff-base tmux)
case $purpose in
  build) ;;
  test) want+=(libgtest-dev xz-utils) nice_to_have=(git python3 python3-venv libbenchmark-dev libcli11-dev libstb-dev libgloo-dev) ;;
  programs) want=() nice_to_have=("${programs[@]}") ;;
  fuzz) want+=(libgtest-dev clang-16 libclang-rt-16-dev) ;;
  tidy) want+=(libgtest-dev clang-tidy-16) ;;
  *) echo "usage: install_deps.sh build|test|programs|fuzz|tidy" >&2; exit 2 ;;
esac

version_at_least() { [[ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" == "$2" ]]; }

# C++20 needs g++ 11 or clang 14; presets of version 6 need CMake 3.25.
check_versions() {
  local cxx=${CXX:-g++} version least name
  command -v "$cxx" >/dev/null || cxx=c++
  if ! command -v "$cxx" >/dev/null; then
    echo "install_deps: no C++ compiler found; install g++ 11 or newer, or clang 14 or newer" >&2
    exit 2
  fi
  version=$("$cxx" -dumpversion)
  if "$cxx" --version | grep -q clang; then name=clang least=14; else name=g++ least=11; fi
  if ! version_at_least "$version" "$least"; then
    echo "install_deps: $cxx is $name $version; $name $least or newer is needed (set CXX)" >&2
    exit 2
  fi
  version=$(cmake --version | awk 'NR == 1 {print $3}')
  if ! version_at_least "$version" 3.25; then
    echo "install_deps: cmake is $version; 3.25 or newer is needed (try: pip install cmake)" >&2
    exit 2
  fi
}

# Elsewhere than Debian: look for the headers and programs themselves, then list what is needed.
check_elsewhere() {
  local missing=() program header roots=(/usr/include /usr/local/include /opt/homebrew/include)
  # CPATH and CMAKE_PREFIX_PATH are how conda, Nix and friends say where things are.
  local more=${CPATH:+:$CPATH}${CMAKE_PREFIX_PATH:+:${CMAKE_PREFIX_PATH//://include:}/include}
  IFS=: read -r -a more <<<"${more#:}"
  for program in cmake ninja; do
    command -v "$program" >/dev/null || missing+=("$program")
  done
  local headers=(fmt/format.h nlohmann/json.hpp zlib.h lzma.h zstd.h re2/re2.h sqlite3.h)
  [[ $purpose == build ]] || headers+=(gtest/gtest.h)
  for header in "${headers[@]}"; do
    local root found=
    for root in "${roots[@]}" "${more[@]}"; do
      [[ -n $root && -e $root/$header ]] && found=1 && break
    done
    [[ -n $found ]] || missing+=("$header")
  done
  if ((${#missing[@]})); then
    cat >&2 <<TEXT
install_deps: this is not Debian or Ubuntu, and these were not found: ${missing[*]}
Needed: a C++20 compiler (g++ 11 or clang 14, or newer), CMake 3.25, Ninja, fmt,
nlohmann-json 3.11, zlib, liblzma, zstd, RE2, SQLite 3, d3 (npm pack d3, then
-DPLIMSOLL_D3=…/dist/d3.min.js); for the tests GoogleTest, xz and clang-format 16.
  Fedora:   dnf install gcc-c++ cmake ninja-build fmt-devel json-devel zlib-devel \\
                xz-devel libzstd-devel re2-devel sqlite-devel gtest-devel google-benchmark-devel
  Arch:     pacman -S gcc cmake ninja fmt nlohmann-json zlib xz zstd re2 sqlite gtest benchmark
  Homebrew: brew install cmake ninja fmt nlohmann-json xz zstd re2 sqlite googletest \\
                google-benchmark
Then run make again.
TEXT
    exit 2
  fi
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  # The tests say themselves which program is missing.
  [[ $purpose != programs ]] || exit 0
  check_elsewhere
  check_versions
  exit 0
fi

# A package counts as there when dpkg has it installed, or when it is a program that is on PATH.
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' 2>/dev/null | sed -n 's/^installed //p')
is_there() {
  grep -qxF "$1" <<<"$installed" && return 0
  case $1 in
    g++ | cmake | git | python3 | clang-format-16 | clang-tidy-16) command -v "$1" >/dev/null ;;
    python3-venv) python3 -c 'import ensurepip' 2>/dev/null ;;
    clang-16) command -v clang++-16 >/dev/null ;;
    ninja-build) command -v ninja >/dev/null ;;
    xz-utils) command -v xz >/dev/null ;;
    *) return 1 ;;
  esac
}
missing_of() {
  local package
  for package; do is_there "$package" || echo "$package"; done
}
mapfile -t missing < <(missing_of "${want[@]}")
mapfile -t missing_nice < <(missing_of "${nice_to_have[@]}")

as_root=()
if ((EUID != 0)) && command -v sudo >/dev/null; then as_root=(sudo); fi
export DEBIAN_FRONTEND=noninteractive
# It waits for another that runs, such as one whose make was stopped.
install() {
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=600 "$@" </dev/null >/dev/null
}

install_missing() {
  local all=("${missing[@]}" "${missing_nice[@]}") package
  if ((EUID != 0 && ${#as_root[@]} == 0)); then
    echo "install_deps: not root and no sudo; as root: apt-get install ${all[*]}" >&2
    ((${#missing[@]} == 0)) || exit 2
    return
  fi
  echo "install_deps: installing ${all[*]}"
  # All at once takes a third of the time of one by one. The lists of packages may be too old, or not be there yet.
  install "${all[@]}" 2>/dev/null && return
  "${as_root[@]}" apt-get update -qq </dev/null || echo "install_deps: apt-get update failed" >&2
  install "${all[@]}" 2>/dev/null && return
  if ((${#missing[@]})) && ! install "${missing[@]}"; then
    echo "install_deps: could not install ${missing[*]}; install them by hand, then run make again" >&2
    exit 2
  fi
  for package in "${missing_nice[@]}"; do
    install "$package" || echo "install_deps: no $package here; what needs it is skipped" >&2
  done
}
((${#missing[@]} + ${#missing_nice[@]} == 0)) || install_missing
# sudo asks for its password now, not amid what the compiler says.
if [[ $purpose == test && ${#as_root[@]} != 0 && -n $(missing_of "${programs[@]}") ]]; then sudo -v || true; fi
[[ $purpose == programs ]] || check_versions
