"""Plimsoll: know how much GPU memory a training step takes before it runs.

    import plimsoll
    plimsoll.capture(model, optimizer, make_batch, loss, path="job.step.json.gz")

and then, in a shell, `plimsoll predict job.step.json.gz --batch 64 --gpu H200`, or
`plimsoll plan job.step.json.gz --global-batch 64 --gpu H200 --json > plan.json` and here

    applied = plimsoll.apply("plan.json", model, optimizer)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Needs no torch until it is called. Here and not below: the module has the function's name.
from .calibrate import calibrate
from .calibration_file import Calibration
from .errors import CaptureError, PlanError

if TYPE_CHECKING:
    from .api import Capture, capture
    from .applied import Applied
    from .apply import apply
    from .chunked_loss import chunked_cross_entropy

__all__ = [
    "Applied",
    "Calibration",
    "Capture",
    "CaptureError",
    "PlanError",
    "apply",
    "calibrate",
    "capture",
    "chunked_cross_entropy",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Torch is imported when it is first needed: the package installs and imports without it.
    if name in ("capture", "Capture"):
        from .phantom import require_torch

        require_torch()
        from .api import Capture, capture

        globals().update(capture=capture, Capture=Capture)
        return globals()[name]
    if name in ("apply", "Applied"):
        from .applied import Applied
        from .apply import apply

        globals().update(apply=apply, Applied=Applied)  # the module has the function's name
        return globals()[name]
    if name == "chunked_cross_entropy":
        from .chunked_loss import chunked_cross_entropy

        return chunked_cross_entropy
    raise AttributeError(f"module 'plimsoll' has no attribute {name!r}")
