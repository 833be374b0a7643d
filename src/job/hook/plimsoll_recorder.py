"""Records the CUDA allocator's history of this process, for `plimsoll run`.

`attach` queues one call for the moment when CUDA is initialised; a process that never does that is
left alone. From then on a snapshot is written when memory runs out, when a signal comes and when the
process ends: one file a process, the latest wins, and beside it a JSON file that tells how the
process ended. Of several out-of-memory events the first and the last are kept, in the folder ooms.

Works with PyTorch 1.13 and newer, on Python 3.7 and newer. Nothing that fails here reaches the
program: it is a line in the run's log.
"""

import atexit
import functools
import json
import os
import pickle
import socket
import sys
import threading
import time

_RANKS = (
    "RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "LOCAL_RANK",
)
# Out-of-memory events that a job survives can be many. After these, writing may take at most this
# part of the job's time; the snapshot at the end has them all.
_ALWAYS_WRITTEN = 3
_SHARE_OF_TIME = 0.02
_LONGEST_TEXT = 4000


def attach(torch, folder, log, load):
    """Queues the recording for when CUDA is initialised, if it ever is."""
    open(os.path.join(os.path.dirname(__file__), "torch_was_imported"), "a").close()
    if not hasattr(torch._C, "_cuda_init"):
        log("torch %s is built without CUDA" % torch.__version__)
        return
    recorder = _Recorder(torch, folder, log, load)
    torch.cuda._lazy_call(recorder.start)


def _guarded(what):
    """A method that must not raise: its failure is a line in the log."""

    def decorate(method):
        @functools.wraps(method)
        def call(self, *args):
            try:
                return method(self, *args)
            except Exception as error:
                self.log("%s failed: %s: %s" % (what, type(error).__name__, error))
                return None

        return call

    return decorate


