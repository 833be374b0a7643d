#!/bin/bash
# pip install as a stranger does it, from the source distribution and with nothing built before: takes minutes
# and, unless pip is told of a folder with scikit-build-core, the network. Run by make nightly.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$PWD/build/package/venv
[[ -f $venv/ready ]] || { echo "source_test: skipped, tools/package_tools has not made build/package/venv"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$venv/bin/python" -c "from scikit_build_core import build; build.build_sdist('$work')" >"$work/log" 2>&1 ||
  { cat "$work/log"; exit 1; }
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --quiet --disable-pip-version-check install "$work"/plimsoll-*.tar.gz
tools/check_portable "$work/venv/bin/plimsoll"
"$work/venv/bin/plimsoll" explain tests/data/snapshots/unet_adam_fp32_oom.pickle.xz >"$work/answer"
cd "$work"
venv/bin/python -c 'import plimsoll'
echo "source_test: installed from $(echo plimsoll-*.tar.gz), $(stat -c %s plimsoll-*.tar.gz) bytes"
