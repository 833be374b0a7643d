"""Functions run in processes of their own, and everything that those start ended with them.

Between this process and each function stands a keeper, to which Linux hands what the function's
process leaves behind (a "subreaper"). When the function ends, or this process does, in whichever
way, the keeper ends whatever is left: workers, servers for curves, what was put in the background.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Callable

# Of Linux's prctl.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
#: As a shell tells that a signal ended a command.
_BY_SIGNAL = 128


def run_beside(functions: Sequence[Callable[[], None]], waiting: Callable[[], Any]) -> list[int]:
    """Runs the functions at the same time. Their processes' exit codes, as a shell has them.

    `waiting` makes a context, which is open while they run.
    """
    keepers = [_fork(_keep, function) for function in functions]
    try:
        with waiting():
            return [_wait(keeper) for keeper in keepers]
    finally:
        for keeper in keepers:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(keeper, signal.SIGTERM)
                os.waitpid(keeper, 0)


def how_it_ended(code: int) -> str:
    """In words: "ended with 3", "was ended by SIGKILL"."""
    with contextlib.suppress(ValueError):
        if code > _BY_SIGNAL:
            return f"was ended by {signal.Signals(code - _BY_SIGNAL).name}"
    return f"ended with {code}"


def end_with_parent(number: int) -> None:
    """From here on this process gets the signal when its parent ends, even by SIGKILL."""
    _prctl(_PR_SET_PDEATHSIG, number)


def _fork(target: Callable[[Any], None], argument: Any) -> int:
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        end_with_parent(signal.SIGTERM if target is _keep else signal.SIGKILL)
        if os.getppid() == parent:  # else it has ended before it was looked at
            target(argument)
    finally:
        os._exit(1)  # never back into what has called


def _keep(function: Callable[[], None]) -> None:
    """Of the keeper. Does not return."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a key at the terminal is for the first process
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    code = 1
    # A signal between the fork and the `try` would leave the child behind.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child = _fork(_run, function)
    try:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            code = _wait(child)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    finally:  # also where the signal comes just before that line
        _end_all(child)
        os._exit(code)


def _stop(number: int, frame: object) -> None:
    """Once: the parent sends one signal and its end another, which must not interrupt _end_all."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(_BY_SIGNAL + number)


def _run(function: Callable[[], None]) -> None:
    os.setpgid(0, 0)  # with all that it starts
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    function()


def _wait(child: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else _BY_SIGNAL - code


def _end_all(leader: int) -> None:
    """What is orphaned on the way becomes this process's own, so that in the end it has none."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    with contextlib.suppress(OSError):  # a system without such a file has the group alone
        while True:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                children = [int(word) for word in file.read().split()]
            for child in children:
                os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)  # ChildProcessError: there are none


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(option, value)
