"""A plan that has been applied: the pieces to train with."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch import nn
from torch.optim import Optimizer

from ..base.batches import moved, pieces, samples_of, spread, stand_for_larger
from ..base.errors import CaptureError, PlanError
from ..base.precision import AS_WRITTEN, Precision


class Applied:
    """What `plimsoll.apply` gives back.

    `step` does a whole step of the optimizer. The pieces are there for loops of one's own: `place`
    for batches, `forward` (or `autocast` alone) around the model, `scaler`, `optimizer`, `passes`.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | None, batch: int, passes: int):
        self.model = model
        #: The one to use from now on: it may be a new one.
        self.optimizer = optimizer
        #: Samples of one pass, and passes of one step of the optimizer.
        self.batch = batch
        self.passes = passes
        #: What was set, and what could not be, in words.
        self.done: list[str] = []
        self.not_set: list[str] = []
        #: What the loop has to do, until `step` has done it; and how that is told then.
        self.in_your_loop: list[str] = []
        self.done_in_step: list[str] = []
        self.scaler: torch.amp.GradScaler | None = None
        self.precision: Precision = AS_WRITTEN
        self.offloads_activations = False
        self.steps_in_backward = False

    def __repr__(self) -> str:
        lines = [f"<plimsoll.Applied: {self.passes} x {self.batch} samples a step"]
        titled = (
            ("done", self.done),
            ("in your loop", self.in_your_loop),
            ("left to you", self.not_set),
        )
        for title, texts in titled:
            lines += [f"  {title}: {text}" for text in texts]
        return "\n".join(lines) + ">"

    @property
    def left_to_you(self) -> list[str]:
        return self.in_your_loop + self.not_set

    @property
    def device(self) -> torch.device:
        """That of the model, which may have been moved since."""
        first = next(itertools.chain(self.model.parameters(), self.model.buffers()), None)
        return torch.device("cpu") if first is None else first.device

    def place(self, batch: Any) -> Any:
        """On the model's device, in its type and memory format."""
        return moved(batch, self.device, self.precision.weights, self.precision.channels_last)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = self.precision.autocast
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=dtype)

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Around the forward of one pass and its loss."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.autocast())
            if self.offloads_activations:
                pinned = self.device.type == "cuda"
                stack.enter_context(torch.autograd.graph.save_on_cpu(pin_memory=pinned))
            yield

    def step(
        self,
        batch: Any,
        loss: Callable[..., torch.Tensor],
        *,
        clip_norm: float | None = None,
    ) -> torch.Tensor:
        """One step of the optimizer, and the mean loss of its passes.

        `batch` has the samples of the whole step and is cut; or it is an iterator, of which
        `passes` batches are taken (StopIteration where it has none left). `loss` is as for
        `plimsoll.capture`: loss(model, *batch), a mean over the samples.
        """
        if self.optimizer is None:
            raise PlanError("there is no optimizer to step with", hint="Pass one to apply")
        if clip_norm is not None and self.steps_in_backward:
            raise PlanError("gradients cannot be clipped: each is used up in the backward")
        parts, planned = self._parts(batch)
        seen = 0
        total: torch.Tensor | None = None
        for part, size in parts:
            placed = self.place(part)
            del part  # in another memory format it is a tensor beside the placed one
            with self.forward():
                value = loss(self.model, *spread(placed))
                if size != planned:
                    even = planned % size == 0
                    value = value / (planned // size) if even else value * (size / planned)
            (value if self.scaler is None else self.scaler.scale(value)).backward()
            total = value.detach() if total is None else total + value.detach()
            seen += size
            del value, placed  # nothing of a pass is kept while the next one runs
        if total is None:
            raise StopIteration
        if seen != planned:
            total = total * self._enlarge(planned / seen)
        self._update(clip_norm)
        self.done += self.done_in_step
        self.in_your_loop, self.done_in_step = [], []
        return total

    def _parts(self, batch: Any) -> tuple[Iterator[tuple[Any, int]], int]:
        """The passes, one at a time, and how many samples they should have."""
        if hasattr(batch, "__next__"):
            if self.passes > 1:
                taken = itertools.islice(batch, self.passes)
                return _handed_over(taken, self.batch), self.passes * self.batch
            batch = next(batch)
        parts = pieces(batch, self._samples_of_a_pass(batch))
        if self.steps_in_backward and len(parts) > 1:
            raise PlanError(
                f"a batch has more than {self.batch} samples, and the optimizer steps in the "
                "backward of each pass"
            )
        return _one_by_one(parts), sum(size for _, size in parts)

    def _samples_of_a_pass(self, batch: Any) -> int:
        """A capture's batch is smaller than that of the plan, and cut into as many passes."""
        samples = samples_of(batch)
        if self.passes == 1 or samples is None or not stand_for_larger():
            return self.batch
        # A pass of one sample is often a case of its own.
        if samples % self.passes or samples < 2 * self.passes:
            sizes = f"{2 * self.passes},{4 * self.passes}"
            raise CaptureError(
                f"applied.step cuts each batch into {self.passes} passes of two or more samples; "
                f"one of {samples} cannot be cut so",
                hint=f"Capture at batches that can: --batches {sizes}, in Python batches=({sizes})",
            )
        return samples // self.passes

    def _enlarge(self, factor: float) -> float:
        """The batches ran out, or were smaller: the gradients are of a mean over too many."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        return factor

    def _update(self, clip_norm: float | None) -> None:
        assert self.optimizer is not None
        if clip_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)


def _handed_over(batches: Iterator[Any], size: int) -> Iterator[tuple[Any, int]]:
    """Of each batch the parts, none of which is kept here."""
    for batch in batches:
        parts = pieces(batch, size)
        del batch
        yield from _one_by_one(parts)


def _one_by_one(parts: list[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
    while parts:
        yield parts.pop(0)
