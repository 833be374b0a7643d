"""plimsoll.fit_batch: the largest and the fastest batch of a job on a card."""

from __future__ import annotations

import html
import os
from typing import TYPE_CHECKING, Any, Callable

from ..answers.answers import Prediction
from ..answers.questions import predict
from ..base.errors import CaptureError
from ..base.sizes import Size, shown, size

if TYPE_CHECKING:
    from .gpu_run import Measured


def fit_batch(
    model: Any,
    optimizer: Any = None,
    make_batch: Callable[[int], Any] | None = None,
    loss: Callable[..., Any] | None = None,
    *,
    gpu: str | None = None,
    budget: Size | None = None,
    confirm: bool | None = None,
    **options: Any,
) -> BatchFit:
    """The largest batch that fits for certain, and the fastest of those that do.

    Predicted first, from a capture; the arguments and `options` are those of `plimsoll.capture`.
    Where there is a GPU and `gpu` does not name another, a few steps of the fastest batch then run
    on it (`confirm=False`: not; `confirm=True`: in any case). `model` may also be a `Capture` or
    the file of one; then nothing is run. `budget` is what PyTorch may hold.
    """
    limit = None if budget is None else size(budget)
    if isinstance(model, (str, os.PathLike)) or hasattr(model, "document"):
        return _asked(model, gpu, limit)
    if make_batch is None:
        raise CaptureError("`make_batch` is missing", hint="docs/capture.md tells what it is")
    here = _gpu_here()
    named = gpu or here
    if named is None:
        raise CaptureError("for which GPU? None is here", hint='Name one: gpu="L4"')
    if confirm and here is None:
        raise CaptureError("there is no GPU here to run on", hint="Leave `confirm` out")
    from ..capturing.api import capture  # torch is here: _gpu_here has looked

    captured = capture(model, optimizer, make_batch, loss, gpu=named, **options)
    found = _asked(captured, named, limit)
    wanted = (here is not None and gpu is None) if confirm is None else confirm
    if wanted and found.fastest:
        _confirm(found, model, optimizer, make_batch, loss, options)
    return found


class BatchFit:
    """What `plimsoll.fit_batch` found, and how it is known."""

    def __init__(self, prediction: Prediction, budget: int | None) -> None:
        #: Of `fastest`; of a batch that does not surely fit where none does.
        self.prediction = prediction
        self.budget = budget
        #: What a run of `fastest` on this machine took; None: it was not run, or ran out.
        self.measured: Measured | None = None
        #: What PyTorch said where the run did not fit.
        self.failure: str | None = None

    @property
    def largest(self) -> int:
        """The largest batch that fits for certain, and with it every smaller one that was tried; 0:
        none does."""
        return self.prediction.safe_max_batch or 0

    @property
    def may_fit(self) -> int:
        """The largest that fits with the likely figures; it may run out."""
        return self.prediction.max_batch or 0

    @property
    def fastest(self) -> int:
        """The batch with most samples a second, by estimate, of those that fit for certain; 0: none
        does."""
        return self._of("fastest", "batch") if self._fastest_is_safe() else self.largest

    @property
    def samples_per_second(self) -> float | None:
        """Of `fastest`: measured where it ran, else an estimate."""
        if self.measured is not None:
            samples = self.measured.batch * int(self.prediction.document.get("passes", 1))
            return samples / self.measured.step_seconds
        which = "fastest" if self._fastest_is_safe() else "surely_fits"
        found = self._of(which, "samples_per_second")
        return float(found) if found else None

    @property
    def confirmed(self) -> bool | None:
        """Whether `fastest` ran on this machine; None: it was not tried."""
        if self.failure is not None:
            return False
        return True if self.measured is not None else None

    @property
    def known(self) -> str:
        """How it is known, in a sentence."""
        predicted = f"Predicted for {self.prediction.gpu}"
        if self.failure is not None:
            return f"{predicted}; a run of batch {self.fastest} failed: {self.failure}"
        if self.measured is None:
            return f"{predicted}; not run."
        run = self.measured
        return (
            f"{predicted}, and confirmed by {run.steps} steps of batch {run.batch} on {run.gpu}: "
            f"{shown(run.reserved)} reserved at most, predicted "
            f"{shown(self.prediction.reserved.best)}; "
            f"{run.step_seconds * 1e3:.1f} ms a step."
        )

    def _fastest_is_safe(self) -> bool:
        found = self._of("fastest", "batch")
        return bool(found) and found <= self.largest

    def _of(self, which: str, key: str) -> Any:
        batches = self.prediction.document["batches"] or {}
        return (batches.get(which) or {}).get(key)

    def __str__(self) -> str:
        within = "" if self.budget is None else f" within {shown(self.budget)}"
        if not self.largest:
            return f"No batch fits for certain on {self.prediction.gpu}{within}. {self.known}"
        speed = self.samples_per_second
        rate = "" if speed is None else f", about {speed:.0f} samples a second"
        return (
            f"Batch {self.largest} is the largest that fits for certain on {self.prediction.gpu}"
            f"{within}; the fastest is {self.fastest}{rate}. {self.known}"
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(str(self))}</p>{self.prediction._repr_html_()}"


def _asked(step: Any, gpu: str | None, budget: int | None) -> BatchFit:
    limit = None if budget is None else f"{budget}B"
    found = BatchFit(predict(step, max_batch=True, gpu=gpu, limit=limit), budget)
    if found.fastest not in (0, found.prediction.batch):
        found.prediction = predict(step, max_batch=True, batch=found.fastest, gpu=gpu, limit=limit)
    return found


def _gpu_here() -> str | None:
    from ..world.phantom import require_torch

    torch = require_torch()
    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else None


def _confirm(
    found: BatchFit, model: Any, optimizer: Any, make_batch: Any, loss: Any, options: dict[str, Any]
) -> None:
    from torch.cuda import OutOfMemoryError

    from .gpu_run import job_of, measure

    job = job_of(optimizer, make_batch, loss, **options)
    channels_last = bool(options.get("channels_last"))
    try:
        found.measured = measure(model, job, found.fastest, found.budget, channels_last)
    except OutOfMemoryError as error:
        found.failure = str(error).splitlines()[0]
