"""How many clusters of thread blocks a card holds at once, asked of its driver.

cuDNN keeps partial sums for each cluster of the last wave, and how many there are follows from how
the multiprocessors of a chip are grouped, which no data sheet says. The runtime's
cudaOccupancyMaxActiveClusters tells; the driver's function of that name needs no more than the
library that every CUDA machine has.
"""

from __future__ import annotations

import ctypes
from typing import Any

#: As cuDNN's kernels are: one block fills a multiprocessor.
_SHARED_MEMORY = 200 << 10
_THREADS = 128
_LARGEST = 16
#: The first with clusters.
_OLDEST = (9, 0)

# A kernel that does nothing. What counts is how it would be launched.
_PTX = b""".version 7.8
.target sm_90
.address_size 64
.visible .entry nothing()
{
    ret;
}
"""

# Numbers of cuda.h.
_SUCCESS = 0
_MAX_DYNAMIC_SHARED_SIZE, _NON_PORTABLE_CLUSTER_SIZE = 8, 14
_CLUSTER_DIMENSION = 4


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("value", ctypes.c_uint * 16),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_memory", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


def clusters(torch: Any, load: Any = ctypes.CDLL) -> tuple[int, ...]:
    """Of 1, 2, ... 16 blocks; empty where the card has none, or does not tell."""
    if torch.cuda.get_device_capability() < _OLDEST:
        return ()
    try:
        driver = load("libcuda.so.1")
        kernel = _kernel(driver)
        found = [_at_once(driver, kernel, size) for size in range(1, _LARGEST + 1)]
    except (OSError, AttributeError, _Refused):
        return ()
    # Of none of a size there is nothing to say about larger ones.
    return tuple(found[: found.index(0)] if 0 in found else found)


class _Refused(Exception):
    pass


def _check(status: int) -> None:
    if status != _SUCCESS:
        raise _Refused(status)


def _kernel(driver: Any) -> Any:
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(_PTX)))
    _check(driver.cuModuleGetFunction(ctypes.byref(kernel), module, ctypes.c_char_p(b"nothing")))
    _check(driver.cuFuncSetAttribute(kernel, _MAX_DYNAMIC_SHARED_SIZE, _SHARED_MEMORY))
    _check(driver.cuFuncSetAttribute(kernel, _NON_PORTABLE_CLUSTER_SIZE, 1))
    return kernel


def _at_once(driver: Any, kernel: Any, size: int) -> int:
    attribute = _Attribute(_CLUSTER_DIMENSION, 0, (ctypes.c_uint * 16)(size, 1, 1))
    launch = _Launch(
        grid=(size, 1, 1),
        block=(_THREADS, 1, 1),
        shared_memory=_SHARED_MEMORY,
        attributes=ctypes.pointer(attribute),
        count=1,
    )
    found = ctypes.c_int()
    _check(driver.cuOccupancyMaxActiveClusters(ctypes.byref(found), kernel, ctypes.byref(launch)))
    return found.value
