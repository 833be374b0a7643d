"""By which means a script is held back: namespaces where the kernel allows them, Python else."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

from ..base.errors import in_a_line
from ..base.patching import Patch
from .changes import Changes
from .guard import Guard
from .layers import remove_layers
from .namespaces import isolate

#: For tests, and for machines whose kernel says yes and then does not work.
_CHOICE = "PLIMSOLL_ISOLATION"
#: What is compiled is written to them, and found there by compilers.
_CACHES = ("~/.cache/torch_extensions", "~/.triton")
#: Seconds.
_PATIENCE = 60.0
_ROOT, _USER, _GUARD, _OFF = "root", "user", "guard", "off"


class Means(NamedTuple):
    """Empty: Python's own functions alone."""

    files: str = ""
    network: str = ""
    #: Why there is no namespace for them.
    why_not: str = ""
    #: Nothing is held back.
    is_off: bool = False


def choose(allow_network: bool) -> Means:
    """What works here is found by trying, in a process that ends with it."""
    wanted = os.environ.get(_CHOICE, "")
    if wanted in (_GUARD, _OFF):
        return Means(why_not=f"{_CHOICE} is {wanted}", is_off=wanted == _OFF)
    ways = [wanted] if wanted in (_ROOT, _USER) else [_USER]
    if not wanted and os.geteuid() == 0:
        ways = [_ROOT, _USER]
    why_not = ""
    for files in (True, False):
        network = not allow_network
        for way in ways if files or network else []:
            problem = _tried(way, files, network)
            if not problem:
                return Means(way if files else "", way if network else "", why_not)
            why_not = why_not or problem
    return Means(why_not=why_not)


def enter(means: Means, scratch: str, keep: str) -> list[Patch]:
    """This process, which has one thread, is held back from here on, as far as namespaces do it.
    What guards it beside that. Results go to `keep`."""
    if means.is_off:
        return []
    for way in sorted({means.files, means.network} - {""}):
        isolate(scratch, keep, way == _ROOT, means.files == way, means.network == way)
    changes = tempfile.mkdtemp(dir=keep)
    if means.files:
        return Guard(Changes(changes, (keep,)), after_kernel=True).patches()
    # Other programs find them there.
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(dir=keep)
    return Guard(Changes(changes, (keep, *map(os.path.expanduser, _CACHES)))).patches()


@contextlib.contextmanager
def scratch_folder(inside: str, name: str) -> Iterator[str]:
    """For the changes of one process; gone with them."""
    path = os.path.join(inside, name)
    os.mkdir(path)
    try:
        yield path
    finally:
        remove_layers(path)


def _tried(way: str, files: bool, network: bool) -> str:
    """What is in the way; empty if nothing is."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
        with scratch_folder(folder, "layers") as scratch:
            keep = os.path.join(folder, "keep")
            os.mkdir(keep)
            answer = os.path.join(keep, "answer")
            child = os.fork()
            if child == 0:
                _try(way, files, network, scratch, keep, answer)
            if not _ends(child):
                return f"a file system did not answer within {_PATIENCE:.0f} s"
            with contextlib.suppress(OSError), open(answer) as file:
                return file.read()
            return "the results of a namespace cannot be read"


def _ends(child: int) -> bool:
    """A file system whose server is gone holds a process for ever, even one that is killed."""
    end = time.monotonic() + _PATIENCE
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            return False
        time.sleep(0.01)
    return True


def _try(way: str, files: bool, network: bool, scratch: str, keep: str, answer: str) -> None:
    """In a process of its own. Does not return."""
    try:
        told = ""
        try:
            isolate(scratch, keep, way == _ROOT, files, network)
        except Exception as error:
            told = in_a_line(error)
        with open(answer, "w") as file:
            file.write(told)
    finally:
        os._exit(0)


def weaker(means: Means, allow_network: bool) -> str:
    """What is not held back by this machine's kernel, in a sentence."""
    if means.is_off:
        return f"{means.why_not}: what the script writes and sends is written and sent"
    missing = [] if means.files else ["files"]
    if not means.network and not allow_network:
        missing.append("connections")
    return (
        f"no namespace can be made for {' and '.join(missing)} ({means.why_not}): Python's own "
        "functions are guarded, and what other programs and libraries in C do is not held back"
    )
