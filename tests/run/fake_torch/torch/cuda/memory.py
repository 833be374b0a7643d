"""The history's switch as the releases spell it."""

import os

from torch import _C

_RELEASE = os.environ.get("FAKE_TORCH", "2.11")


def _begin(most):
    _C.history.update(enabled=True, most=most)


if _RELEASE == "1.13":

    def _record_memory_history(enabled, device=None):
        _begin(1 << 20)

elif _RELEASE == "2.0":

    def _record_memory_history(
        enabled,
        record_context=True,
        trace_alloc_max_entries=1,
        trace_alloc_record_context=False,
        device=None,
        record_context_cpp=False,
    ):
        assert enabled is True, enabled
        _begin(trace_alloc_max_entries)

else:

    def _record_memory_history(
        enabled="all", context="all", stacks="all", max_entries=1 << 40, device=None
    ):
        assert enabled == "all" and stacks == "python", (enabled, stacks)
        _begin(max_entries)


# Stands for what a loader's pin_memory holds.
pinned = 0


def host_memory_stats_as_nested_dict():
    return {"allocated_bytes": {"current": pinned, "peak": pinned}}


def _snapshot(device=None):
    from torch import cuda

    def segment(address, size):
        block = {
            "address": address,
            "size": size,
            "requested_size": size,
            "state": "active_allocated",
            "frames": [],
        }
        return {
            "device": 0,
            "address": address,
            "total_size": size,
            "allocated_size": size,
            "active_size": size,
            "requested_size": size,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [block],
        }

    with _C.lock:
        return {
            "segments": [segment(address, size) for address, size in cuda.allocated],
            "device_traces": [list(_C.history["entries"])],
        }
