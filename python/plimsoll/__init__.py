"""Plimsoll: know how much GPU memory a training step takes before it runs.

    import plimsoll
    plimsoll.capture(model, optimizer, make_batch, loss, path="job.step.json.gz")

and then, here or in a shell (`plimsoll predict job.step.json.gz --batch 64 --gpu H200`),

    plimsoll.predict("job.step.json.gz", batch=64, gpu="H200")
    plan = plimsoll.plan("job.step.json.gz", global_batch=64, gpu="H200")
    applied = plimsoll.apply(plan, model, optimizer)

In a job that runs, `plimsoll.record()` writes a snapshot where memory runs out, and
`plimsoll.explain("snapshot.pickle")` tells why it did. docs/python.md has all of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Needs no torch until it is called. Here and not below: the module has the function's name.
from .calibrate import calibrate
from .calibration_file import Calibration
from .errors import CaptureError, PlanError, ProgramError

if TYPE_CHECKING:
    from . import callbacks
    from .answers import Explanation, Plan, Prediction
    from .api import Capture, capture
    from .applied import Applied
    from .apply import apply
    from .batch_fit import BatchFit, fit_batch
    from .chunked_loss import chunked_cross_entropy
    from .memory_history import Recording, record
    from .questions import explain, plan, predict

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
    "explain",
    "fit_batch",
    "plan",
    "predict",
    "record",
]
__version__ = "0.1.0"

# Where each is. Torch is imported when it is first needed: the package imports without it.
_LAZY = {
    "Applied": "applied",
    "BatchFit": "batch_fit",
    "Capture": "api",
    "Explanation": "answers",
    "Plan": "answers",
    "Prediction": "answers",
    "Recording": "memory_history",
    "apply": "apply",
    "capture": "api",
    "chunked_cross_entropy": "chunked_loss",
    "explain": "questions",
    "fit_batch": "batch_fit",
    "plan": "questions",
    "predict": "questions",
    "record": "memory_history",
}


def __getattr__(name: str) -> Any:
    if name == "callbacks":
        return import_module(".callbacks", __name__)
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'plimsoll' has no attribute {name!r}")
    if module == "api":
        from .phantom import require_torch

        require_torch()
    found = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = found  # a module may have the function's name, and is there by now
    return found
