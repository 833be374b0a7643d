"""Random numbers of the host: the same in both runs, and the user's own left as they were."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def fixed_seed() -> Iterator[None]:
    """Code that draws what to do next (a layer to drop, say) draws the same in every run. No seed
    is set by `torch.manual_seed`, which would reach for the devices as well."""
    numpy: Any = sys.modules.get("numpy")
    before = torch.default_generator.get_state(), random.getstate()
    before_numpy = numpy.random.get_state() if numpy is not None else None
    torch.default_generator.manual_seed(0)
    random.seed(0)
    if numpy is not None:
        numpy.random.seed(0)
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        random.setstate(before[1])
        if numpy is not None:
            numpy.random.set_state(before_numpy)
