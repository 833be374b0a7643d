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
from .plan_file import GradientUses


class Applied:
    """What `plimsoll.apply` gives back.

    In a loop of one's own: `micro_batches` (or `place`) for batches, `forward` around the model,
    `backward`, and `update` where there is a `scaler`. `step` does all of it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        batch: int,
        passes: int,
        uses: GradientUses,
    ):
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
        #: What the script itself does to gradients before optimizer.step().
        self.uses = uses
        #: Samples of the micro-batch at hand, and of the step; the mean loss of the step so far.
        self._share: tuple[int, int] | None = None
        self._mean: torch.Tensor | None = None

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

    def micro_batches(self, batch: Any) -> Iterator[Any]:
        """The micro-batches of one step, each placed; `backward` weighs the loss of each.

        `batch` has the samples of the whole step and is cut; or it is an iterator, of which
        `passes` batches are taken. Clipping, optimizer.step() and zero_grad() stay in the loop.
        """
        parts, planned = self._parts(batch)
        seen = 0
        self._mean = None
        for part, size in parts:
            self._share = (size, planned)
            held = [part]
            del part  # nothing of a micro-batch is kept here while the loop works on it
            yield self.place(held.pop())
            seen += size
        self._share = None
        if self._mean is not None and seen != planned:
            self._mean *= self._enlarge(planned / seen)
        self._in_use()

    def backward(
        self, loss: torch.Tensor, scaler: torch.amp.GradScaler | None = None
    ) -> torch.Tensor:
        """In place of `loss.backward()`; gives back the mean loss of the step so far, detached.

        `scaler`: the script's own, in place of `scaler.scale(loss).backward()`.
        """
        scaler = self._scaler(scaler)
        if self._share is not None and self._share[0] != self._share[1]:
            size, planned = self._share
            loss = loss / (planned // size) if planned % size == 0 else loss * (size / planned)
        (loss if scaler is None else scaler.scale(loss)).backward()
        if self._share is None:
            return loss.detach()
        self._mean = loss.detach() if self._mean is None else self._mean + loss.detach()
        return self._mean

    def update(
        self,
        *,
        clip_norm: float | None = None,
        before_step: Callable[[], object] | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        """Steps the optimizer and sets the gradients to None.

        `before_step` does what the script does to gradients between backward() and
        optimizer.step(). A scaler, the plan's or the script's own, has unscaled them by then.
        """
        if self.optimizer is None:
            raise PlanError("there is no optimizer to step with", hint="Pass one to apply")
        self._check_update(clip_norm, before_step, scaler)
        scaler = self._scaler(scaler)
        changes = clip_norm is not None or before_step is not None
        if scaler is not None and changes:
            scaler.unscale_(self.optimizer)
        if before_step is not None:
            before_step()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm)
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._in_use()

    def step(
        self,
        batch: Any,
        loss: Callable[..., torch.Tensor],
        *,
        clip_norm: float | None = None,
        before_step: Callable[[], object] | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> torch.Tensor:
        """One step of the optimizer, and the mean loss of its micro-batches.

        `batch` is as for `micro_batches` (StopIteration where an iterator has none left). `loss`
        is as for `plimsoll.capture`: loss(model, *batch), a mean over the samples. The rest is as
        for `update`. Refused where the script does more between backward() and optimizer.step().
        """
        if self.optimizer is None:
            raise PlanError("there is no optimizer to step with", hint="Pass one to apply")
        self._check_update(clip_norm, before_step, scaler)
        for placed in self.micro_batches(batch):
            with self.forward():
                value = loss(self.model, *spread(placed))
            self.backward(value, scaler)
            del value, placed  # nothing of a micro-batch is kept while the next one runs
        if self._mean is None:
            raise StopIteration
        self.update(clip_norm=clip_norm, before_step=before_step, scaler=scaler)
        return self._mean

    def _scaler(self, own: torch.amp.GradScaler | None) -> torch.amp.GradScaler | None:
        if own is None or self.scaler is None:
            return own or self.scaler
        raise PlanError("the configuration brings a gradient scaler: leave out your own")

    def _check_update(
        self, clip_norm: float | None, before_step: Any, scaler: torch.amp.GradScaler | None
    ) -> None:
        """That nothing is dropped which the script does to its gradients."""
        changes = clip_norm is not None or before_step is not None
        scales = scaler is not None and scaler.is_enabled()
        if self.steps_in_backward and (changes or scales):
            raise PlanError(
                "gradients cannot be clipped, changed or unscaled: each is used up in the backward"
            )
        if self.uses.scaled_at and self._scaler(scaler) is None:
            raise PlanError(
                f"the script has a gradient scaler ({self.uses.scaled_at})",
                hint="Pass it: scaler=scaler",
            )
        if self.uses.used_at and not changes:
            raise PlanError(
                "the script uses gradients between backward() and optimizer.step() "
                f"({', '.join(self.uses.used_at)})",
                hint="Pass clip_norm=, or before_step= with a function that does the same",
            )

    def _in_use(self) -> None:
        """What was left to the loop is done in it."""
        self.done += self.done_in_step
        self.in_your_loop, self.done_in_step = [], []

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
                f"the plan cuts each batch into {self.passes} micro-batches of two or more "
                f"samples; one of {samples} cannot be cut so",
                hint=f"Capture at batches that can: --batches {sizes}, in Python batches=({sizes})",
            )
        return samples // self.passes

    def _enlarge(self, factor: float) -> float:
        """The batches ran out, or were smaller: the gradients are of a mean over too many."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        return factor


def _handed_over(batches: Iterator[Any], size: int) -> Iterator[tuple[Any, int]]:
    """Of each batch the parts, none of which is kept here."""
    for batch in batches:
        parts = pieces(batch, size)
        del batch
        yield from _one_by_one(parts)


def _one_by_one(parts: list[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
    while parts:
        yield parts.pop(0)
