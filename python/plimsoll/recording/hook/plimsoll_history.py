"""The allocator's history of this process on CUDA or on Intel's XPU, and snapshots of it: for
`plimsoll run` and for `plimsoll.record`, which decide where snapshots go and what is said.

Works with PyTorch 1.13 and newer, on Python 3.7 and newer, and needs nothing else.
"""

import inspect
import os
import pickle
import sys
import time

ENTRIES = 200000
# As launchers tell it: torchrun and accelerate, Slurm, the MPIs, an indexed job of Kubernetes.
_RANKS = (
    "RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "LOCAL_RANK",
    "JOB_COMPLETION_INDEX",
)
# A job may survive many out-of-memory events. After the first ones, writing may take at most this
# share of the job's time; the snapshot at the end has them all.
_ALWAYS_WRITTEN = 3
_SHARE_OF_TIME = 0.02


def whole_number(text):
    """From 0 on, or None. isdigit() takes what int() does not: "²"."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def rank():
    """Which rank of a distributed job this process is; None outside of one."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
    except Exception:
        pass  # it is not imported, or in the middle of it
    for name in _RANKS:
        number = whole_number(os.environ.get(name, ""))
        if number is not None:
            return number
    return None


def accelerator(torch):
    """The name of the devices whose allocator keeps a history, and torch's module for them; None
    and None where this torch has neither."""
    if hasattr(torch._C, "_cuda_init"):
        return "cuda", torch.cuda
    memory = getattr(getattr(torch, "xpu", None), "memory", None)
    if hasattr(torch._C, "_xpu_init") and hasattr(memory, "_record_memory_history"):
        return "xpu", torch.xpu
    return None, None


def _newer_options(begin):
    """What newer releases record besides, where this one can."""
    try:
        known = inspect.signature(begin).parameters
    except (TypeError, ValueError):
        return {}
    options = {}
    # Pinned memory of the host. The one name is that of 2.14, the other what it was to be.
    for name in ("record_pinned_host_memory", "record_host"):
        if name in known:
            options[name] = True
            break
    if "skip_actions" in known:
        options["skip_actions"] = ["snapshot"]  # that a snapshot was taken tells us nothing
    return options


def _name_owners(snapshot, names):
    """How many blocks have got the name of what keeps them."""
    if not names or not isinstance(snapshot, dict):
        return 0
    owned = 0
    for segment in snapshot.get("segments", []):
        for block in segment.get("blocks", []):
            name = names.get(block.get("address"))
            if name is not None and block.get("state") == "active_allocated":
                block["plimsoll_owner"] = name
                owned += 1
    return owned


