"""What `plimsoll hook install` puts into an environment, as the package plimsoll_hook. A line of
plimsoll_hook.pth imports it where PLIMSOLL_RUN names a folder, and nothing otherwise."""

import os
import sys


def _begin():
    # python -E and -I: what the environment says is not for this process.
    if sys.flags.ignore_environment:
        return
    # Under `plimsoll run` its own hook, which is of the same version as the program.
    here = os.environ.get("PLIMSOLL_RUN_HOOK") or os.path.dirname(os.path.abspath(__file__))
    if not os.path.exists(os.path.join(here, "plimsoll_begin.py")):
        return
    sys.path.insert(0, here)
    try:
        begin = __import__("plimsoll_begin").begin
    finally:
        sys.path.remove(here)
    begin()


try:
    _begin()
except Exception:
    pass  # the program must not notice
