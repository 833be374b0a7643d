"""The phantom device as Python sees it: `torch.cuda` answers for a GPU that is not there."""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch._subclasses.fake_tensor as fake_tensor
import torch.optim.optimizer as optim
import torch.utils._foreach_utils as foreach_utils
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ..base.batches import small_batches
from ..base.gpus import UNKNOWN, Gpu, named
from ..base.patching import Patch, patched
from . import phantom

_gpu_is_here = False


def gpu_is_here() -> bool:
    """Whether a real GPU was found before the phantom device took its place."""
    return _gpu_is_here


@contextlib.contextmanager
def phantom_device(gpu: str) -> Iterator[None]:
    """While this is open a training step of fake tensors on "cuda" runs, with or without a GPU."""
    global _gpu_is_here
    _gpu_is_here = torch.cuda.is_available()
    with contextlib.ExitStack() as stack:
        stack.enter_context(phantom.installed())
        stack.enter_context(small_batches())
        stack.enter_context(patched(_cuda_answers(gpu)))
        stack.enter_context(patched(_fake_tensors_stay_fake()))
        stack.enter_context(patched(_optimizers_take_fake_parameters()))
        stack.enter_context(_kernels_of_a_gpu())
        # The engine's threads for a device are counted at a process' first backward, which may be
        # long past. In the caller's own thread the order of the nodes is the same.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        yield


class _NoDevice(contextlib.AbstractContextManager[None]):
    """In place of torch.cuda.device, stream and the like: there is nothing to switch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __exit__(self, *args: object) -> None:
        return None


def _answer(value: Any) -> Any:
    return lambda *args, **kwargs: value


#: CUDA's programming guide: what a block may ask for, and threads that a multiprocessor holds.
_SHARED_MEMORY = {
    (7, 0): 96 << 10, (7, 5): 64 << 10, (8, 0): 163 << 10, (9, 0): 227 << 10, (10, 0): 227 << 10,
    (10, 3): 227 << 10,
}  # fmt: skip


def _threads(capability: tuple[int, int]) -> int:
    if capability == (7, 5):
        return 1024
    return 1536 if capability in ((8, 6), (8, 9)) or capability[0] == 12 else 2048


def _properties(name: str, gpu: Gpu) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        name=name,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        total_memory=gpu.memory,
        multi_processor_count=gpu.multiprocessors,
        warp_size=32,
        is_integrated=False,
        gcnArchName="",
        max_threads_per_multi_processor=_threads(gpu.capability),
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=_SHARED_MEMORY.get(gpu.capability, 99 << 10),
        shared_memory_per_multiprocessor=_SHARED_MEMORY.get(gpu.capability, 99 << 10) + 1024,
        L2_cache_size=gpu.cache,
    )


def _cuda_answers(gpu: str) -> list[Patch]:
    cuda = torch.cuda
    found, name = named(gpu) or UNKNOWN, f"NVIDIA {gpu}"
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "is_initialized": True,
        "is_bf16_supported": found.capability >= (8, 0),
        "is_current_stream_capturing": False,
        "get_device_capability": found.capability,
        "get_device_name": name,
        "get_device_properties": _properties(name, found),
        "_lazy_init": None,
        "init": None,
        "synchronize": None,
        "empty_cache": None,
        "set_device": None,
        "ipc_collect": None,
        "manual_seed": None,
        "manual_seed_all": None,
        "seed": None,
        "seed_all": None,
        "memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_allocated": 0,
        "max_memory_reserved": 0,
        "reset_peak_memory_stats": None,
        "memory_stats": collections.defaultdict(int),
        "memory_snapshot": [],
        "mem_get_info": (found.memory, found.memory),
        "memory_summary": "",
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
    }
    patches = [Patch(cuda, name, _answer(value)) for name, value in answers.items()]
    patches += [Patch(cuda, name, _NoDevice) for name in ("device", "device_of")]
    # torch.utils.checkpoint asks this before it keeps the state of the device's generator, which is
    # kept on the host anyway.
    patches.append(Patch(cuda, "_initialized", False))
    # Of a build for CUDA; libraries look for it as soon as a device is there.
    patches.append(Patch(torch._C, "_cuda_getCurrentRawStream", _answer(0)))
    return patches


def _fake_tensors_stay_fake() -> list[Patch]:
    # Else `torch.tensor(0, device="cuda")`, as in BatchNorm, is a real allocation wherever CUDA
    # says that it is there; releases up to 2.11 also make a real tensor to wake the device.
    patches = [
        Patch(FakeTensorMode, "avoid_device_init", property(lambda self: True)),
        # A copy of a tensor, as nn.TransformerEncoder makes of its layer, is of the same mode:
        # torch copies the mode with it, and operators then take its views for real tensors.
        Patch(FakeTensorMode, "__deepcopy__", lambda self, memo: self),
    ]
    for name in ("init_gpu_context", "init_cuda_context"):
        if hasattr(fake_tensor, name):
            patches.append(Patch(fake_tensor, name, _answer(None)))
    return patches


def _optimizers_take_fake_parameters() -> list[Patch]:
    # Optimizers, clip_grad_norm_ and the scaler take the path of one kernel for many tensors only
    # if each is of a type in these lists.
    patches = []
    for module in (optim, foreach_utils):
        known = getattr(module, "_foreach_supported_types", None)
        if known is not None:
            patches.append(Patch(module, "_foreach_supported_types", [*known, FakeTensor]))
    return patches


@contextlib.contextmanager
def _kernels_of_a_gpu() -> Iterator[None]:
    """A build for the CPU alone takes these apart into simpler operators where it finds no kernel
    for CUDA. A name is enough: no kernel ever runs."""

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a kernel of the phantom device was run")

    library = torch.library.Library("aten", "IMPL")
    try:
        for name in ("silu_backward", "mish_backward", "_fused_rms_norm"):
            known = hasattr(torch.ops.aten, name)
            if known and not torch._C._dispatch_has_kernel_for_dispatch_key(
                f"aten::{name}", "CUDA"
            ):
                library.impl(name, never, "CUDA")
        yield
    finally:
        library._destroy()
