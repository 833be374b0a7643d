"""Records the allocator's history of this process, for `plimsoll run` and `plimsoll hook`.

`attach` queues one call for the moment when CUDA (or Intel's XPU) is initialised; a process that
never does that is left alone. From then on a snapshot is written when memory runs out, when a
signal comes and as the process ends: one file a process, the latest wins, and beside it a JSON
file that tells how the process ended. Of several out-of-memory events the first and the last are
kept, in the folder ooms.

What is recorded, and when it is written, is in plimsoll_history.py. Nothing that fails here reaches
the program: it is a line in the run's log.
"""

import atexit
import functools
import json
import os
import socket
import sys
import threading
import time

_LONGEST_TEXT = 4000
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
# What tells one job from another that records into the same folder: Slurm's steps, torchrun, Ray.
_JOBS = (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("TORCHELASTIC_RUN_ID",), ("RAY_JOB_ID",))
# What plimsoll_owners imports, and these of each other: they are not on the program's path.
_BEFORE_OWNERS = ("plimsoll_objects", "plimsoll_inside", "plimsoll_graphs", "plimsoll_nameless")


def attach(torch, run):
    """Queues the recording for when the device is initialised, if it ever is."""
    if run.hook:
        open(os.path.join(run.hook, "torch_was_imported"), "a").close()
    recorder = _Recorder(torch, run)
    if recorder.history.device is None:
        run.log("torch %s is built without CUDA" % torch.__version__)
        return
    recorder.history.device._lazy_call(recorder.start)


def _job():
    """Of which job this process is, as its launcher says; None where it does not."""
    for names in _JOBS:
        told = [os.environ.get(name, "") for name in names]
        if told[0] and told[0] != "none":
            return ".".join(filter(None, told))[:200]
    return None


