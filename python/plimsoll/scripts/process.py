"""Runs a script's file under a recording, at one batch size, in a process of its own.

command.py starts it. The process ends where enough was seen, from within the script and without
going back through it: no handler of the script is run, no checkpoint written, nothing sent.
Everything that ends it is `NoReturn`, and comes to `_leave`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import sys
import time
import traceback
from types import CodeType, TracebackType
from typing import Callable, NoReturn

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ..base.errors import CaptureError, in_a_line
from ..base.gpus import capability
from ..base.notes import Notes
from ..base.patching import Patch, patched
from ..base.places import current_line, in_own_file, line_of
from ..base.seed import fixed_seed
from ..capturing.api import settings_of_torch
from ..capturing.attention import attention_as_one_call, flex_attention_as_one_call
from ..capturing.cells import cells_without_data
from ..capturing.compiling import Compiling
from ..capturing.garbage import collector_paused, freeze
from ..capturing.optimizers import no_overflow
from ..capturing.recurrent import recurrent_as_one_call
from ..capturing.torch_errors import clear_errors
from ..events.event import Parameter, Recorded
from ..events.pieces_of_run import NotEven
from ..isolation.network import Refusals, guarded
from ..knowledge.values import Values
from ..world.device import phantom_device
from ..world.draws import Draws
from ..world.libraries import libraries_not_tracing
from ..world.model import building
from ..world.phantom import prepare
from ..world.quantized import products_of_quantized_weights
from ..world.surroundings import surroundings
from .autocast import Autocast
from .checkpoints import LibrariesFiles
from .files import SavedFiles
from .generating import Generating, is_there
from .later import EVALUATION
from .notebook import is_notebook, run_notebook
from .progress import Progress
from .run import STEPS, Failure, NotFollowed, Outcome, Run, RunResult, write_outcome
from .schedules import brought_forward
from .script_places import ScriptPlaces
from .script_recorder import ScriptRecorder
from .stand_ins import ScriptSettings, world
from .watch import Watch

#: What is noted of them takes some gigabytes: a script that does more does not come to its steps.
MOST_CALLS = 4_000_000
_TOLD_EVERY = 256
#: Branches that are named.
_MOST_SHOWN = 4
#: Of the processor: a script that trains nothing is followed for so long.
SERVED_SECONDS = 150.0


class _Process:
    """One run, from the script's first line to the end of the process."""

    def __init__(self, place: str, run: Run, progress: Progress, held: list[Patch]) -> None:
        self._place = place
        self._run = run
        self._progress = progress
        self._calls = 0
        #: The script came to its last line, or to where it could not go on.
        self._ended = False
        self._lost_at = self._lost_by = ""
        self._notes = Notes()
        self._settings = ScriptSettings()
        self._files = SavedFiles()
        self._held = held
        self._places = ScriptPlaces()
        values = Values(self._notes, has_data=True, stated=run.stated)
        self._recorder = ScriptRecorder(self._places, values)
        self._recorder.on_call = self._count
        # The order of shuffled data matters where many steps are followed.
        self._recorder.draws = Draws() if run.steps > STEPS else None
        self._contexts = contextlib.ExitStack()
        self._refusals = Refusals()
        self._compiling = Compiling(run.gpu, self._notes, run.compiles, os.path.dirname(place))
        self._capability = capability(run.gpu) or (9, 0)
        if capability(run.gpu) is None:
            self._notes(f"GPU {run.gpu} is not known; attention as on an H200 is assumed")
        # Libraries before the watch: what they are told counts in the model's first forward.
        self._libraries_are_patched = False
        self._places.call_at_model(self._patch_libraries)
        self._watch = Watch(
            self._recorder,
            self._places,
            self._notes,
            self.finish,
            run.steps,
            run.seconds,
            run.data_seconds,
            run.whole,
            run.left_alone,
        )
        self._autocast = Autocast(run.autocast)
        self._watch.before_forward = self._autocast.begin
        self._watch.before_optimizer = self._autocast.end
        self._watch.on_arrival = self._patch_generation
        self._generation_is_patched = False
        self._libraries_files = LibrariesFiles(
            self._notes, self._watch, self._files, self._settings
        )
        # A checkpoint may be loaded before the first forward, into models and optimizers.
        self._watch.on_optimizer = self._patch_files

    def execute(self) -> None:
        """As far as the script's last line. Mostly `finish` is called before."""
        run, settings = self._run, self._settings
        watch = self._watch
        around = world(
            run.loader_batch,
            run.stretch,
            self._notes,
            settings,
            watch.fetching.fetched,
            watch,
            self._files,
        )
        with self._contexts as stack:
            for context in (
                patched(self._held),
                phantom_device(run.gpu),
                collector_paused(),
                fixed_seed(),
                building(self._recorder.draws),
                self._compiling,
                surroundings(self._notes, self._compiling.patches()),
                around,
                FakeTensorMode(allow_non_fake_inputs=True),
                attention_as_one_call(self._recorder, self._capability),
                recurrent_as_one_call(self._recorder),
                cells_without_data(),
                no_overflow(),
                self._places,
                self._compiling.of(self._recorder, self._places),
                self._recorder,
                self._watch.watching(),
                self._autocast.watching(),
                clear_errors(self._notes),
                patched(watch.patches()),
                patched([] if run.allow_network else guarded(self._refusals)),
            ):
                stack.enter_context(context)  # type: ignore[arg-type]
            try:
                _execute(run.words, watch.coming_due.marked_code)
            except SystemExit as end:
                if end.code and not watch.steps:
                    raise CaptureError(_said_at_exit(end.code)) from end
            except Exception as error:
                if not watch.later.begun:
                    raise
                # It ran without values, and its steps are known.
                self._lost_at = line_of(error) or "its code"
                self._lost_by = in_a_line(error)
            self._ended = True
            watch.script_ended()
            self.finish()

    def _patch_libraries(self, model: nn.Module) -> None:
        """The script imports them; by its first forward it has."""
        if not self._libraries_are_patched:
            self._libraries_are_patched = True
            self._contexts.enter_context(libraries_not_tracing())
            self._contexts.enter_context(
                products_of_quantized_weights(self._notes, self._run.stated)
            )
            self._contexts.enter_context(patched(brought_forward(self._watch)))
            self._patch_files()
            self._contexts.enter_context(
                flex_attention_as_one_call(self._recorder, self._capability, self._notes)
            )

    def _patch_generation(self) -> None:
        """Something comes to the device: the model, or what it is asked about."""
        if self._generation_is_patched or not is_there():
            return
        self._generation_is_patched = True
        watch = self._watch
        made = Generating(watch.serving, self._notes, lambda: watch.serves, self._run.whole)
        self._contexts.enter_context(patched(made.patches()))

    def _patch_files(self) -> None:
        self._contexts.enter_context(patched(self._libraries_files.patches()))

    def _count(self) -> None:
        self._calls += 1
        if self._calls % _TOLD_EVERY == 0:
            beyond = self._watch.later.begun
            self._progress.tell(self._watch.steps, self._calls, beyond)
            if beyond:
                self._watch.later.check_time()
            elif time.process_time() > SERVED_SECONDS and self._watch.has_served:
                self._lost_at = current_line() or "there"
                self._lost_by = f"it computes for more than {SERVED_SECONDS:.0f} seconds"
                self.finish()
        if self._calls > MOST_CALLS:
            self.fail(
                CaptureError(
                    f"the script ran {MOST_CALLS:,} operators on the GPU before {STEPS} training "
                    "steps were seen",
                    hint="Give arguments with which it begins to train at once",
                )
            )

    # The end.

    def finish(self) -> NoReturn:
        """With what was seen."""
        self._watch.is_over = True
        try:
            result = self._result()
        except CaptureError as error:
            self.fail(error)
        _leave(self._place, result)

    def fail(self, error: CaptureError) -> NoReturn:
        """A script to which a connection was refused may have ended because of that."""
        failure = Failure.of(error)
        _leave(self._place, failure._replace(hint=failure.hint or self._refusals.hint))

    def _result(self) -> RunResult:
        watch, recorder = self._watch, self._recorder
        data = watch.fetching.data
        recorder.finish()
        serves = bool(watch.models.roots) and watch.has_served
        uneven = False
        try:
            events = watch.served() if serves else []
        except NotEven:
            events, uneven = [], True
        if watch.steps and watch.models.roots:
            events = watch.events()
        if not uneven:
            self._check(serves, any(isinstance(event, Parameter) for event in events))
        if serves:
            self._note_served()
        else:
            self._note_steps()
        self._run.stated.note_unused(self._notes)
        recorded = Recorded(events, recorder.layouts)
        return RunResult(
            recorded,
            type(watch.models.roots[0]).__name__,
            self._notes.texts,
            {**settings_of_torch(), **self._settings.settings(watch.models.roots)},
            str(torch.__version__),
            self._settings.batch_sizes,
            watch.passes,
            watch.keeper,
            watch.host_peaks(),
            watch.later.epoch,
            self._lost_at,
            data.result() if data is not None and data.seen else None,
            self._compiling.asked,
            serves,
            uneven,
            watch.coming_due.growing,
            watch.coming_due.left | (watch.coming_due.turned if self._lost_at else frozenset()),
            self._not_followed(serves),
            self._autocast.is_used,
            self._autocast.set_by,
            recorder.lists,
            recorder.gradient_uses.lines,
            recorder.counted.shares,
        )

    def _not_followed(self, serves: bool) -> list[NotFollowed]:
        """What was not followed."""
        watch = self._watch
        found = watch.coming_due.not_followed() + watch.optimizers.not_followed()
        found += watch.loops.not_followed()
        found += [
            NotFollowed.at(one, f"{one} may leave more on the GPU each time that it is due")
            for one in watch.coming_due.may_grow()
        ]
        found = [] if serves else found
        if watch.later.ended_at is not None:
            found.append(NotFollowed.at(watch.later.ended_at, "the script was followed no further"))
        if self._lost_by:
            what = f"the script could not be followed further ({self._lost_by})"
            found.append(NotFollowed.at(self._lost_at, what))
        return found

    def _note_served(self) -> None:
        if self._lost_at:
            self._notes(
                f"the script could not be followed to its end ({self._lost_at}: {self._lost_by}); "
                "what comes there is not counted"
            )
        if self._watch.serving.uneven_batches:
            self._notes(
                "a loader was followed for its first batches, which are of different sizes, as the "
                "data are; others may take more"
            )

    def _note_steps(self) -> None:
        if self._watch.steps < STEPS:
            self._notes(
                f"the script ended within its first {STEPS} training steps; the whole ones count"
            )
        self._note_later()
        self._watch.optimizers.note_waiting(self._notes)

    def _note_later(self) -> None:
        """What was seen behind the steps, and what was not."""
        later = self._watch.later
        self._name("followed once, as if it were due", self._watch.coming_due.came_sooner())
        self._name(
            "leaves something on the GPU, and may leave as much each time that it is due",
            self._watch.coming_due.may_grow(),
        )
        not_reached = self._watch.coming_due.not_reached()
        self._name("not reached in the steps that were followed", not_reached)
        if self._lost_at:
            self._notes(
                "the script could not be followed to its end without values; what comes there is "
                f"not counted ({self._lost_at}: {self._lost_by})"
            )
        elif EVALUATION not in later.stages and not self._watch.has_evaluated:
            self._notes(
                "the script was followed to its end, of long loops the first batches alone, and no "
                "evaluation was seen"
                if self._ended
                else "only the first training steps were seen: an evaluation later in the script "
                "is not counted"
            )

    def _name(self, what: str, branches: list[str]) -> None:
        if branches:
            more = len(branches) - _MOST_SHOWN
            shown = ", ".join(branches[:_MOST_SHOWN]) + (f", and {more} more" if more > 0 else "")
            self._notes(f"{what}: {shown}")

    def _check(self, serves: bool, has_parameters: bool) -> None:
        if not self._watch.steps and not serves:
            raise CaptureError(
                "the script ended without a step of an optimizer, and computed nothing with a "
                "model that is not in training",
                hint="Give the arguments with which it trains, or evaluates in eval() mode",
            )
        if not has_parameters:
            raise CaptureError(
                f"no model on the GPU was seen to {'compute' if serves else 'train'}",
                hint="Give the arguments with which the script runs on cuda; a GPU need not be "
                "in this machine",
            )


