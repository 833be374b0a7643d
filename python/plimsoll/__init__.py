"""Plimsoll: know how much GPU memory a training step takes before it runs.

    import plimsoll
    plimsoll.capture(model, optimizer, make_batch, loss, path="job.step.json.gz")

and then, here or in a shell (`plimsoll predict job.step.json.gz --batch 64 --gpu H200`),

    plimsoll.predict("job.step.json.gz", batch=64, gpu="H200")
    plan = plimsoll.plan("job.step.json.gz", global_batch=64, gpu="H200")
    applied = plimsoll.apply(plan, model, optimizer)
    optimizer = applied.optimizer  # print(applied) says what the loop has to do

In a job that runs, `plimsoll.record()` writes a snapshot where memory runs out, and
`plimsoll.explain("snapshot.pickle")` tells why it did. docs/python.md has all of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base.errors import CaptureError, PlanError, ProgramError

if TYPE_CHECKING:
    from . import callbacks
    from .answers.answers import Explanation, Plan, Prediction
    from .answers.questions import explain, plan, predict
    from .applying.applied import Applied
    from .applying.apply import apply
    from .applying.chunked_log_probs import chunked_log_probs
    from .applying.chunked_loss import chunked_cross_entropy
    from .applying.waiting_blocks import wait_on_host
    from .capturing.api import Capture, capture
    from .measuring.batch_fit import BatchFit, fit_batch
    from .measuring.calibrate import calibrate
    from .measuring.calibration_file import Calibration
    from .recording.record import Recording, record

__all__ = [
    "Applied",
    "BatchFit",
    "Calibration",
    "Capture",
    "CaptureError",
    "Explanation",
    "Plan",
    "PlanError",
    "Prediction",
    "ProgramError",
    "Recording",
    "apply",
    "calibrate",
    "callbacks",
    "capture",
    "chunked_cross_entropy",
    "chunked_log_probs",
    "explain",
    "fit_batch",
    "plan",
    "predict",
    "record",
    "wait_on_host",
]
__version__ = "0.1.0"

# Where each is. No module is imported before it is needed: the package does without torch.
_LAZY = {
    "Applied": "applying.applied",
    "BatchFit": "measuring.batch_fit",
    "Calibration": "measuring.calibration_file",
    "Capture": "capturing.api",
    "Explanation": "answers.answers",
    "Plan": "answers.answers",
    "Prediction": "answers.answers",
    "Recording": "recording.record",
    "apply": "applying.apply",
    "calibrate": "measuring.calibrate",
    "capture": "capturing.api",
    "chunked_cross_entropy": "applying.chunked_loss",
    "chunked_log_probs": "applying.chunked_log_probs",
    "explain": "answers.questions",
    "fit_batch": "measuring.batch_fit",
    "plan": "answers.questions",
    "predict": "answers.questions",
    "record": "recording.record",
    "wait_on_host": "applying.waiting_blocks",
}


def __getattr__(name: str) -> Any:
    if name == "callbacks":
        return import_module(".callbacks", __name__)
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'plimsoll' has no attribute {name!r}")
    if module == "capturing.api":
        from .world.phantom import require_torch

        require_torch()
    globals()[name] = found = getattr(import_module(f".{module}", __name__), name)
    return found