class _Recorder:
    def __init__(self, torch, folder, log, load):
        self.torch = torch
        self.folder = folder
        self.log = log
        self.load = load  # of another file of the hook
        self.pid = None  # of the process that records; a forked child has another
        self.stem = None
        self.lock = threading.Lock()
        self.begun = 0.0
        self.max_entries = int(os.environ.get("PLIMSOLL_RUN_MAX_ENTRIES", "200000"))
        self.history = None
        self.ooms = 0
        self.last_oom = None
        self.oom_file = None  # while the latest snapshot is that of an out-of-memory
        self.allocations_then = None
        self.steps = 0
        self.ended = None
        self.error = None
        self.snapshots = {}
        self.seconds = 0.0
        self.signals = None
        self.status = None  # the file for `plimsoll watch`
        self.budget = None  # that was set

    def mine(self):
        return self.pid == os.getpid()

    # Beginning.

    @_guarded("starting to record")
    def start(self):
        self.pid = os.getpid()
        self.begun = time.time()
        self.limit()
        self.history = self.record()
        attach_observer = getattr(self.torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach_observer:
            attach_observer(self.on_out_of_memory)
        self.count_steps()
        if os.environ.get("PLIMSOLL_RUN_MODULES") == "1":
            self.name_modules()
        atexit.register(self.on_exit)
        self.watch_hard_exit()
        self.watch_signals()
        self.tell()

    @_guarded("the history")
    def record(self):
        """Who switched the history on: this hook, or the script before it."""
        enabled = getattr(self.torch._C, "_cuda_isHistoryEnabled", None)
        if enabled and enabled():
            return "script"
        begin = self.torch.cuda.memory._record_memory_history
        # As the releases spell it, the newest first.
        ways = (
            (
                ("all",),
                {"context": "alloc", "stacks": "python", "max_entries": self.max_entries},
            ),
            (
                (True,),
                {
                    "trace_alloc_max_entries": self.max_entries,
                    "trace_alloc_record_context": True,
                },
            ),
            ((True,), {}),
        )
        for args, kwargs in ways:
            try:
                begin(*args, **kwargs)
                return "run"
            except TypeError:
                continue
        self.log("this torch cannot record a history")
        return None

    @_guarded("--budget")
    def limit(self):
        budget = int(os.environ.get("PLIMSOLL_RUN_BUDGET", "0"))
        if not budget:
            return
        cuda = self.torch.cuda
        local = os.environ.get("LOCAL_RANK", "")
        count = cuda.device_count()
        # A rank has a device of its own, and must not make a context on the others.
        ranked = local.isdigit() and int(local) < count
        for device in [int(local)] if ranked else range(count):
            total = cuda.get_device_properties(device).total_memory
            if budget >= total:
                self.log("--budget is not below the %d bytes of device %d" % (total, device))
                continue
            with cuda.device(device):
                cuda.set_per_process_memory_fraction(budget / total, device)
            self.budget = budget

    @_guarded("counting steps")
    def count_steps(self):
        optimizer = sys.modules.get("torch.optim.optimizer")
        register = getattr(optimizer, "register_optimizer_step_post_hook", None)
        if register:
            register(self.on_step)

    def on_step(self, *_):
        self.steps += 1

    @_guarded("--modules")
    def name_modules(self):
        tell = getattr(self.torch._C, "_cuda_setMemoryMetadata", None)
        if tell is None:
            self.log("--modules needs PyTorch 2.10 or newer")
            return
        self.load("plimsoll_modules").begin(self.torch, tell, self.log)

    @_guarded("watching os._exit")
    def watch_hard_exit(self):
        # Forked processes end by it, and launchers use it; atexit is not called then.
        hard_exit = os._exit

        def _exit(status):
            self.end({"how": "exit", "status": status})
            hard_exit(status)

        os._exit = _exit

    @_guarded("watching signals")
    def watch_signals(self):
        def told(name, deadly):
            if deadly:
                self.end({"how": "signal", "signal": name})
            else:
                self.save("signal")

        self.signals = self.load("plimsoll_signals").Signals(told, self.report, self.log)
        self.signals.watch()

    # Snapshots.

    @_guarded("the snapshot of an out-of-memory")
    def on_out_of_memory(self, device, requested, *rest):
        if not self.mine():
            return
        with self.lock:
            self.ooms += 1
            self.last_oom = {"device": device, "requested": requested}
            allowed = _SHARE_OF_TIME * (time.time() - self.begun)
            if self.ooms > _ALWAYS_WRITTEN and self.seconds > allowed:
                self.allocations_then = None
                return
            if self.oom_file:
                self.set_aside("first" if self.ooms == 2 else None)
            self.oom_file = self.write("out of memory")
            self.allocations_then = self.allocations()
            self.tell()

    def on_exit(self):
        self.tell_exit()
        self.let_signals_go()

    @_guarded("letting signals go")
    def let_signals_go(self):
        # From here on no thread of ours runs that could take them.
        if self.signals and self.mine():
            self.signals.let_go()

    def tell_exit(self):
        error = getattr(sys, "last_value", None)  # set before any excepthook is called
        if error is None:
            self.end({"how": "exit"})
            return
        self.end(
            {
                "how": "exception",
                "type": type(error).__name__,
                "text": str(error)[:_LONGEST_TEXT],
            }
        )

    def end(self, how):
        if not self.mine():
            return
        if self.ended is not None:
            with self.lock:
                return  # once the other thread has written
        self.ended = how
        self.save("signal" if how["how"] == "signal" else "exit")

    @_guarded("a snapshot")
    def save(self, at):
        with self.lock:
            self.keep_text()
            # Where it only unwound since an out-of-memory, that snapshot shows what was alive.
            if not self.oom_file or self.allocations() != self.allocations_then:
                if self.oom_file:
                    self.set_aside("last")
                self.write(at)
            self.tell()

    def allocations(self):
        """How many were made so far on the device that ran out."""
        try:
            statistics = self.torch.cuda.memory_stats(self.last_oom["device"])
            return statistics["allocation.all.allocated"]
        except Exception:
            return object()  # unlike any other

    def set_aside(self, name):
        """The snapshot of an out-of-memory that the process survived makes way for the next."""
        old, self.oom_file = self.oom_file, None
        if name is None:
            return
        kept = os.path.join("ooms", "%s.%s.pickle" % (self.stem, name))
        os.makedirs(os.path.join(self.folder, "ooms"), exist_ok=True)
        os.replace(os.path.join(self.folder, old), os.path.join(self.folder, kept))
        self.snapshots[kept] = dict(self.snapshots.pop(old), file=kept)

    @_guarded("the error text")
    def keep_text(self):
        """What was free and what others held on the device stands there and in no snapshot."""
        text = (self.ended or {}).get("text", "")
        if not text.startswith(("CUDA out of memory", "HIP out of memory")):
            return
        rank = self.rank()
        # As torchrun spells it: by this the text finds its snapshot.
        rank = "[rank%d]: " % rank if rank is not None else ""
        self.error = self.name() + ".error.txt"
        with open(os.path.join(self.folder, self.error), "w") as file:
            file.write("%s%s: %s\n" % (rank, self.ended["type"], text))

    def write(self, at):
        begun = time.monotonic()
        snapshot = self.torch.cuda.memory._snapshot()
        if self.budget and isinstance(snapshot, dict):
            # Whoever reads the file must know that the limit is the user's own.
            snapshot.setdefault("allocator_settings", {})["plimsoll_budget"] = self.budget
        self.settle_rank()
        name = self.name() + ".pickle"
        path = os.path.join(self.folder, name)
        part = path + ".part"
        try:
            with open(part, "wb") as file:
                pickle.dump(snapshot, file, protocol=4)
            size = os.path.getsize(part)
            os.replace(part, path)
        except BaseException:
            if os.path.exists(part):
                os.unlink(part)
            raise
        traces = snapshot.get("device_traces", []) if isinstance(snapshot, dict) else []
        events = [len(trace) for trace in traces]
        seconds = time.monotonic() - begun
        self.seconds += seconds
        self.snapshots[name] = {
            "file": name,
            "at": at,
            "bytes": size,
            "seconds": round(seconds, 4),
            "events": sum(events),
            # A full ring buffer has dropped its oldest entries.
            "full": self.history == "run" and any(n >= self.max_entries for n in events),
        }
        return name

    # The JSON file beside the snapshot.

    def rank(self):
        distributed = sys.modules.get("torch.distributed")
        try:
            if distributed.is_available() and distributed.is_initialized():
                return distributed.get_rank()
        except Exception:
            pass
        for name in _RANKS:
            if os.environ.get(name, "").isdigit():
                return int(os.environ[name])
        return None

    def settle_rank(self):
        """Programs that start their ranks themselves tell them only after CUDA has begun."""
        unnamed = self.stem is not None and not self.stem.startswith("rank")
        if unnamed and not self.snapshots and self.rank() is not None:
            os.unlink(os.path.join(self.folder, self.stem + ".json"))
            self.stem = None

    def name(self):
        """rank0.pid4321, and nobody else's."""
        if self.stem is not None:
            return self.stem
        rank = self.rank()
        wanted = ("rank%d." % rank if rank is not None else "") + "pid%d" % self.pid
        for i in range(1, 1000):
            # Another machine that shares the folder may have a process of that number.
            stem = wanted if i == 1 else "%s-%d" % (wanted, i)
            try:
                path = os.path.join(self.folder, stem + ".json")
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                self.stem = stem
                return stem
            except FileExistsError:
                continue
        raise RuntimeError("no name is left for " + wanted)

    def tell(self):
        text = json.dumps(
            {
                "schema": "plimsoll.process/1",
                "pid": self.pid,
                "host": socket.gethostname(),
                "rank": self.rank(),
                "restart": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0),
                "torch": str(self.torch.__version__),
                "history": self.history,
                "max_entries": self.max_entries,
                "began": self.begun,
                "wrote": time.time(),
                "ooms": self.ooms,
                "last_oom": self.last_oom,
                "optimizer_steps": self.steps,
                "ended": self.ended,
                "error_text": self.error,
                "snapshots": list(self.snapshots.values()),
                "seconds": round(self.seconds, 4),
            }
        )
        path = os.path.join(self.folder, self.name() + ".json")
        with open(path + ".part", "w") as file:
            file.write(text)
        os.replace(path + ".part", path)

    # For `plimsoll watch`: about once a second, from the thread that waits for signals.

    def report(self):
        if not self.mine() or self.ended is not None or self.status == "":
            return
        try:
            self.write_status()
        except Exception as error:
            self.status = ""  # once is enough
            self.log("reporting to watch failed: %s: %s" % (type(error).__name__, error))

    def write_status(self):
        if self.status is None:
            # Several machines may share the folder.
            name = "%s.pid%d.status" % (socket.gethostname().replace("/", "_"), self.pid)
            self.status = os.path.join(os.path.dirname(__file__), name)
        devices = map(self.device_status, range(self.torch.cuda.device_count()))
        text = json.dumps(
            {
                "schema": "plimsoll.status/1",
                "pid": self.pid,
                "host": socket.gethostname(),
                "rank": self.rank(),
                "wrote": time.time(),
                "optimizer_steps": self.steps,
                "budget": int(os.environ.get("PLIMSOLL_RUN_BUDGET", "0")) or None,
                "devices": [device for device in devices if device is not None],
            }
        )
        with open(self.status + ".part", "w") as file:
            file.write(text)
        os.replace(self.status + ".part", self.status)

    def device_status(self, device):
        # Asks the allocator, not the device.
        statistics = self.torch.cuda.memory_stats_as_nested_dict(device)
        reserved = statistics.get("reserved_bytes", {}).get("all", {})
        allocated = statistics.get("allocated_bytes", {}).get("all", {})
        if not reserved.get("peak"):
            return None
        uuid = getattr(self.torch.cuda.get_device_properties(device), "uuid", None)
        return {
            "device": device,
            "gpu": self.driver_index(device),
            "uuid": str(uuid).lower() if uuid is not None else None,
            "allocated": allocated["current"],
            "reserved": reserved["current"],
            "peak_allocated": allocated["peak"],
            "peak_reserved": reserved["peak"],
        }

    def driver_index(self, device):
        """As the driver counts, which knows nothing of CUDA_VISIBLE_DEVICES."""
        if "CUDA_VISIBLE_DEVICES" not in os.environ:
            return device
        visible = [entry.strip() for entry in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
        known = device < len(visible) and visible[device].isdigit()
        return int(visible[device]) if known else None
