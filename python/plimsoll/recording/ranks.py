"""Which rank of a distributed job this process is."""

from __future__ import annotations

import os
import sys

from ..base.sizes import whole_number

# As launchers tell it: torchrun and accelerate, Slurm, the MPIs.
_VARIABLES = (
    "RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "LOCAL_RANK",
)


def rank() -> int | None:
    """None outside of a distributed job."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    for name in _VARIABLES:
        number = whole_number(os.environ.get(name, ""))
        if number is not None:
            return number
    return None
