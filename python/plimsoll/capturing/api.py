"""plimsoll.capture: a training step, run on nothing, written down."""

from __future__ import annotations

import gzip
import inspect
import json
import os
from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..asking.answers import add_answers
from ..base.assumptions import Assumptions, parse_assumptions
from ..base.errors import CaptureError, in_a_line
from ..base.gpus import capability
from ..base.lists import GivenLists, of_all
from ..base.notes import Notes
from ..base.output import check_output, write_whole
from ..base.precision import (
    AS_WRITTEN,
    EAGER,
    PRECISIONS,
    Precision,
    Wanted,
    are_known,
    for_a_plan,
    names,
)
from ..base.seed import fixed_seed
from ..events import gradient_uses
from ..events.merge import NOTHING_COMPILED, is_compiled, merged
from ..events.points import LENGTHS, Points
from ..events.recorder import Recorder
from ..events.repeated import Layers, in_all_layers, repeated
from ..events.step_file import Tables
from ..knowledge.values import Values
from ..world.device import phantom_device
from ..world.model import on_device, template
from ..world.surroundings import surroundings
from .compiling import Compiling
from .garbage import collector_paused
from .job import Job, run
from .release import Attendant, Watcher, in_all_events, releases
from .session import recording
from .torch_errors import clear_errors


