"""What is compiled once on the user's machine, and where it is kept: `$PLIMSOLL_CACHE` or
`~/.cache/plimsoll`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def cache() -> Path:
    named = os.environ.get("PLIMSOLL_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plimsoll"


def first_found(*names: str | None) -> str | None:
    """The first of these programs that is here."""
    return next((name for name in names if name and shutil.which(name)), None)


def build(command: list[str], target: Path) -> str | None:
    """Runs a compiler, `-o` and its output put behind. What it complains of, or None."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target and then renamed: another process may be at it as well.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / target.name
        done = subprocess.run([*command, "-o", str(built)], capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            return (errors or [done.stderr.strip() or "no message"])[0]
        os.replace(built, target)
    return None
