"""Functions called in processes in which torch is loaded and nothing of it was used yet.

A script's runs are forked, which torch's autograd does not take once it has threads, as in pytest.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

import plimsoll
from plimsoll.base.errors import CaptureError
from plimsoll.scripts.process import load_all

load_all()
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


class Outcome(NamedTuple):
    value: Any
    said: str


def _call(to: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            value = function(*arguments)
        to.send(Outcome(value, said.getvalue()))
    except CaptureError as error:
        to.send({"what": error.what, "where": error.where, "hint": error.hint})


def started(function: Callable[..., Any], *arguments: Any) -> ForkServerProcess:
    """The process, running."""
    package = Path(plimsoll.__file__).parents[1]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), str(package)])
    process = _context.Process(target=function, args=arguments)
    process.start()
    return process


def fresh(function: Callable[..., Any], *arguments: Any) -> Outcome:
    """What it returns and writes to stderr; a CaptureError comes through."""
    ours, theirs = _context.Pipe()
    process = started(_call, theirs, function, arguments)
    theirs.close()
    try:
        outcome = ours.recv()
    except EOFError:
        sys.exit(f"{function} ended its process")
    finally:
        process.join()
    if isinstance(outcome, Outcome):
        return outcome
    raise CaptureError(**outcome)