class Capture:
    """A captured step: what docs/formats/step.md describes."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    @property
    def events(self) -> list[Any]:
        """Of the job as it was written."""
        events: list[Any] = self.document["variants"][0]["events"]
        return events

    @property
    def notes(self) -> list[str]:
        """What had to be assumed, in words."""
        notes: list[str] = self.document["notes"]
        return notes

    @property
    def variants(self) -> list[str]:
        return [variant["precision"] for variant in self.document["variants"]]

    def write(self, path: str | os.PathLike[str]) -> None:
        """As JSON, packed where the name ends in .gz."""
        text = json.dumps(self.document, separators=(",", ":"), allow_nan=False).encode()
        if os.fspath(path).endswith(".gz"):
            text = gzip.compress(text, compresslevel=5, mtime=0)
        write_whole(path, text)

    def __repr__(self) -> str:
        document = self.document
        return (
            f"<plimsoll.Capture of {document['model']}: {len(self.events)} events, "
            f"batches {document['batches']}, {', '.join(self.variants)}>"
        )


def capture(
    model: Any,
    optimizer: Any,
    make_batch: Callable[..., Any],
    loss: Callable[..., torch.Tensor] | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    batches: tuple[int, int] = (2, 3),
    lengths: tuple[int, int, int] | None = None,
    steps: int = 3,
    accumulate: int = 1,
    autocast: torch.dtype | None = None,
    scaler: Any = None,
    gpu: str = "H200",
    precisions: Wanted = (),
    train_step: Callable[..., Any] | None = None,
    channels_last: bool = False,
    assume: str | Assumptions = "",
) -> Capture:
    """Runs a training job on fake tensors at two batch sizes and writes down what it does. Where
    `make_batch` takes a length too, at three lengths.

    Nothing is allocated and no GPU is needed. `docs/capture.md` tells what each argument may be.
    """
    given = dict(locals())
    return capture_of_few_layers(layers=(), **given)


def capture_of_few_layers(
    model: Any,
    optimizer: Any,
    make_batch: Callable[..., Any],
    loss: Callable[..., torch.Tensor] | None,
    *,
    path: str | os.PathLike[str] | None,
    batches: tuple[int, int],
    lengths: tuple[int, int, int] | None,
    steps: int,
    accumulate: int,
    autocast: torch.dtype | None,
    scaler: Any,
    gpu: str,
    precisions: Wanted,
    train_step: Callable[..., Any] | None,
    channels_last: bool,
    assume: str | Assumptions,
    layers: Sequence[Layers],
) -> Capture:
    """The same of a model with few of its layers, each list of which is told as long as it is to
    be. Raises NotAlike where that cannot be."""
    _check(make_batch, loss, train_step, batches, steps, accumulate)
    _check_precisions(precisions, channels_last)
    stated = assume if isinstance(assume, Assumptions) else parse_assumptions(assume)
    points = _points(make_batch, batches, lengths)
    if path is not None:
        check_output(path)
    job = Job(optimizer, make_batch, loss, train_step, steps, accumulate, autocast, scaler)
    notes = Notes()
    if capability(gpu) is None:
        notes(f"GPU {gpu} is not known; attention as on an H200 is assumed")
    if train_step is not None and any(name.startswith("amp_fp16") for name in precisions):
        notes("amp_fp16: train_step calls backward itself; no gradient scaler is put in between")
    compiling = Compiling(gpu, notes)
    with (
        phantom_device(gpu),
        clear_errors(notes),
        collector_paused(),
        compiling,
        surroundings(notes, compiling.patches()),
    ):
        session = _Session(model, job, gpu, notes, points, compiling, stated, layers)
        variants = session.variants(precisions, channels_last)
        session.add_releases()
    stated.note_unused(notes)
    document = {
        **points.head(),
        "torch": str(torch.__version__),
        "gpu": gpu,
        "model": session.name,
        "settings": settings_of_torch(),
        "names_root": True,
        "passes": accumulate,
        **of_all(session.lists).described(),
        **session.tables.document(),
        "variants": variants,
        "notes": notes.texts,
    }
    add_answers(document, notes)
    made = Capture(document)
    if path is not None:
        made.write(path)
    return made


class _Session:
    """One fake mode, in which the model is built once and run once for each point and precision."""

    def __init__(
        self,
        model: Any,
        job: Job,
        gpu: str,
        notes: Notes,
        points: Points,
        compiling: Compiling,
        stated: Assumptions,
        layers: Sequence[Layers],
    ) -> None:
        self._job = job
        self._layers = layers
        self._stated = stated
        self._compiling = compiling
        self._points = points
        self._notes = notes
        self._capability = capability(gpu) or (9, 0)
        self._releases: list[Callable[[], None]] = []
        #: That modules were given, by run.
        self.lists: list[GivenLists] = []
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        with fixed_seed(), self._fake, Recorder(None, Values(notes)):
            self._template, self._compiled = template(model, notes)
        self.name = type(self._template).__name__
        self.tables = Tables(points.inline)

    def variants(self, wanted: Wanted, channels_last: bool) -> list[dict[str, Any]]:
        """The job as it was written first."""
        choice = isinstance(wanted, str)  # ours: what does not run is not what the user asked for
        found = []
        written = [AS_WRITTEN]
        if self._compiled:
            written = [AS_WRITTEN._replace(compiled=True), EAGER]
        for precision in (*written, *self._precisions(wanted, channels_last)):
            if channels_last:
                precision = precision._replace(channels_last=True)
            try:
                variant = self._variant(precision)
            except Exception as error:
                if precision.name == AS_WRITTEN.name or not choice:
                    raise
                self._notes(f"{precision.name} is left out: {in_a_line(error)}")
                continue
            found.append(variant)
        return found

    def _precisions(self, wanted: Wanted, channels_last: bool) -> list[Precision]:
        if not isinstance(wanted, str):
            return [PRECISIONS[name] for name in wanted]
        scalable = self._job.train_step is None
        found = for_a_plan(self._template, self._job.autocast, scalable)
        return [p for p in found if not (p.channels_last and channels_last)]

    def _variant(self, precision: Precision) -> dict[str, Any]:
        tables, points = self.tables, self._points
        watcher = Watcher()
        # What is told of layers that are not there has no place in a trial; and a compiled job
        # would be compiled anew for each.
        tries = not precision.compiled and not self._layers
        attendant = watcher if tries else Attendant()
        first = self._run(precision, points.at[0], attendant)
        runs = [first, *(self._run(precision, point, Attendant()) for point in points.at[1:])]
        events = merged([run.recorded for run in runs], tables, points, self._notes)
        if precision.compiled and not is_compiled(events):
            self._notes(f"{precision.name}: {NOTHING_COMPILED}")
        for layers in self._layers:
            events = repeated(events, layers, tables.layouts)
        variant: dict[str, Any] = {
            "precision": precision.name,
            **({"compiled": True} if precision.compiled else {}),
            **gradient_uses.of_all(run.gradient_uses.lines for run in runs),
            "events": tables.rows(events),
        }

        def add_releases() -> None:
            found = releases(
                watcher, first, self._job.steps, lambda t: self._run(precision, points.at[0], t)
            )
            if found:
                variant["releases"] = [
                    in_all_events(release, first.events).row(tables.string) for release in found
                ]

        # Else they are not the events of the first run.
        if len(events) == len(first.events) and tries:
            self._releases.append(add_releases)
        return variant

    def add_releases(self) -> None:
        """After all that is recorded: a trial changes what the user's objects hold."""
        before = list(self._notes.texts)
        for add in self._releases:
            add()
        self._notes.texts[:] = before

    def _run(
        self, precision: Precision, point: tuple[int, ...], attendant: Attendant
    ) -> Recorder:
        with fixed_seed(), self._fake:
            with Recorder(None, Values(self._notes)):
                target = on_device(self._template, precision)
            around = recording(
                target, self._capability, self._compiling, self._notes, self._stated, self._layers
            )
            with around as recorder:
                run(self._job, target, precision, point, recorder, self._notes, attendant)
        self.lists.append(in_all_layers(recorder.lists, self._layers))
        return recorder


