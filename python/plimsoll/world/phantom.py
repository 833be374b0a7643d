"""Builds and loads the phantom device (`phantom.cc`): a CUDA device that is not there.

It is compiled once for each torch, in a few seconds, with the system's C++ compiler, and kept in
`$PLIMSOLL_CACHE` or `~/.cache/plimsoll`. `$PLIMSOLL_PHANTOM` names one that is built already
(`src/phantom` in CMake builds it).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..base.compiling import build, cache, first_found
from ..base.errors import CaptureError

OLDEST = (2, 4)
SOURCE = Path(__file__).with_name("phantom.cc")

_library: ctypes.CDLL | None = None
_depth = 0


def require_torch() -> Any:
    """The torch module, or an error that says what to install."""
    try:
        import torch
    except ImportError as error:
        raise CaptureError(
            "torch is not installed here",
            hint="Capture runs your own code: pip install torch (the CPU build is enough)",
        ) from error
    if release(torch.__version__) < OLDEST:
        raise CaptureError(
            f"torch {torch.__version__} is too old",
            hint="Capture needs torch 2.4 or newer; the CPU build is enough",
        )
    return torch


def release(version: str) -> tuple[int, int]:
    """(2, 13) of "2.13.0+cpu"."""
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """While this is open torch believes in one CUDA device."""
    global _depth
    library = load()
    if _depth == 0:
        library.plimsoll_phantom_install()
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if _depth == 0:
            library.plimsoll_phantom_remove()


def prepare() -> None:
    """Compiles the library, if need be: for processes that can keep no file."""
    if not os.environ.get("PLIMSOLL_PHANTOM"):
        _compiled(require_torch())


def load() -> ctypes.CDLL:
    """The library for the torch that is here, compiled if need be."""
    global _library
    if _library is None:
        torch = require_torch()
        named = os.environ.get("PLIMSOLL_PHANTOM")
        library = ctypes.CDLL(named if named else str(_compiled(torch)))
        library.plimsoll_phantom_torch.restype = ctypes.c_char_p
        built_for = library.plimsoll_phantom_torch().decode()
        if release(built_for) != release(torch.__version__):
            raise CaptureError(
                f"{named} was built for torch {built_for}, and torch {torch.__version__} is here",
                hint="Unset PLIMSOLL_PHANTOM, or build it again",
            )
        _library = library
    return _library


def _flags(torch: Any) -> list[str]:
    root = Path(torch.__file__).parent
    include = root / "include"
    return [
        "-std=c++20",
        "-O1",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{include}",
        f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}",
        f"-L{root / 'lib'}",
        "-lc10",
        "-ltorch_cpu",
        f"-Wl,-rpath,{root / 'lib'}",
    ]


def _compiled(torch: Any) -> Path:
    flags = _flags(torch)
    key = hashlib.sha256(SOURCE.read_bytes() + "\0".join([torch.__version__, *flags]).encode())
    target = cache() / f"phantom-{torch.__version__}-{key.hexdigest()[:16]}.so"
    if not target.exists():
        _compile(torch, flags, target)
    return target


def _compiler() -> str:
    found = first_found(os.environ.get("CXX"), "c++", "g++", "clang++")
    if found:
        return found
    raise CaptureError(
        "no C++ compiler is here, and the phantom device has to be compiled once for your torch",
        hint="Install one (Debian and Ubuntu: apt install g++), or name it in CXX",
    )


def _compile(torch: Any, flags: list[str], target: Path) -> None:
    command = [_compiler(), str(SOURCE), *flags]
    print(f"plimsoll: compiling the phantom device for torch {torch.__version__}", file=sys.stderr)
    error = build(command, target)
    if error:
        raise CaptureError(
            f"the phantom device does not compile against torch {torch.__version__}: {error}",
            hint="torch 2.4 to 2.15 are tried, with g++ 11 or clang 14 and newer",
        )
