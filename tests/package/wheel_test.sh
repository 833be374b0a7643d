#!/bin/bash
# The wheel in a fresh virtual environment, as a stranger has it: wheel_test.sh PROGRAM
# The environment is build/package/fresh (tools/package_tools), which is as fresh again when this ends.
set -euo pipefail
program=$(realpath "$1")
repository=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "wheel_test: $*"; exit 1; }
unset PYTHONPATH PYTHONHOME

venv=$repository/build/package/fresh
[[ -d $venv ]] || { echo "wheel_test: skipped, tools/package_tools has not made build/package/fresh"; exit 77; }
# Two builds may test at once.
if command -v flock >/dev/null; then exec 9>"$venv.lock" && flock 9; fi
"$repository/tools/make_wheel" "$program" "$work"
bin=$venv/bin
pip() { "$bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
pip install --no-index --force-reinstall "$work"/plimsoll-*.whl
trap 'pip uninstall --yes plimsoll >/dev/null 2>&1; rm -rf "$work"' EXIT

# Away from the repository, where another plimsoll could be imported.
cd "$work"
snapshot=$repository/tests/data/snapshots/unet_adam_fp32_oom.pickle.xz
"$bin/plimsoll" explain "$snapshot" >installed
"$program" explain "$snapshot" | cmp - installed || fail "the installed program answers otherwise"
"$bin/python" - "$("$bin/plimsoll" --version)" <<'PYTHON'
import importlib.metadata
import importlib.util
import pathlib
import sys

import plimsoll

assert importlib.util.find_spec("torch") is None, "not a fresh environment"
versions = {sys.argv[1], plimsoll.__version__, importlib.metadata.version("plimsoll")}
assert len(versions) == 1, versions
folder = pathlib.Path(plimsoll.__file__).parent
for name in ("world/phantom.cc", "asking/stand_in.c", "recording/hook/plimsoll_history.py", "py.typed"):
    assert (folder / name).is_file(), name
assert not importlib.metadata.requires("plimsoll")
PYTHON
for file in man/man1/plimsoll.1 man/man1/plimsoll-explain.1 bash-completion/completions/plimsoll \
  zsh/site-functions/_plimsoll fish/vendor_completions.d/plimsoll.fish; do
  [[ -s $venv/share/$file ]] || fail "share/$file is not installed"
done

pip uninstall --yes plimsoll
left=$(cd "$venv" && find . -ipath '*plimsoll*' ! -type d)  # pip leaves empty folders of data behind
[[ -z $left ]] || fail "uninstalling leaves" $left
echo "wheel_test: installed, explained, imported, uninstalled"
