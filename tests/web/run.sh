#!/bin/bash
# The browser tests with a Python that has Selenium: tests/web/run.sh PROGRAM
# Debian's python3-selenium belongs to Debian's Python, which need not be the first on PATH.
set -euo pipefail
program=$(realpath "$1")
for python in /usr/bin/python3 python3; do
  if "$python" -c 'import selenium' 2>/dev/null; then
    exec "$python" "$(dirname "$0")/page_test.py" "$program"
  fi
done
echo "SKIPPED: no Python with Selenium (Debian: python3-selenium), which drives the browser"
exit 77
