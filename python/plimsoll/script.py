"""`python -m plimsoll.script`, and what the program starts for `plimsoll predict --run`."""

from __future__ import annotations

import sys

from .scripts.command import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
