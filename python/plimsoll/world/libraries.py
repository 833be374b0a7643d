"""Libraries over torch that behave otherwise when they see fake tensors, told not to."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ..base.patching import Patch, patched
from .triton_kernels import launches_of_nothing


@contextlib.contextmanager
def libraries_not_tracing() -> Iterator[None]:
    """transformers takes fake tensors for a trace, and then builds masks and repeats heads that a
    real run does without, unless it is compiled. Kernels of Triton's are not launched."""

    def not_tracing(*args: Any, **kwargs: Any) -> bool:
        return torch.compiler.is_compiling()

    patches = [
        Patch(module, "is_tracing", not_tracing)
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.") and "is_tracing" in getattr(module, "__dict__", {})
    ]
    with patched([*patches, *launches_of_nothing()]):
        yield
