"""The training loop, exactly as a plain one has it.

What is bound to a name until when decides what is freed when: the batch and the loss of one
iteration live until the next one has made its own. Do not tidy the loop in `run` without a thought
for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch.optim import Optimizer

from ..base.batches import moved, spread, tensors_of
from ..base.errors import CaptureError
from ..base.notes import Note
from ..base.places import set_loop
from ..base.precision import Precision
from ..events.recorder import Recorder
from ..world.model import OnDevice
from .compiling import compiled
from .garbage import collect_after_step
from .optimizers import new_scaler, remade, state_tensors
from .phases import mark_phases
from .release import Attendant


@dataclass(frozen=True)
class Job:
    """What the user gave, besides the model."""

    optimizer: Any
    make_batch: Callable[..., Any]
    loss: Callable[..., torch.Tensor] | None
    train_step: Callable[..., Any] | None
    steps: int
    accumulate: int
    autocast: torch.dtype | None
    scaler: Any


def run(
    job: Job,
    target: OnDevice,
    precision: Precision,
    point: tuple[int, ...],
    recorder: Recorder,
    note: Note,
    attendant: Attendant,
) -> None:
    model = compiled(target.model) if precision.compiled else target.model
    optimizers = remade(job.optimizer, target)
    _label_state(recorder, optimizers)
    scaler = new_scaler(job.scaler if precision.as_written else precision.scaled)
    attendant.attend(recorder, [job.train_step or job.loss, job.make_batch], model)
    with _phases(recorder, model, optimizers, attendant):
        parts: list[Any] = []
        for _ in range(job.steps):
            recorder.step()
            attendant.begin_step()
            for _ in range(job.accumulate):
                recorder.phase("inputs")
                batch = _placed(job, precision, recorder, point)
                # `x, y = ...` lets go of the old ones in this order; a tuple would in reverse.
                while parts:
                    del parts[0]
                parts = list(spread(batch))
                recorder.phase("forward")
                if job.train_step is not None:
                    with cast(job, precision):
                        job.train_step(model, as_given(job, optimizers), batch)
                    continue
                assert job.loss is not None
                with cast(job, precision):
                    loss = (
                        job.loss(model, *spread(batch))
                        if job.accumulate == 1
                        else job.loss(model, *spread(batch)) / job.accumulate
                    )
                _check_loss(loss)
                if attendant.before_backward(batch):
                    batch = None
                    parts.clear()
                (loss if scaler is None else scaler.scale(loss)).backward()
            if job.train_step is None:
                update(optimizers, scaler)
            recorder.phase("other")
            attendant.end_step()
            collect_after_step(recorder, note)
        recorder.finish()  # what dies because the loop ends is not part of a step


set_loop(run.__code__)


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise CaptureError(
            f"`loss` gave back {what} instead of a tensor of one number",
            hint="loss(model, *batch) runs the model and gives back what backward() is called on",
        )


def update(optimizers: list[Optimizer], scaler: Any) -> None:
    for optimizer in optimizers:
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
    if scaler is not None and optimizers:
        scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)


def as_given(job: Job, optimizers: list[Optimizer]) -> Any:
    """One optimizer as such, several as a list, as the user passed them."""
    if isinstance(job.optimizer, (list, tuple)) or len(optimizers) != 1:
        return optimizers
    return optimizers[0]


def cast(job: Job, precision: Precision) -> contextlib.AbstractContextManager[Any]:
    dtype = job.autocast if precision.as_written else precision.autocast
    return contextlib.nullcontext() if dtype is None else torch.autocast("cuda", dtype=dtype)


# Batches.


def _placed(
    job: Job, precision: Precision, recorder: Recorder, point: tuple[int, ...]
) -> Any:
    placed = moved(
        job.make_batch(*point), torch.device("cuda"), precision.weights, precision.channels_last
    )
    recorder.label("input", tensors_of(placed))
    return placed


# Phases and labels, told by hooks so that a loop of the user's own is told as well.


@contextlib.contextmanager
def _phases(
    recorder: Recorder,
    model: torch.nn.Module,
    optimizers: list[Optimizer],
    attendant: Attendant,
) -> Iterator[None]:
    parameters = [p for p in model.parameters() if p.requires_grad]

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        recorder.phase("optimizer")

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        _label_state(recorder, [optimizer])
        attendant.after_optimizer(optimizer)

    with mark_phases(recorder, lambda: parameters, before, after):
        yield


def _label_state(recorder: Recorder, optimizers: list[Optimizer]) -> None:
    for optimizer in optimizers:
        recorder.label("optimizer_state", state_tensors(optimizer))