def settings_of_torch() -> dict[str, bool]:
    backends = torch.backends
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled()
        or backends.cudnn.deterministic,
        "cudnn_benchmark": backends.cudnn.benchmark,
        "matmul_tf32": backends.cuda.matmul.allow_tf32,
        "cudnn_tf32": backends.cudnn.allow_tf32,
    }


def _points(
    make_batch: Callable[..., Any],
    batches: tuple[int, int],
    lengths: tuple[int, int, int] | None,
) -> Points:
    """A second argument of `make_batch` is a length, by the name that it has there."""
    name = _second_argument(make_batch)
    if name is None:
        if lengths is not None:
            raise CaptureError(
                "`lengths` is given, and `make_batch` takes no length",
                hint="make_batch(batch_size, length) gives back a batch of this length",
            )
        return Points.of_batches(batches)
    chosen = tuple(lengths or LENGTHS)
    if len(chosen) != 3 or not 1 <= chosen[0] < chosen[1] < chosen[2]:
        raise CaptureError(
            f"`lengths` is {lengths!r}", hint="Give three growing lengths, (128, 192, 256)"
        )
    return Points.of_lengths(batches, chosen, name)


def _second_argument(function: Callable[..., Any]) -> str | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p.name for p in parameters if p.kind in positional and p.default is p.empty]
    return needed[1] if len(needed) > 1 else None


def _check(
    make_batch: Any,
    loss: Any,
    train_step: Any,
    batches: Any,
    steps: int,
    accumulate: int,
) -> None:
    if not callable(make_batch):
        raise CaptureError(
            "`make_batch` is no function",
            hint="It takes a batch size and gives "
            "back a tensor, a tuple or a dictionary of tensors",
        )
    if (loss is None) == (train_step is None):
        raise CaptureError(
            "give either `loss` or `train_step`",
            hint="loss(model, *batch) gives "
            "back a scalar; train_step(model, optimizer, batch) does a whole step",
        )
    if len(batches) != 2 or not 1 <= batches[0] < batches[1]:
        raise CaptureError(f"`batches` is {batches!r}", hint="Give two growing sizes, (2, 3)")
    if steps < 1 or accumulate < 1:
        raise CaptureError("`steps` and `accumulate` are 1 or more")


def _check_precisions(wanted: Wanted, channels_last: bool) -> None:
    if not are_known(wanted):
        raise CaptureError(
            f"`precisions` is {wanted!r}",
            hint=f'Give "plan" for all that a plan can choose from, or a list of these: {names()}',
        )
    if channels_last and not isinstance(wanted, str):
        for name in wanted:
            if PRECISIONS[name].channels_last:
                raise CaptureError(
                    f"`precisions` has {name}, and `channels_last` is set",
                    hint="With channels_last=True everything is captured in that format",
                )
