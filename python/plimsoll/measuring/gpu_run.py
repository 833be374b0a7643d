"""A job run for real on the GPU that is here, for a few steps, and what it took."""

from __future__ import annotations

import contextlib
import copy
import gc
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from ..base.batches import moved, spread
from ..base.precision import AS_WRITTEN
from ..capturing.job import Job, as_given, cast, update
from ..capturing.optimizers import new_scaler, remade
from ..world.model import OnDevice

#: The first ones make the optimizer's state and the caches of libraries.
_WARM_UP = 2
_STEPS = 6


class Measured(NamedTuple):
    """What a run took, beyond what the process held before."""

    gpu: str
    batch: int
    steps: int
    allocated: int
    reserved: int
    step_seconds: float


def job_of(optimizer: Any, make_batch: Any, loss: Any, **options: Any) -> Job:
    """The job that `plimsoll.capture` has with the same arguments, for a run of a few steps."""
    return Job(
        optimizer,
        make_batch,
        loss,
        options.get("train_step"),
        _STEPS,
        options.get("accumulate", 1),
        options.get("autocast"),
        options.get("scaler"),
    )


def measure(
    model: Any, job: Job, batch: int, budget: int | None = None, channels_last: bool = False
) -> Measured:
    """Runs `job.steps` steps. Raises torch.cuda.OutOfMemoryError where they do not fit."""
    cuda = torch.cuda
    with _limited(budget), _given_back():
        held_allocated, held_reserved = cuda.memory_allocated(), cuda.memory_reserved()
        cuda.reset_peak_memory_stats()
        seconds = _steps(_on_gpu(model, channels_last), job, batch, channels_last)
        return Measured(
            cuda.get_device_name(),
            batch,
            job.steps,
            cuda.max_memory_allocated() - held_allocated,
            cuda.max_memory_reserved() - held_reserved,
            statistics.median(seconds[_WARM_UP:] or seconds),
        )


def _steps(target: OnDevice, job: Job, batch_size: int, channels_last: bool) -> list[float]:
    """The loop of job.py, without what records it; the seconds of each step."""
    model = target.model
    optimizers = remade(job.optimizer, target)
    scaler = new_scaler(job.scaler)
    device = torch.device("cuda")
    seconds = []
    for _ in range(job.steps):
        begun = time.perf_counter()
        for _ in range(job.accumulate):
            batch = moved(job.make_batch(batch_size), device, None, channels_last)
            with cast(job, AS_WRITTEN):
                if job.loss is None:
                    assert job.train_step is not None
                    job.train_step(model, as_given(job, optimizers), batch)
                    continue
                loss = job.loss(model, *spread(batch))
                loss = loss if job.accumulate == 1 else loss / job.accumulate
            (loss if scaler is None else scaler.scale(loss)).backward()
        if job.train_step is None:
            update(optimizers, scaler)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return seconds


def _on_gpu(source: Any, channels_last: bool) -> OnDevice:
    """A copy: the user's model is left as it is."""
    if isinstance(source, nn.Module):
        model = copy.deepcopy(source)
        pairs = zip(source.parameters(), model.parameters())
        tensors: dict[int, torch.Tensor] = {id(old): new for old, new in pairs}
    else:
        model, tensors = source(), {}
    model.to("cuda")  # in place: the parameters stay the same objects
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return OnDevice(model, tensors, {})


@contextlib.contextmanager
def _limited(budget: int | None) -> Iterator[None]:
    if budget is None:
        yield
        return
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextlib.contextmanager
def _given_back() -> Iterator[None]:
    """Before, so that nothing cached is counted; after, so that nothing is left."""
    give_back()
    try:
        yield
    finally:
        give_back()


def give_back() -> None:
    """What nothing uses, and cuBLAS's workspaces: a job that finds them seems smaller."""
    torch.cuda.init()  # the allocator counts nothing before
    gc.collect()
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    torch.cuda.empty_cache()
