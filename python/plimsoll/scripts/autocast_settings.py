"""Who sets autocast in a script, where its own lines do not. Nothing here needs torch."""

from __future__ import annotations

import sys

#: As captures name it.
NAME = "amp_bf16"
#: These have settings of their own for it, and make more of it than autocast.
_OWN_PRECISION = ("lightning", "pytorch_lightning", "fastai", "deepspeed")
#: By library: what sets it from outside, unless the script says otherwise.
_OF_LIGHTNING = {"PL_TRAINER_PRECISION": "bf16-mixed"}
SETTINGS = {
    "accelerate": {"ACCELERATE_MIXED_PRECISION": "bf16"},
    "lightning": _OF_LIGHTNING,
    "pytorch_lightning": _OF_LIGHTNING,
}


def set_by() -> str:
    """The library whose setting it is in this process, where the loop is not the script's own."""
    found = [name for name in _OWN_PRECISION if name in sys.modules]
    # transformers imports it, and mostly does not use it.
    accelerate = sys.modules.get("accelerate.state")
    if accelerate and accelerate.PartialState._shared_state:
        found.append("accelerate")
    return found[0] if found else ""
