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
import signal
import socket
import sys
import time

_LONGEST_TEXT = 4000
# Seconds that the program waits for a file to be written. Schedulers kill a job half a minute after
# the first signal.
_PATIENCE = 300.0
_PATIENCE_AT_ITS_END = 30.0
# A handler interrupted the thread that holds the allocator's lock: only what needs none is written.
_PATIENCE_IN_THE_ALLOCATOR = 1.0
# Signals that the program handles may come by the thousand: then few are written.
_ALWAYS_WRITTEN = 3
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


def _text_of(error):
    try:
        return str(error)[:_LONGEST_TEXT]
    except Exception:
        return ""  # the program's own __str__ fails


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
                if _is_a_handlers(error):
                    raise
                self.log("%s failed: %s: %s" % (what, type(error).__name__, error))
                return None

        return call

    return decorate


def _is_a_handlers(error):
    """Whether a signal handler of the program raised it, while instructions of ours ran."""
    codes = set()
    for number in range(1, signal.NSIG):
        handler = signal.getsignal(number)
        handler = getattr(handler, "__func__", handler)
        codes.add(getattr(handler, "__code__", None))
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


class _Recorder:
    def __init__(self, torch, run):
        self.torch = torch
        self.run = run
        self.common = run.load("plimsoll_history")
        most = int(os.environ.get("PLIMSOLL_RUN_MAX_ENTRIES", "0")) or self.common.ENTRIES
        self.history = self.common.History(torch, most)
        self.folder = run.load("plimsoll_files").Folder(run.folder)
        self.log = run.log
        self.work = run.load("plimsoll_work").Work(run.log)
        self.stem = None
        self.begun = 0.0
        self.oom_file = None  # while the latest snapshot is that of an out-of-memory
        self.steps = 0
        self.ended = None
        self.error = None
        self.snapshots = {}
        self.in_the_allocator = False
        self.signals = None
        self.status = None
        self.saved_for_signals = 0

    # Beginning.

    @_guarded("starting to record")
    def start(self):
        self.begun = time.time()
        self.work.do(self.make_folder, _PATIENCE)
        if self.stem is None:
            return
        self.limit()
        self.record()
        self.count_steps()
        if os.environ.get("PLIMSOLL_RUN_MODULES") == "1":
            self.name_modules()
        atexit.register(self.on_exit)
        self.watch_hard_exit()
        self.watch_signals()
        self.work.do(self.tell, _PATIENCE)

    def make_folder(self):
        """`plimsoll run` has made it; otherwise the first process does that uses CUDA."""
        try:
            if self.run.hook is None:
                self.folder.make()
            self.folder.check()
            self.tell()
        except OSError as error:
            # There is no other place to say it.
            print("plimsoll: nothing is recorded: %s" % error, file=sys.stderr, flush=True)

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

        @functools.wraps(hard_exit)
        def _exit(*args, **named):
            status = args[0] if args else named.get("status")
            if isinstance(status, int):
                self.end({"how": "exit", "status": int(status)}, _PATIENCE_AT_ITS_END)
            hard_exit(*args, **named)

        os._exit = _exit

    @_guarded("watching signals")
    def watch_signals(self):
        self.status = self.run.load("plimsoll_status").Status(self.run, self.history)
        signals = self.run.load("plimsoll_signals")
        self.signals = signals.Signals(self.on_signal, self.report, self.run)
        self.signals.watch()

    def on_signal(self, name, deadly):
        if deadly:
            self.end({"how": "signal", "signal": name}, _PATIENCE_AT_ITS_END)
        elif self.saved_for_signals < _ALWAYS_WRITTEN or self.history.is_cheap():
            self.saved_for_signals += 1
            self.work.do(functools.partial(self.save, "signal"), _PATIENCE)

    def report(self):
        """About once a second, from the thread that waits for signals."""
        if self.history.mine() and self.ended is None:
            self.work.do(functools.partial(self.status.report, self.steps), _PATIENCE)

    # Snapshots.

    @_guarded("the snapshot of an out-of-memory")
    def on_out_of_memory(self, may_write):
        if not may_write:
            return
        self.in_the_allocator = self.history.holds_the_allocator()
        try:
            # By this thread: autograd knows of each thread what it is at.
            names = self.find_owners()
            save = functools.partial(self.save_out_of_memory, names, *self.history.take())
            if self.in_the_allocator:
                save()
            else:
                self.work.do(save, _PATIENCE)
        finally:
            self.in_the_allocator = False

    def save_out_of_memory(self, names, snapshot, allocations):
        if self.oom_file:
            self.set_aside("first" if self.history.ooms == 2 else None)
        self.oom_file = self.write("out of memory", names, snapshot)
        self.history.wrote_out_of_memory(allocations)
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
            self.end({"how": "exit"}, _PATIENCE)
            return
        how = {"how": "exception", "type": type(error).__name__}
        self.end(dict(how, text=_text_of(error)), _PATIENCE)

    def end(self, how, longest):
        if not self.history.mine():
            return
        if self.ended is None:
            self.ended = how
        # By whoever comes first: the main thread and the one that waits for signals may both ask.
        at = "signal" if self.ended["how"] == "signal" else "exit"
        if self.in_the_allocator:
            longest = min(longest, _PATIENCE_IN_THE_ALLOCATOR)
        self.work.finish(functools.partial(self.save, at), longest)

    @_guarded("a snapshot")
    def save(self, at):
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
        kept = "%s.%s.pickle" % (self.stem, name)
        self.folder.move(old, self.folder.inside("ooms"), kept)
        kept = os.path.join("ooms", kept)
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
        text = "%s%s: %s\n" % (rank, self.ended["type"], text)
        self.folder.replace_text(self.error, text)

    @_guarded("naming what keeps tensors")
    def find_owners(self):
        begun = time.monotonic()
        for name in _BEFORE_OWNERS:
            self.run.load(name)
        names = self.run.load("plimsoll_owners").find(self.torch)
        self.history.seconds += time.monotonic() - begun
        return names

    def write(self, at, names=None, snapshot=None):
        self.settle_rank()
        name = self.name() + ".pickle"
        written = self.history.write(
            functools.partial(self.folder.replace, name), names, snapshot
        )
        self.snapshots[name] = dict(written, file=name, at=at)
        return name

    # The JSON file beside the snapshot.

    def settle_rank(self):
        """Programs that start their ranks themselves tell them only after CUDA has begun."""
        unnamed = self.stem is not None and not self.stem.startswith("rank")
        if unnamed and not self.snapshots and self.common.rank() is not None:
            self.folder.remove(self.stem + ".json")
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
                self.folder.create(stem + ".json")
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
        self.folder.replace_text(self.name() + ".json", text)
