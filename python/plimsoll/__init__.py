"""Plimsoll: know how much GPU memory a training step takes before it runs.

    import plimsoll
    plimsoll.capture(model, optimizer, make_batch, loss, path="job.step.json.gz")

and then, in a shell, `plimsoll predict job.step.json.gz --batch 64 --gpu H200`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Needs no torch until it is called. Here and not below: the module has the function's name.
from .calibrate import calibrate
from .calibration_file import Calibration
from .errors import CaptureError

if TYPE_CHECKING:
    from .api import Capture, capture

__all__ = ["Calibration", "Capture", "CaptureError", "calibrate", "capture"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Torch is imported when it is first needed: the package installs and imports without it.
    if name in ("capture", "Capture"):
        from .phantom import require_torch

        require_torch()
        from .api import Capture, capture

        globals().update(capture=capture, Capture=Capture)
        return globals()[name]
    raise AttributeError(f"module 'plimsoll' has no attribute {name!r}")
