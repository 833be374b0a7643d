"""The cuDNN that is asked, and what has to stand beside it."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from ..base.compiling import build, cache, first_found

SOURCE = Path(__file__).with_name("stand_in.c")
#: Of CUDA 12 and 13.
_STAND_INS = ("libcublasLt.so.13", "libcublasLt.so.12")
_NAME = "libcudnn.so.9"


class NoStandIn(Exception):
    """Why it could not be compiled."""


def find_library() -> Path | None:
    """In the folder that `$PLIMSOLL_CUDNN` names, or beside torch as its wheel brings it."""
    named = os.environ.get("PLIMSOLL_CUDNN")
    if named == "none":
        return None
    if named:
        folders = [Path(named), Path(named) / "lib"]
    else:
        folders = [Path(entry) / "nvidia" / "cudnn" / "lib" for entry in sys.path if entry]
    return next((folder / _NAME for folder in folders if (folder / _NAME).exists()), None)


def stand_in_folder() -> Path:
    """Compiled once, and kept."""
    key = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = cache() / f"cublaslt-{key}"
    for name in _STAND_INS:
        if (folder / name).exists():
            continue
        compiler = first_found(os.environ.get("CC"), "cc", "gcc", "clang")
        if compiler is None:
            raise NoStandIn("no C compiler is here")
        flags = ["-O1", "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}"]
        error = build([compiler, str(SOURCE), *flags], folder / name)
        if error:
            raise NoStandIn(error)
    return folder
