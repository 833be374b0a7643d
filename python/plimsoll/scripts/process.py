"""Runs a script's file under a recording, at one batch size, in a process of its own.

script.py forks it. The process ends where enough was seen, without going back through the script:
no handler of it is run, no checkpoint written, nothing sent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import runpy
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..base.errors import CaptureError
from ..base.gpus import capability
from ..base.notes import Notes
from ..base.places import in_own_file, line_of
from ..base.seed import fixed_seed
from ..capturing.api import clear_errors, garbage_waits, settings_of_torch
from ..capturing.attention import attention_told, flex_attention_told
from ..capturing.optimizers import nothing_overflows
from ..capturing.recurrent import recurrent_told
from ..knowledge.values import Values
from ..world.device import phantom_device
from ..world.libraries import unaware_libraries
from ..world.model import building
from ..world.surroundings import surroundings
from .stand_ins import Asked, Stretch, world
from .watch import STEPS, ScriptPlaces, ScriptRecorder, Watch


class _Run:
    def __init__(self, result: str, batch: int | None, gpu: str, stretch: Stretch | None) -> None:
        self._result = result
        self._batch = batch
        self._stretch = stretch
        self._gpu = gpu
        self._notes = Notes()
        self._asked = Asked()
        places = ScriptPlaces()
        self._recorder = ScriptRecorder(places, Values(self._notes, has_data=True))
        self._places = places
        self._watch = Watch(self._recorder, places, self._notes, self._done)
        self._contexts = contextlib.ExitStack()
        self._capability = capability(gpu) or (9, 0)
        if capability(gpu) is None:
            self._notes(f"GPU {gpu} is not known; attention as on an H200 is assumed")

    def script(self, words: list[str]) -> None:
        """`train.py ARGUMENTS` or `-m MODULE ARGUMENTS`."""
        with self._contexts as stack:
            for context in (
                phantom_device(self._gpu),
                garbage_waits(),
                fixed_seed(),
                building(),
                surroundings(self._notes),
                world(self._batch, self._stretch, self._notes, self._asked, self._watch.fetched),
                FakeTensorMode(allow_non_fake_inputs=True),
                attention_told(self._recorder, self._capability),
                recurrent_told(self._recorder),
                nothing_overflows(),
                self._telling_libraries(),
                self._places,
                self._recorder,
                self._watch.watching(),
                clear_errors(self._notes),
            ):
                stack.enter_context(context)  # type: ignore[arg-type]
            try:
                _execute(words)
            except SystemExit as end:
                if end.code and not self._watch.steps:
                    raise CaptureError(f"the script ended itself: exit code {end.code}") from end
            self._watch.script_ended()
            self._done()

    @contextlib.contextmanager
    def _telling_libraries(self) -> Iterator[None]:
        """They are imported by the script; by its first forward they are."""
        found = self._places.on_root

        def first(module: torch.nn.Module) -> None:
            if not self._watch.roots:
                self._contexts.enter_context(unaware_libraries())
                self._contexts.enter_context(
                    flex_attention_told(self._recorder, self._capability, self._notes)
                )
            found(module)

        self._places.on_root = first
        yield

    def _done(self) -> None:
        """Writes what was seen, and ends the process."""
        watch, recorder = self._watch, self._recorder
        recorder.finish()
        self._check()
        if watch.steps < STEPS:
            self._notes(f"the script ended within its first {STEPS} steps; the whole ones are told")
        self._notes(
            "told are the first steps; what comes later, such as a validation, is not in it"
        )
        watch.tell_of_waiting()
        self.write(
            {
                "events": watch.events(),
                "layouts": recorder.layouts,
                "model": type(watch.roots[0]).__name__,
                "notes": self._notes.texts,
                "settings": {**settings_of_torch(), **self._asked.settings(watch.roots)},
                "torch": str(torch.__version__),
                "loaders": self._asked.batch_sizes,
                "passes": watch.passes,
            }
        )
        leave(0)

    def _check(self) -> None:
        watch = self._watch
        if not watch.steps:
            raise CaptureError(
                "the script ended without a step of an optimizer",
                hint="A training script is needed, with the arguments with which it trains",
            )
        if not watch.roots or not any(e[0] == "parameter" for e in watch.events()):
            raise CaptureError(
                "no model on the GPU was seen to train",
                hint="Give the arguments with which the script trains on cuda; a GPU need not be "
                "in this machine",
            )

    def write(self, what: dict[str, Any]) -> None:
        with open(self._result, "wb") as file:
            pickle.dump(what, file)


def leave(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the script may have closed it
            stream.flush()
    # What Python does at an exit: nobody is left behind.
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(code)


def _execute(words: list[str]) -> None:
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        runpy.run_path(words[0], run_name="__main__")


def load_all() -> None:
    """Of what is imported only where it is used, what takes long."""
    FakeTensorMode()


def run_script(
    result: str,
    words: list[str],
    loader_batch: int | None,
    gpu: str,
    stretch: tuple[int, int] | None,
) -> None:
    """Does not return."""
    if sys.path[0] in ("", os.getcwd()):
        del sys.path[0]  # where `python -m` looks first, and `python train.py` does not
    run = _Run(result, loader_batch, gpu, Stretch(*stretch) if stretch else None)
    try:
        run.script(words)
    except CaptureError as error:
        run.write({"error": {"what": error.what, "where": error.where, "hint": error.hint}})
        leave(2)
    except BaseException as error:
        traceback.print_exception(type(error), error, _in_script(error.__traceback__))
        what = f"{type(error).__name__}: {first_line(error)}"
        run.write({"error": {"what": what, "where": line_of(error), "hint": None}})
        leave(2)


def _in_script(trace: TracebackType | None) -> TracebackType | None:
    """Without what stands above the script: this module and runpy."""
    inner = trace
    while inner is not None and not in_own_file(inner.tb_frame.f_code):
        inner = inner.tb_next
    return inner or trace


def first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else ""
