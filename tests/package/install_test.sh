#!/bin/bash
# What make install, the .tar.gz and the .deb put where: install_test.sh BUILD
set -euo pipefail
build=$(realpath "$1")
repository=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "install_test: $*"; exit 1; }
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; fail "$1 fails"; }; }

# complete ROOT: all of it is below ROOT and works from there.
complete() {
  local root=$1 page pages=0 shell
  [[ $("$root/bin/plimsoll" --version) == $("$build/src/cli/plimsoll" --version) ]] || fail "another version"
  for page in "$root"/share/man/man1/plimsoll*.1; do
    pages=$((pages + 1))
    command -v groff >/dev/null || continue
    groff -man -Kutf8 -Tutf8 -ww "$page" 2>"$work/warnings" >"$work/page"
    [[ ! -s $work/warnings && -s $work/page ]] || { cat "$work/warnings"; fail "groff warns of $page"; }
  done
  # One for each command that the overview names, and the overview.
  ((pages == 1 + $(grep -c '^\\fBplimsoll\\-' "$root/share/man/man1/plimsoll.1"))) || fail "$pages pages"
  for shell in bash zsh fish; do
    command -v "$shell" >/dev/null || continue
    "$shell" -n "$(find "$root/share" -path "*$shell*" -type f)" || fail "$shell does not read its completion"
  done
  [[ -s $root/share/doc/plimsoll/LICENSE ]] || fail "no licence"
  [[ -s $root/share/plimsoll/skill/plimsoll/SKILL.md ]] || fail "no skill"
}

DESTDIR=$work/staged quietly cmake --install "$build" --prefix /opt/plimsoll --component plimsoll
complete "$work/staged/opt/plimsoll"

"$repository/tools/make_archives" "$build" "$work/archives"
mkdir "$work/unpacked"
tar -C "$work/unpacked" -xf "$work"/archives/plimsoll-*.tar.gz
complete "$work"/unpacked/plimsoll-*
if command -v dpkg-deb >/dev/null; then
  deb=$(echo "$work"/archives/plimsoll_*.deb)
  depends=$(dpkg-deb -f "$deb" Depends)
  [[ $depends =~ ^libc6\ \(\>=\ 2\.[0-9]+\)$ ]] || fail "the .deb depends on $depends"
  dpkg-deb -x "$deb" "$work/deb"
  complete "$work/deb/usr"
fi