class History:
    """Of the process in which it began. A forked child cannot use CUDA: there it does nothing."""

    def __init__(self, torch, max_entries):
        self.torch = torch
        self.kind, self.device = accelerator(torch)
        self.max_entries = max_entries
        self.owner = None  # who switched it on: "plimsoll", or the "script"; None: nobody could
        self.ooms = 0
        self.last_oom = None
        self.seconds = 0.0  # that writing took
        self.budget = None  # the limit that the user gave, in bytes
        self._pid = None
        self._begun = 0.0
        self._observed = False
        self._allocations_then = None  # when memory ran out and that was written
        self._mark = None

    def mine(self):
        return self._pid == os.getpid()

    # Beginning and end.

    def begin(self, on_out_of_memory):
        """`on_out_of_memory` is called with True where a snapshot may be written."""
        self._pid = os.getpid()
        self._begun = time.monotonic()
        self._allocations_then = None
        self.owner = self._switch_on()
        observe = self._native("attach_out_of_memory_observer")
        if observe is None or self._observed:
            return
        self._observed = True  # there is no way to take it back

        def observer(device, requested, *rest):
            if self.mine():
                on_out_of_memory(self._run_out(device, requested))

        observe(observer)

    def _switch_on(self):
        enabled = self._native("isHistoryEnabled")
        if enabled and enabled():
            return "script"
        begin = self.device.memory._record_memory_history
        most = self.max_entries
        today = {"context": "alloc", "stacks": "python", "max_entries": most}
        # As the releases spell it, the newest first.
        ways = (
            ("all", dict(today, **_newer_options(begin))),
            ("all", today),
            (True, {"trace_alloc_max_entries": most, "trace_alloc_record_context": True}),
            (True, {}),
        )
        for how, options in ways:
            try:
                begin(how, **options)
                return "plimsoll"
            except TypeError:
                continue
        return None

    def _native(self, name):
        """Torch's own function for these devices; None where this release has none."""
        return getattr(self.torch._C, "_%s_%s" % (self.kind, name), None)

    def end(self):
        """Nothing more is recorded, unless the script wants it."""
        self.end_step()
        ours, self.owner, self._pid = self.owner == "plimsoll", None, None
        if not ours:
            return
        begin = self.device.memory._record_memory_history
        try:
            begin(None)
        except TypeError:  # before PyTorch 2.1
            begin(False)

    # Out of memory.

    def _run_out(self, device, requested):
        self.ooms += 1
        self.last_oom = {"device": device, "requested": requested}
        self._allocations_then = None
        return self.ooms <= _ALWAYS_WRITTEN or self.is_cheap()

    def is_cheap(self):
        """Whether writing took little of the job's time so far."""
        return self.seconds <= _SHARE_OF_TIME * (time.monotonic() - self._begun)

    def holds_the_allocator(self):
        """Whether torch calls the observer with the allocator's lock held: up to 2.1. Any other
        thread that asks the allocator would wait for this one."""
        version = [whole_number(part) or 0 for part in str(self.torch.__version__).split(".")[:2]]
        return version < [2, 2]

    def take(self):
        """A snapshot of what is alive as memory runs out, by the thread that ran out."""
        begun = time.monotonic()
        allocations = self._allocations()
        snapshot = self.device.memory._snapshot()
        self.seconds += time.monotonic() - begun
        return snapshot, allocations

    def wrote_out_of_memory(self, allocations=None):
        """The latest snapshot has what was alive when memory ran out."""
        self._allocations_then = self._allocations() if allocations is None else allocations

    def only_unwound(self):
        """Whether that snapshot shows more than one of now: nothing was allocated since."""
        return self._allocations_then is not None and self._allocations() == self._allocations_then

    def _allocations(self):
        """How many were made so far on the device that ran out."""
        try:
            statistics = self.device.memory_stats(self.last_oom["device"])
            return statistics["allocation.all.allocated"]
        except Exception:
            return None

    # Snapshots.

    def write(self, replace, names=None, snapshot=None):
        """`replace(save)` writes the file by `save(file)`. `names` has the variable that keeps each
        block, by address. Returns what it cost, and how much of the history it has."""
        begun = time.monotonic()
        self._allocations_then = None
        if snapshot is None:
            snapshot = self.device.memory._snapshot()
        self._name_nodes(snapshot)
        owned = _name_owners(snapshot, names)
        if self.budget and isinstance(snapshot, dict):
            # Whoever reads the file must know that the limit is the user's own.
            snapshot.setdefault("allocator_settings", {})["plimsoll_budget"] = self.budget
        size = replace(lambda file: pickle.dump(snapshot, file, protocol=4))
        traces = snapshot.get("device_traces", []) if isinstance(snapshot, dict) else []
        events = [len(trace) for trace in traces]
        seconds = time.monotonic() - begun
        self.seconds += seconds
        return {
            "bytes": size,
            "seconds": round(seconds, 4),
            "owned": owned,
            "events": sum(events),
            # A full ring buffer has dropped its oldest entries.
            "full": self.owner == "plimsoll" and any(n >= self.max_entries for n in events),
        }

    def _name_nodes(self, snapshot):
        """Of compiled code: which node of its graph a frame was written for. What torch knows of
        that is in this process alone."""
        traceback = sys.modules.get("torch.fx.traceback")
        augment = getattr(sys.modules.get("torch._utils"), "_augment_frames", None)
        if not augment or not getattr(traceback, "_FX_METADATA_REGISTRY", None):
            return
        try:
            blocks = [b for s in snapshot["segments"] for b in s["blocks"]]
            seen = set()
            for row in [e for trace in snapshot["device_traces"] for e in trace] + blocks:
                frames = row.get("frames")
                # Torch makes each list of frames once, however many events have it.
                if frames and id(frames) not in seen:
                    seen.add(id(frames))
                    augment(frames)
        except Exception:
            pass  # the names are a help, the snapshot is needed

    # Marks in the record.

    def begin_step(self, number):
        self.end_step()
        name = "plimsoll.step#%d" % number
        self._mark = self.torch.autograd.profiler.record_function(name)
        self._mark.__enter__()

    def end_step(self):
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)