def _program():
    """"ray::Trainer.step" of a worker of Ray's, which says so in its title; else the script."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            title = file.read(200).split(b"\0")[0].decode("utf-8", "replace")
        if title.startswith("ray::"):
            return title
    except OSError:
        pass
    return os.path.basename(getattr(sys, "argv", [""])[0])[:200]


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
    def __init__(self, torch, run):
        self.torch = torch
        self.run = run
        self.common = run.load("plimsoll_history")
        most = int(os.environ.get("PLIMSOLL_RUN_MAX_ENTRIES", "0")) or self.common.ENTRIES
        self.history = self.common.History(torch, most, self.find_owners)
        self.folder = run.folder
        self.log = run.log
        self.stem = None
        self.lock = threading.Lock()
        self.begun = 0.0
        self.oom_file = None  # while the latest snapshot is that of an out-of-memory
        self.steps = 0
        self.ended = None
        self.error = None
        self.snapshots = {}
        self.signals = None
        self.status = None  # the file for `plimsoll watch`

    # Beginning.

    @_guarded("starting to record")
    def start(self):
        self.begun = time.time()
        if not self.make_folder():
            return
        self.limit()
        self.record()
        self.count_steps()
        if os.environ.get("PLIMSOLL_RUN_MODULES") == "1":
            self.name_modules()
        atexit.register(self.on_exit)
        self.watch_hard_exit()
        self.watch_signals()
        self.tell()

    def make_folder(self):
        """`plimsoll run` has made it; otherwise the first process does that uses CUDA."""
        try:
            if self.run.hook is None:
                os.makedirs(self.folder, mode=0o700, exist_ok=True)
            self.tell()
            return True
        except OSError as error:
            # There is no other place to say it.
            print("plimsoll: nothing is recorded: %s" % error, file=sys.stderr, flush=True)
            return False

    @_guarded("the history")
    def record(self):
        self.history.begin(self.on_out_of_memory)
        if self.history.owner is None:
            self.log("this torch cannot record a history")

    @_guarded("--budget")
    def limit(self):
        budget = int(os.environ.get("PLIMSOLL_RUN_BUDGET", "0"))
        if not budget:
            return
        cuda = self.history.device
        local = self.common.whole_number(os.environ.get("LOCAL_RANK", ""))
        count = cuda.device_count()
        # A rank has a device of its own, and must not make a context on the others.
        ranked = local is not None and local < count
        for device in [local] if ranked else range(count):
            total = cuda.get_device_properties(device).total_memory
            if budget >= total:
                self.log("--budget is not below the %d bytes of device %d" % (total, device))
                continue
            with cuda.device(device):
                cuda.set_per_process_memory_fraction(budget / total, device)
            self.history.budget = budget

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
        self.run.load("plimsoll_modules").begin(self.torch, tell, self.log)

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

        self.signals = self.run.load("plimsoll_signals").Signals(told, self.report, self.log)
        self.signals.watch()

    # Snapshots.

    @_guarded("the snapshot of an out-of-memory")
    def on_out_of_memory(self, may_write):
        if not may_write:
            return
        with self.lock:
            if self.oom_file:
                self.set_aside("first" if self.history.ooms == 2 else None)
            self.oom_file = self.write("out of memory", True)
            self.history.wrote_out_of_memory()
            self.tell()

    def on_exit(self):
        self.tell_exit()
        self.let_signals_go()

    @_guarded("letting signals go")
    def let_signals_go(self):
        # From here on no thread of ours runs that could take them.
        if self.signals and self.history.mine():
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
        if not self.history.mine():
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
            if not self.oom_file or not self.history.only_unwound():
                if self.oom_file:
                    self.set_aside("last")
                self.write(at)
            self.tell()

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
        if not text.startswith(("CUDA out of memory", "HIP out of memory", "XPU out of memory")):
            return
        rank = self.common.rank()
        # As torchrun spells it: by this the text finds its snapshot.
        rank = "[rank%d]: " % rank if rank is not None else ""
        self.error = self.name() + ".error.txt"
        with open(os.path.join(self.folder, self.error), "w") as file:
            file.write("%s%s: %s\n" % (rank, self.ended["type"], text))

    @_guarded("naming what keeps tensors")
    def find_owners(self, torch):
        for name in _BEFORE_OWNERS:
            self.run.load(name)
        return self.run.load("plimsoll_owners").find(torch)

    def write(self, at, ran_out=False):
        self.settle_rank()
        name = self.name() + ".pickle"
        written = self.history.write(os.path.join(self.folder, name), ran_out)
        self.snapshots[name] = dict(written, file=name, at=at)
        return name

    # The JSON file beside the snapshot.

    def settle_rank(self):
        """Programs that start their ranks themselves tell them only after CUDA has begun."""
        unnamed = self.stem is not None and not self.stem.startswith("rank")
        if unnamed and not self.snapshots and self.common.rank() is not None:
            os.unlink(os.path.join(self.folder, self.stem + ".json"))
            self.stem = None

    def name(self):
        """rank0.pid4321, and nobody else's."""
        if self.stem is not None:
            return self.stem
        rank = self.common.rank()
        wanted = ("rank%d." % rank if rank is not None else "") + "pid%d" % os.getpid()
        wanted += self.host_in_names()
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

    def host_in_names(self):
        """Without `plimsoll run` the folder is one that many machines may share."""
        host = socket.gethostname().split(".")[0]
        plain = host.replace("-", "").replace("_", "").isalnum() and host.isascii()
        # A rank is told by the name of a file.
        return "." + host if self.run.hook is None and plain and "rank" not in host else ""

    def tell(self):
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
        text = json.dumps(
            {
                "schema": "plimsoll.process/1",
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "rank": self.common.rank(),
                "job": _job(),
                "program": _program(),
                "restart": self.common.whole_number(restarts) or 0,
                "torch": str(self.torch.__version__),
                "history": {"plimsoll": "run"}.get(self.history.owner, self.history.owner),
                "max_entries": self.history.max_entries,
                "began": self.begun,
                "wrote": time.time(),
                "ooms": self.history.ooms,
                "last_oom": self.history.last_oom,
                "optimizer_steps": self.steps,
                "ended": self.ended,
                "error_text": self.error,
                "snapshots": list(self.snapshots.values()),
                "seconds": round(self.history.seconds, 4),
            }
        )
        path = os.path.join(self.folder, self.name() + ".json")
        with open(path + ".part", "w") as file:
            file.write(text)
        os.replace(path + ".part", path)

    # For `plimsoll watch`: about once a second, from the thread that waits for signals.

    def report(self):
        if not self.history.mine() or self.ended is not None or self.status == "":
            return
        try:
            self.write_status()
        except Exception as error:
            self.status = ""  # once is enough
            self.log("reporting to watch failed: %s: %s" % (type(error).__name__, error))

    def write_status(self):
        if self.status is None:
            # Several machines may share the folder.
            name = "%s.pid%d.status" % (socket.gethostname().replace("/", "_"), os.getpid())
            self.status = os.path.join(self.run.hook or self.enter_register(), name)
        devices = map(self.device_status, range(self.history.device.device_count()))
        text = json.dumps(
            {
                "schema": "plimsoll.status/1",
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "rank": self.common.rank(),
                "wrote": time.time(),
                "optimizer_steps": self.steps,
                "budget": int(os.environ.get("PLIMSOLL_RUN_BUDGET", "0")) or None,
                "pinned": self.pinned(),
                "devices": [device for device in devices if device is not None],
            }
        )
        with open(self.status + ".part", "w") as file:
            file.write(text)
        os.replace(self.status + ".part", self.status)

    def enter_register(self):
        """Where `plimsoll watch` looks for runs; `plimsoll run` has entered its own."""
        register = self.run.load("plimsoll_register")
        folder = os.path.join(self.folder, "status")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        entry = register.enter(folder)
        if entry is not None:
            atexit.register(register.leave, entry, os.getpid())
        return folder

    def pinned(self):
        """Bytes of the host that PyTorch's allocator has page-locked, in use or cached; None where
        this release does not tell. Its own counters: nothing is asked of the device."""
        statistics = getattr(self.torch.cuda.memory, "host_memory_stats_as_nested_dict", None)
        try:
            told = statistics()
            # What is cached is in the one or in the other, by release.
            return int((told.get("reserved_bytes") or told["allocated_bytes"])["current"])
        except Exception:
            return None

    def device_status(self, device):
        # Asks the allocator, not the device.
        statistics = self.history.device.memory_stats_as_nested_dict(device)
        reserved = statistics.get("reserved_bytes", {}).get("all", {})
        allocated = statistics.get("allocated_bytes", {}).get("all", {})
        if not reserved.get("peak"):
            return None
        uuid = getattr(self.history.device.get_device_properties(device), "uuid", None)
        return {
            "device": device,
            "gpu": self.driver_index(device),
            "uuid": str(uuid).lower() if uuid is not None else None,
            "allocated": allocated["current"],
            "reserved": reserved["current"],
            "peak_allocated": allocated["peak"],
            "peak_reserved": reserved["peak"],
            "private_pools": self.private_pools(device),
            "rejections": statistics.get("num_oom_rejections"),
        }

    def private_pools(self, device):
        """Bytes in pools of CUDA graphs and of MemPools; None where this release does not tell."""
        try:
            return int(self.history.device.private_pool_memory_reserved(device))
        except Exception:
            return None

    def driver_index(self, device):
        """As the driver counts, which knows nothing of CUDA_VISIBLE_DEVICES, or of ROCm's."""
        told = [os.environ[name] for name in _VISIBLE if name in os.environ]
        if not told:
            return device
        if len(set(told)) > 1:
            return None  # one counts those that the other lets through
        visible = [entry.strip() for entry in told[0].split(",")]
        return self.common.whole_number(visible[device]) if device < len(visible) else None
