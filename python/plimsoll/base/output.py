"""Files that are written: looked at before the work, and replaced whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable

from .errors import CaptureError

# What is written here begins with these: JSON, and the same packed by gzip.
_OURS = (b"{", b"\x1f\x8b")
_ANOTHER = "Name another file"


def check_output(path: str | os.PathLike[str], inputs: Iterable[str] = ()) -> None:
    """Raises where the file cannot be written, is one of the inputs, or holds something that was
    not written here: a script, say."""
    try:
        there: os.stat_result | None = os.stat(path)
    except FileNotFoundError:
        there = None
    except OSError as error:
        raise _cannot_write(path, error) from error
    if there is not None and not stat.S_ISREG(there.st_mode):
        if not _is_open_here(there) and os.path.realpath(path) != os.devnull:
            raise CaptureError(f"{os.fspath(path)} is no regular file", hint=_ANOTHER)
        return
    try:
        _check_content(path, there, inputs)
        with tempfile.NamedTemporaryFile(dir=_folder(path)):  # write_whole makes one too
            pass
    except OSError as error:
        raise _cannot_write(path, error) from error


def _is_open_here(there: os.stat_result) -> bool:
    """Such as /dev/stdout and the pipes of a shell. Any other pipe would wait for a reader."""
    for number in range(256):
        with contextlib.suppress(OSError):
            if os.path.samestat(there, os.fstat(number)):
                return not stat.S_ISDIR(there.st_mode)
    return False


def _check_content(
    path: str | os.PathLike[str], there: os.stat_result | None, inputs: Iterable[str]
) -> None:
    if there is None:
        return
    for name in inputs:
        with contextlib.suppress(OSError):
            if os.path.samestat(there, os.stat(name)):
                raise CaptureError(f"{os.fspath(path)} is read as well", hint=_ANOTHER)
    with open(path, "rb") as file:
        begin = file.read(2)
    if begin and not begin.startswith(_OURS):
        raise CaptureError(
            f"{os.fspath(path)} is there, and plimsoll has not written it", hint=_ANOTHER
        )


def _cannot_write(path: str | os.PathLike[str], error: OSError) -> CaptureError:
    return CaptureError(
        f"{os.fspath(path)} cannot be written: {error.strerror}",
        hint="Name a file in a folder in which you may write",
    )


def _folder(path: str | os.PathLike[str]) -> str:
    return os.path.dirname(os.path.realpath(path))


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """A file that is there stays as it is until the new one is whole."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as pipe:
            pipe.write(content)
        return
    handle, part = tempfile.mkstemp(dir=_folder(path), prefix=".plimsoll-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(part, _mode_of(path))
        os.replace(part, os.path.realpath(path))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def _mode_of(path: str | os.PathLike[str]) -> int:
    """That of the file that is replaced, or that of a new one."""
    with contextlib.suppress(OSError):
        return os.stat(path).st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
