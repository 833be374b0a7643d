"""A stand-in for torch, with the few functions that the hook of `plimsoll run` touches. It keeps a
history as the real allocator does, so that what is written is a snapshot that plimsoll reads.
FAKE_TORCH names the release that it behaves like; "cpu" is a build without CUDA."""

import os

release = os.environ.get("FAKE_TORCH", "2.11")
__version__ = "2.13.0+cpu" if release == "cpu" else release + ".0+fake"

from torch import _C, compiler, cuda, nn, optim  # noqa: E402, F401

OutOfMemoryError = cuda.OutOfMemoryError
Tensor = cuda.Tensor
