"""The training loop, exactly as a plain one has it.

What is bound to a name until when decides what is freed when: the batch and the loss of one
iteration live until the next one has made its own. Do not tidy the loop in `run` without a thought
for that.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.optim.optimizer as optim
from torch.optim import Optimizer

from .errors import CaptureError
from .model import OnDevice, Precision
from .optimizers import new_scaler, remade, state_tensors
from .patching import Patch, patched
from .places import set_loop
from .recorder import Recorder
from .release import Attendant
from .values import Notes


@dataclass(frozen=True)
class Job:
    """What the user gave, besides the model."""

    optimizer: Any
    make_batch: Callable[[int], Any]
    loss: Callable[..., torch.Tensor] | None
    train_step: Callable[..., Any] | None
    steps: int
    accumulate: int
    autocast: torch.dtype | None
    scaler: Any
    channels_last: bool


def run(
    job: Job,
    target: OnDevice,
    precision: Precision,
    batch_size: int,
    recorder: Recorder,
    note: Notes,
    attendant: Attendant,
) -> None:
    model = target.model
    optimizers = remade(job.optimizer, target)
    _label_state(recorder, optimizers)
    scaler = new_scaler(
        True if precision.scaled else job.scaler if _as_written(precision) else None
    )
    attendant.attend(recorder, [job.train_step or job.loss, job.make_batch], model)
    with _phases(recorder, model, optimizers, attendant):
        parts: list[Any] = []
        for _ in range(job.steps):
            recorder.step()
            attendant.begin_step()
            for _ in range(job.accumulate):
                recorder.phase("inputs")
                batch = _placed(job, precision, recorder, batch_size)
                # `x, y = ...` lets go of the old ones in this order; a tuple would in reverse.
                while parts:
                    del parts[0]
                parts = list(_spread(batch))
                recorder.phase("forward")
                if job.train_step is not None:
                    with _cast(job, precision):
                        job.train_step(model, _as_given(job, optimizers), batch)
                    continue
                assert job.loss is not None
                with _cast(job, precision):
                    loss = (
                        job.loss(model, *_spread(batch))
                        if job.accumulate == 1
                        else job.loss(model, *_spread(batch)) / job.accumulate
                    )
                _check_loss(loss)
                if attendant.before_backward(batch):
                    batch = None
                    parts.clear()
                (loss if scaler is None else scaler.scale(loss)).backward()
            if job.train_step is None:
                _update(optimizers, scaler)
            recorder.phase("other")
            attendant.end_step()
            _collect(recorder, note)
        recorder.finish()  # what dies because the loop ends is not part of a step


set_loop(run.__code__)


def _collect(recorder: Recorder, note: Notes) -> None:
    """Python's own collector, which waits while a step runs."""
    before = len(recorder.events)
    gc.collect()
    freed = len(recorder.events) - before
    if freed:
        note(
            f"{freed} tensors of a step are in reference cycles and were let go at its end; "
            "when Python does that is not fixed"
        )


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise CaptureError(
            f"`loss` gave back {what} instead of a tensor of one number",
            hint="loss(model, *batch) runs the model and gives back what backward() is called on",
        )


def _update(optimizers: list[Optimizer], scaler: Any) -> None:
    for optimizer in optimizers:
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
    if scaler is not None and optimizers:
        scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)


def _as_written(precision: Precision) -> bool:
    return precision.name == "as_written"


def _as_given(job: Job, optimizers: list[Optimizer]) -> Any:
    """One optimizer as such, several as a list, as the user passed them."""
    if isinstance(job.optimizer, (list, tuple)) or len(optimizers) != 1:
        return optimizers
    return optimizers[0]


def _cast(job: Job, precision: Precision) -> contextlib.AbstractContextManager[Any]:
    dtype = job.autocast if _as_written(precision) else precision.autocast
    return contextlib.nullcontext() if dtype is None else torch.autocast("cuda", dtype=dtype)


# Batches.


def _placed(job: Job, precision: Precision, recorder: Recorder, batch_size: int) -> Any:
    moved = _moved(job.make_batch(batch_size), precision.weights, job.channels_last)
    recorder.label("input", _tensors_of(moved))
    return moved


def _spread(batch: Any) -> tuple[Any, ...]:
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


def _moved(batch: Any, dtype: torch.dtype | None, channels_last: bool) -> Any:
    if isinstance(batch, torch.Tensor):
        if batch.device.type != "cuda":
            batch = batch.to("cuda")
        if batch.is_floating_point() and dtype is torch.bfloat16:
            batch = batch.to(dtype)
        if channels_last and batch.dim() == 4:
            batch = batch.to(memory_format=torch.channels_last)
        return batch
    if isinstance(batch, Mapping):
        moved = {key: _moved(value, dtype, channels_last) for key, value in batch.items()}
        if type(batch) is dict:
            return moved
        with contextlib.suppress(Exception):  # a mapping of its own kind, BatchEncoding for one
            return type(batch)(moved)  # type: ignore[call-arg]
        return moved
    if isinstance(batch, (tuple, list)):
        parts = [_moved(value, dtype, channels_last) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def _tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, (Mapping, tuple, list)):
        for value in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors_of(value)


# Phases and labels, told by hooks so that a loop of the user's own is told as well.


@contextlib.contextmanager
def _phases(
    recorder: Recorder,
    model: torch.nn.Module,
    optimizers: list[Optimizer],
    attendant: Attendant,
) -> Iterator[None]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    backward = torch.autograd.backward

    def told_backward(*args: Any, **kwargs: Any) -> Any:
        if torch._C._current_autograd_node() is not None:
            return backward(*args, **kwargs)  # a checkpoint's own, inside another
        recorder.phase("backward")
        try:
            return backward(*args, **kwargs)
        finally:
            recorder.label("gradient", (p.grad for p in parameters if p.grad is not None))
            recorder.phase("optimizer")

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        recorder.phase("optimizer")

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        _label_state(recorder, [optimizer])
        attendant.after_optimizer(optimizer)

    hooks = [
        optim.register_optimizer_step_pre_hook(before),
        optim.register_optimizer_step_post_hook(after),
    ]
    try:
        with patched([Patch(torch.autograd, "backward", told_backward)]):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _label_state(recorder: Recorder, optimizers: list[Optimizer]) -> None:
    for optimizer in optimizers:
        recorder.label("optimizer_state", state_tensors(optimizer))
