"""One device of 16 GiB, initialised at the first use, as torch.cuda is."""

import contextlib
import time
from types import SimpleNamespace

from torch import _C
from torch.cuda import memory  # noqa: F401

TOTAL = 16 << 30
BASE = 0x7F0000000000
_queued_calls = []
_initialized = False
fraction = 1.0
allocated = []


class Tensor:
    """As much of one as tells where it lies."""

    is_cuda = property(lambda self: True)
    is_leaf = property(lambda self: True)
    grad = property(lambda self: None)
    grad_fn = property(lambda self: None)

    def __init__(self, address, size):
        self.storage = SimpleNamespace(data_ptr=lambda: address, nbytes=lambda: size)

    def untyped_storage(self):
        return self.storage


class OutOfMemoryError(RuntimeError):
    pass


def _lazy_call(call):
    if _initialized:
        call()
    else:
        _queued_calls.append(call)


def init():
    global _initialized
    if not _initialized:
        _initialized = True
        for call in _queued_calls:
            call()


def device_count():
    return 1


def get_device_properties(_):
    return SimpleNamespace(total_memory=TOTAL)


@contextlib.contextmanager
def device(_):
    yield


def set_per_process_memory_fraction(value, _=None):
    global fraction
    fraction = value


def memory_stats(_=None):
    with _C.lock:
        return {"allocation.all.allocated": len(allocated)}


def memory_stats_as_nested_dict(_=None):
    with _C.lock:
        held = {"all": {"current": sum(size for _, size in allocated)}}
    held["all"]["peak"] = held["all"]["current"]
    return {"allocated_bytes": held, "reserved_bytes": held}


def note(action, address, size):
    history = _C.history
    if not history["enabled"]:
        return
    frame = {"filename": "train.py", "line": 7, "name": "forward"}
    entry = {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": int(time.time() * 1e6),
        "frames": [frame],
        "user_metadata": _C.metadata[0],
    }
    if action == "oom":
        entry.update(addr=0, device_free=TOTAL - sum(size for _, size in allocated))
    history["entries"].append(entry)
    del history["entries"][: -history["most"]]


def allocate(size):
    """Any tensor on the device. `size` in bytes, a multiple of 2 MiB."""
    init()
    if sum(taken for _, taken in allocated) + size > TOTAL * fraction:
        note("oom", 0, size)
        with _C.lock if _C.held_for_observers else contextlib.nullcontext():
            for observer in _C.observers:
                observer(0, size, TOTAL, TOTAL - sum(taken for _, taken in allocated))
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate %.2f GiB." % (size / 2**30))
    address = BASE + sum(taken for _, taken in allocated)
    note("segment_alloc", address, size)
    note("alloc", address, size)
    allocated.append((address, size))
    return Tensor(address, size)