def _leave(place: str, outcome: Outcome) -> NoReturn:
    write_outcome(place, outcome)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the script may have closed it
            stream.flush()
    # What Python does at an exit: nobody is left behind.
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(2 if isinstance(outcome, Failure) else 0)


def _said_at_exit(code: object) -> str:
    """Of `sys.exit(3)` or `sys.exit("no data")`."""
    if isinstance(code, int):
        return f"the script ended itself with exit code {int(code)}"
    return "the script ended itself: " + " ".join(str(code).split())


def _execute(words: list[str], code_of: Callable[[bytes, str], CodeType | None]) -> None:
    """`code_of`: of a cell of a notebook."""
    if is_notebook(words[0]):
        sys.argv = list(words)
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        run_notebook(words[0], code_of)
    elif words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        runpy.run_path(words[0], run_name="__main__")


def load_all() -> None:
    """Before processes are forked: what takes long to import, also where it is used alone. The
    collector does not look through it again in each of them, so that they share its memory."""
    prepare()
    FakeTensorMode()
    freeze()


def run_script(place: str, run: Run, progress: Progress, held: list[Patch]) -> NoReturn:
    """`place`: the file that the outcome is written to. `held`: what guards files."""
    if sys.path[0] in ("", os.getcwd()):
        del sys.path[0]  # where `python -m` looks first, and `python train.py` does not
    process = _Process(place, run, progress, held)
    try:
        process.execute()
        process.finish()
    except CaptureError as error:
        process.fail(error)
    except BaseException as error:
        traceback.print_exception(type(error), error, _in_script(error.__traceback__))
        process.fail(CaptureError(in_a_line(error), where=line_of(error)))


def _in_script(trace: TracebackType | None) -> TracebackType | None:
    """Without what stands above the script: this module and runpy."""
    inner = trace
    while inner is not None and not in_own_file(inner.tb_frame.f_code):
        inner = inner.tb_next
    return inner or trace
