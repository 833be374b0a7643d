#!/usr/bin/env python3
"""Whole jobs under `plimsoll run`, against a stand-in for torch: run_test.py PROGRAM [TEST…]"""

import glob
import json
import os
import pickle
import pty
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = ""
# Against hanging alone: seconds that no job takes, however busy the machine is.
LONG = 1000
# One step each; the third request of 6 GiB does not fit into the device's 16.
TRAIN = """
    import torch
    from torch.optim import optimizer
    torch.cuda.allocate(2 << 30)
    optimizer.step()
"""
# What the verdict of a job that ran out says.
VERDICT = "could not be allocated"
RUN_OUT = TRAIN + "    for _ in range(3): torch.cuda.allocate(6 << 30)\n"


class Job:
    """A finished run and what it left."""

    def __init__(self, folder, done):
        self.folder = folder
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr
        self.processes = []
        for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
            with open(path) as file:
                self.processes.append(json.load(file))

    def names(self, pattern="*.pickle"):
        paths = glob.glob(os.path.join(self.folder, pattern))
        return sorted(os.path.relpath(path, self.folder) for path in paths)


class RunTest(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.TemporaryDirectory()
        self.addCleanup(self.work.cleanup)
        self.count = 0

    def write(self, name, text):
        path = os.path.join(self.work.name, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(textwrap.dedent(text))
        return path

    def command(self, script, flags=(), *words):
        self.count += 1
        path = self.write("train%d.py" % self.count, script)
        folder = os.path.join(self.work.name, "run%d" % self.count)
        line = [PROGRAM, "run", "-o", folder, *flags, "--", sys.executable, path, *words]
        return folder, line

    def environment(self, **more):
        own = {k: v for k, v in os.environ.items() if not k.startswith(("PLIMSOLL", "RANK"))}
        own.update(PYTHONPATH=os.path.join(HERE, "fake_torch"), NO_COLOR="1", COLUMNS="160")
        return dict(own, **more)

    def run_job(self, script, flags=(), words=(), **more):
        folder, line = self.command(script, flags, *words)
        done = subprocess.run(
            line,
            env=self.environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            timeout=LONG,
        )
        return Job(folder, done)

    def start_job(self, script, **more):
        """The command itself, so that it can be sent signals; the script prints a line first."""
        folder, line = self.command(script)
        started = subprocess.Popen(
            line,
            env=self.environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
        )
        self.assertEqual(started.stdout.readline(), "ready\n")
        return folder, started

    def finish(self, folder, started):
        out, err = started.communicate(timeout=LONG)
        return Job(folder, subprocess.CompletedProcess([], started.returncode, out, err))

    # How it ends.

    def test_runs_out(self):
        job = self.run_job("print('own words')\n" + textwrap.dedent(RUN_OUT))
        self.assertEqual((job.code, job.out), (1, "own words\n"))
        self.assertIn("OutOfMemoryError", job.err)
        self.assertIn(VERDICT, job.err)
        (process,) = job.processes
        self.assertEqual(process["ended"]["type"], "OutOfMemoryError")
        self.assertEqual((process["ooms"], process["optimizer_steps"]), (1, 1))
        self.assertEqual(process["snapshots"][0]["at"], "out of memory")
        self.assertEqual(job.names(), ["pid%d.pickle" % process["pid"]])
        self.assertIn("explanation.txt", job.names("*"))
        self.assertIn("report.html", job.names("*"))
        self.assertNotIn("hook", job.names("*"))

    def test_exits_fine(self):
        job = self.run_job(TRAIN)
        self.assertEqual(job.code, 0)
        self.assertEqual(job.processes[0]["ended"], {"how": "exit"})
        self.assertEqual(job.processes[0]["snapshots"][0]["at"], "exit")

    def test_another_exception(self):
        job = self.run_job(TRAIN + "    raise ValueError('shapes')\n")
        self.assertEqual(job.code, 1)
        self.assertEqual(job.processes[0]["ended"]["type"], "ValueError")
        self.assertNotIn(VERDICT, job.err)

    def test_excepthook_of_the_program(self):
        hook = "    import sys; sys.excepthook = lambda *_: None\n"
        job = self.run_job(TRAIN + hook + "    raise ValueError('shapes')\n")
        self.assertEqual(job.processes[0]["ended"]["type"], "ValueError")

    def test_hard_exit(self):
        job = self.run_job(TRAIN + "    import os; os._exit(7)\n")
        self.assertEqual(job.code, 7)
        self.assertEqual(job.processes[0]["ended"], {"how": "exit", "status": 7})
        self.assertEqual(len(job.names()), 1)

    def test_crash(self):
        job = self.run_job(TRAIN + "    import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n")
        self.assertEqual(job.code, 128 + signal.SIGSEGV)
        self.assertIn("killed or crashed", job.err)
        self.assertEqual(job.names(), [])

    def test_crash_after_out_of_memory(self):
        tail = """
    try: torch.cuda.allocate(20 << 30)
    except torch.OutOfMemoryError: pass
    import os, signal; os.kill(os.getpid(), signal.SIGKILL)
"""
        job = self.run_job(TRAIN + tail)
        self.assertEqual(job.code, 128 + signal.SIGKILL)
        self.assertIn(VERDICT, job.err)
        self.assertEqual(len(job.names()), 1)

    def test_retries_keep_the_first_and_the_last(self):
        retry = """
    for size in (40, 30, 20, 4):
        try: torch.cuda.allocate(size << 30)
        except torch.OutOfMemoryError: pass
"""
        job = self.run_job(TRAIN + retry)
        self.assertEqual(job.code, 0)
        pid = job.processes[0]["pid"]
        self.assertEqual(job.processes[0]["ooms"], 3)
        self.assertEqual(job.names("ooms/*"), ["ooms/pid%d.%s.pickle" % (pid, n) for n in ("first", "last")])
        self.assertEqual(len(job.names()), 1)

    # What keeps a tensor.

    def test_names_what_keeps_a_tensor(self):
        job = self.run_job(
            """
    import torch
    class Callback:
        outputs = None
    class Trainer: pass
    class Hostile:
        def __getattribute__(self, name): raise SystemExit(9)
        __repr__ = __hash__ = __eq__ = __len__ = __iter__ = __getattribute__
    def fit(trainer, hostile):
        batch = torch.cuda.allocate(2 << 30)
        for _ in range(5): trainer.callbacks[1].outputs.append(torch.cuda.allocate(3 << 30))
    def main():
        trainer, hostile = Trainer(), [Hostile()]
        trainer.callbacks = [None, Callback()]
        trainer.callbacks[1].outputs = []
        fit(trainer, hostile)
    main()
"""
        )
        self.assertEqual(job.code, 1)
        self.assertEqual(job.processes[0]["snapshots"][0]["owned"], 5)
        self.assertIn("12.00 GiB held by trainer.callbacks[1].outputs[*] in main (train1.py:16)", job.err)
        self.assertIn("2.00 GiB held by batch in fit (train1.py:11)", job.err)
        self.assertNotIn("log.txt", job.names("*"))

    def test_what_was_named_is_let_go(self):
        """Python keeps the dictionary of a frame's locals, if it was asked for it once."""
        job = self.run_job(
            """
    import torch, weakref
    def step():
        batch = torch.cuda.allocate(2 << 30)
        alive = weakref.ref(batch)
        try: torch.cuda.allocate(20 << 30)
        except torch.OutOfMemoryError: pass
        del batch
        print(alive() is None)
    step()
"""
        )
        self.assertEqual((job.code, job.out), (0, "True\n"))

    def test_a_search_that_fails_is_a_line_in_the_log(self):
        job = self.run_job(TRAIN + "    torch.Tensor = None\n    torch.cuda.allocate(20 << 30)\n")
        self.assertEqual(job.code, 1)
        self.assertIn(VERDICT, job.err)
        self.assertIn("naming what keeps tensors failed", job.err)

    def test_survived_refusals_are_bounded(self):
        many = """
    memory, written = torch.cuda.memory, []
    snapshot = memory._snapshot
    memory._snapshot = lambda: written.append(1) or snapshot()
    for _ in range(500):
        try: torch.cuda.allocate(40 << 30)
        except torch.OutOfMemoryError: pass
        torch.cuda.allocate(2 << 20)
    print(len(written))
"""
        job = self.run_job(TRAIN + many)
        self.assertEqual(job.processes[0]["ooms"], 500)
        self.assertLess(int(job.out), 100)

    # Signals.

    WAIT = TRAIN + "    import time; print('ready', flush=True)\n    while True: time.sleep(0.01)\n"

    def test_sigterm(self):
        folder, started = self.start_job(self.WAIT)
        started.send_signal(signal.SIGTERM)
        job = self.finish(folder, started)
        self.assertEqual(job.code, 128 + signal.SIGTERM)
        self.assertEqual(job.processes[0]["ended"], {"how": "signal", "signal": "SIGTERM"})
        self.assertEqual(len(job.names()), 1)

    def test_sigterm_while_the_main_thread_is_in_c(self):
        # A lock that nobody releases: no handler of Python's would ever be called.
        script = TRAIN + """
    import ctypes, threading; print('ready', flush=True)
    while True: ctypes.CDLL(None).sleep(1000000)
"""
        folder, started = self.start_job(script)
        time.sleep(0.1)
        started.send_signal(signal.SIGTERM)
        job = self.finish(folder, started)
        self.assertEqual(job.code, 128 + signal.SIGTERM)
        self.assertEqual(len(job.names()), 1)

    def test_the_programs_handler_still_runs(self):
        for when in ("before", "after"):
            handler = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
"""
            body = handler + TRAIN if when == "before" else TRAIN + handler
            wait = "    print('ready', flush=True)\n    while True: time.sleep(0.01)\n"
            folder, started = self.start_job(body + wait)
            started.send_signal(signal.SIGTERM)
            job = self.finish(folder, started)
            self.assertEqual(job.code, 9, when)
            self.assertEqual(job.processes[0]["ended"], {"how": "exit"}, when)
            self.assertEqual(len(job.names()), 1, when)

    def test_frameworks_see_no_handler(self):
        script = TRAIN + """
    import signal
    print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGTERM, before)
    print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""
        self.assertEqual(self.run_job(script).out, "True True\nTrue\n")

    def test_a_key_of_the_terminal_comes_once(self):
        script = TRAIN + """
    import signal, time
    came = []
    signal.signal(signal.SIGINT, lambda *_: came.append(1) or print("interrupted", flush=True))
    print("ready", flush=True)
    while not came: time.sleep(0.01)
    for _ in range(30): time.sleep(0.01)  # in which it could come again
"""
        folder, line = self.command(script)
        child, terminal = pty.fork()
        if child == 0:
            os.execve(line[0], line, self.environment())
        text = b""
        while b"ready" not in text:
            text += os.read(terminal, 1000)
        os.write(terminal, b"\x03")
        try:
            while True:
                text += os.read(terminal, 1000)
        except OSError:
            pass  # the terminal is closed
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(text.count(b"interrupted"), 1, text)
        self.assertEqual(len(glob.glob(os.path.join(folder, "*.pickle"))), 1)

    def test_a_signal_that_is_survived_is_not_the_end(self):
        script = """
    import os, signal, time
    signal.signal(signal.SIGUSR1, lambda *_: None)
""" + TRAIN + """
    os.kill(os.getpid(), signal.SIGUSR1)
    while not [name for name in os.listdir(os.environ["PLIMSOLL_RUN"]) if name.endswith(".pickle")]:
        time.sleep(0.01)
    raise ValueError("later")
"""
        job = self.run_job(script)
        self.assertEqual(job.processes[0]["ended"]["type"], "ValueError")

    def test_a_handler_that_ends_the_process_while_a_snapshot_is_written(self):
        """At an out-of-memory, at exit, in a second thread, and for a signal that it handles."""
        script = """
    import os, signal, sys, threading, torch
    signal.signal(signal.SIGUSR2, lambda *_: os._exit(5))
    torch.cuda.allocate(2 << 30)
    memory, snapshot = torch.cuda.memory, torch.cuda.memory._snapshot
    def interrupted(device=None):
        os.kill(os.getpid(), signal.SIGUSR2)
        for _ in range(100000): pass  # in which the handler would run
        return snapshot()
    memory._snapshot = interrupted
    def run_out(): torch.cuda.allocate(20 << 30)
    def end(): os._exit(5)
    def in_thread(work):
        thread = threading.Thread(target=work)
        thread.start(); thread.join()
"""
        ends = ("run_out()", "sys.exit(3)", "end()", "in_thread(run_out)", "in_thread(end)",
                "os.kill(os.getpid(), signal.SIGUSR2)")
        for end in ends:
            job = self.run_job(script + "    %s\n" % end)
            self.assertEqual(job.code, 5, end)
            (process,) = job.processes
            self.assertIn(process["ended"]["how"], ("exit", "exception"), end)
            self.assertEqual(len(job.names()), 1, end)
            self.assertEqual(job.names("*.part"), [], end)
        # Releases that hold the allocator's lock meanwhile.
        for release in ("1.13", "2.0", "2.1"):
            self.assertEqual(self.run_job(script + "    run_out()\n", FAKE_TORCH=release).code, 5)

    def test_what_a_handler_raises_reaches_the_program(self):
        script = """
    import signal, torch
    def late(*_): raise TimeoutError("late")
    signal.signal(signal.SIGALRM, late)
    torch.cuda.allocate(2 << 30)
    snapshot = torch.cuda.memory._snapshot
    def slow(device=None):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        import time; time.sleep(0.2)
        return snapshot()
    torch.cuda.memory._snapshot = slow
    try: torch.cuda.allocate(20 << 30)
    except TimeoutError: print("late")
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
"""
        job = self.run_job(script)
        self.assertEqual((job.code, job.out), (0, "late\n"), job.err)

    def test_the_program_does_not_see_the_hook(self):
        script = """
    import os, signal, threading, torch
    def seen():
        before = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(before)
        old = signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return before, old, signal.getsignal(signal.SIGTERM), threading.active_count(), os.dup(0)
    first = seen()
    os.close(first[-1])
    torch.cuda.allocate(2 << 30)
    assert first == seen(), (first, seen())
    os.kill(os.getpid(), signal.SIGTERM)
"""
        job = self.run_job(script)
        self.assertEqual(job.code, 128 + signal.SIGTERM, job.err)
        self.assertEqual(job.processes[0]["ended"], {"how": "signal", "signal": "SIGTERM"})
        self.assertEqual(len(job.names()), 1)

    def test_sigterm_in_pause(self):
        """The program does nothing more, as it would not without us."""
        script = TRAIN + """
    import signal
    print("ready", flush=True)
    signal.pause()
    print("went on")
"""
        folder, started = self.start_job(script)
        time.sleep(0.1)
        started.send_signal(signal.SIGTERM)
        job = self.finish(folder, started)
        self.assertEqual((job.code, job.out), (128 + signal.SIGTERM, ""))
        self.assertEqual(len(job.names()), 1)

    def test_a_process_that_closes_its_files(self):
        """A daemon: its own files get the numbers of those that it closed, and nothing of ours."""
        script = """
    import ctypes, os, signal, sys, time, torch
    torch.cuda.allocate(2 << 30)
    ready = os.dup2(1, 200)
    os.closerange(3, ready)
    os.closerange(ready + 1, 4096)
    own = [os.open("own%d" % i, os.O_CREAT | os.O_RDWR) for i in range(8)]
    signal.signal(signal.SIGUSR1, lambda *_: None)
    for _ in range(200):
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.0005)
    os.write(ready, b"ready\\n")
    while sys.argv[1:] == ["python"]: time.sleep(0.01)
    while True: ctypes.CDLL(None).sleep(1000000)
"""
        for place in ("python", "c"):
            folder, line = self.command(script, (), place)
            work = os.path.join(self.work.name, place)
            os.mkdir(work)
            started = subprocess.Popen(
                line, env=self.environment(), cwd=work, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, universal_newlines=True,
            )
            self.assertEqual(started.stdout.readline(), "ready\n")
            time.sleep(0.2)
            started.send_signal(signal.SIGTERM)
            job = self.finish(folder, started)
            self.assertEqual(job.code, 128 + signal.SIGTERM, place)
            sizes = [os.path.getsize(os.path.join(work, name)) for name in sorted(os.listdir(work))]
            self.assertEqual(sizes, [0] * 8, place)

    def test_keyboard_interrupt(self):
        folder, started = self.start_job(self.WAIT)
        started.send_signal(signal.SIGINT)
        job = self.finish(folder, started)
        # Python ends itself by the signal then; up to 3.7 it exits.
        self.assertEqual(job.code, 128 + signal.SIGINT if sys.version_info >= (3, 8) else 1)
        self.assertIn("KeyboardInterrupt", job.err)
        self.assertEqual(len(job.names()), 1)

    # Several processes.

    def test_forked_workers_leave_no_files(self):
        fork = """
    import os, signal, sys, time
    children = []
    for way in ("exit", "_exit", "sleep"):
        child = os.fork()
        if child == 0:
            if way == "exit": sys.exit(0)
            if way == "_exit": os._exit(0)
            time.sleep(100000)
            os._exit(1)
        children.append(child)
    os.kill(children[2], signal.SIGTERM)
    codes = [os.waitpid(child, 0)[1] for child in children]
    assert codes == [0, 0, signal.SIGTERM], codes
"""
        job = self.run_job(TRAIN + fork)
        self.assertEqual(job.code, 0, job.err)
        self.assertEqual(len(job.processes), 1)
        self.assertEqual(job.processes[0]["ended"], {"how": "exit"})

    def test_forked_before_cuda(self):
        script = """
    import multiprocessing, os, torch
    def work(rank):
        os.environ["RANK"] = str(rank)
        torch.cuda.allocate(2 << 30)
    if __name__ == "__main__":
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=work, args=(r,)) for r in range(3)]
        for worker in workers: worker.start()
        for worker in workers: worker.join()
"""
        job = self.run_job(script)
        self.assertEqual([p["rank"] for p in job.processes], [0, 1, 2])
        self.assertEqual([name.split(".")[0] for name in job.names()], ["rank0", "rank1", "rank2"])

    def test_spawned(self):
        script = """
    import multiprocessing, torch
    def work(size): torch.cuda.allocate(size << 30)
    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        worker = context.Process(target=work, args=(20,))
        worker.start(); worker.join()
        raise SystemExit(worker.exitcode)
"""
        job = self.run_job(script)
        self.assertEqual(job.code, 1)
        (process,) = job.processes
        self.assertEqual(process["ooms"], 1)
        self.assertIn(VERDICT, job.err)

    def test_a_rank_that_is_no_number_does_not_end_the_recording(self):
        for rank in ("²", "x", "9" * 5000):
            odd = {"RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RESTART_COUNT": rank}
            job = self.run_job(TRAIN, ["--budget", "8GiB"], CUDA_VISIBLE_DEVICES="²", **odd)
            (process,) = job.processes
            self.assertEqual((job.code, process["rank"], process["restart"]), (0, None, 0), job.err)
            self.assertEqual(len(job.names()), 1)

    def test_ranks_are_explained_together(self):
        script = """
    import os, subprocess, sys
    if "RANK" not in os.environ:
        ranks = [subprocess.Popen([sys.executable, __file__], env=dict(os.environ, RANK=str(r)))
                 for r in range(2)]
        raise SystemExit(max([rank.wait() for rank in ranks]))
    import torch
    for _ in range(2 + int(os.environ["RANK"])): torch.cuda.allocate(6 << 30)
"""
        job = self.run_job(script)
        self.assertEqual(job.code, 1)
        self.assertEqual([p["rank"] for p in job.processes], [0, 1])
        self.assertIn("1 of 2 ranks ran out of memory: rank 1.", job.err)

    def ask(self, *words):
        done = subprocess.run(
            [PROGRAM, *words],
            env=self.environment(),
            cwd=self.work.name,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
        )
        return done.returncode, done.stdout, done.stderr

    def test_the_folder_is_taken_by_other_commands(self):
        fine = self.run_job(TRAIN)
        dead = self.run_job(RUN_OUT)
        code, out, _ = self.ask("explain", dead.folder)
        self.assertEqual(code, 0)
        self.assertIn(VERDICT, out)
        self.assertEqual(self.ask(dead.folder)[1], out)  # without a command
        self.assertEqual(self.ask("report", dead.folder, "-q", "-o", "page.html")[0], 0)
        self.assertEqual(self.ask("diff", fine.folder, dead.folder)[0], 0)
        code, _, err = self.ask("diff", fine.folder, dead.folder, "--fail-above", "100GiB")
        self.assertEqual(code, 1)
        self.assertIn("the second run ran out of memory, and the first did not", err)
        self.assertEqual(self.ask("diff", dead.folder, dead.folder, "--fail-above", "0B")[0], 0)

    def test_what_to_type_next_has_the_command_in_it(self):
        job = self.run_job(RUN_OUT, words=["--batch-size", "64"])
        self.assertRegex(job.err, r"plimsoll plan --run .*train1.py --batch-size \{batch\}")

    def test_a_folder_in_use_gets_a_neighbour(self):
        first = self.run_job(TRAIN)
        path = self.write("again.py", TRAIN)
        line = ["run", "-o", first.folder, "--", sys.executable, path]
        code, _, err = self.ask(*line)
        self.assertEqual(code, 0)
        self.assertIn("is not empty: recording into %s.2" % first.folder, err)
        self.assertEqual(len(glob.glob(first.folder + ".2/*.pickle")), 1)

    def test_the_job_runs_where_nothing_can_be_recorded(self):
        path = self.write("train.py", "print('trains')\n" + textwrap.dedent(TRAIN))
        file = self.write("file", "")
        for folder in (os.path.join(file, "run"), ""):
            code, out, err = self.ask("run", "-o", folder, "--", sys.executable, path)
            self.assertEqual((code, out), (0, "trains\n"))
            self.assertIn("the job runs without being recorded: ", err)

    def test_several_nodes_share_a_folder(self):
        """As under srun: the environment is all that a process needs."""
        script = TRAIN + """
    import os, subprocess, sys
    if "NODE" not in os.environ:
        for rank in "12":
            variables = dict(os.environ, NODE=rank, RANK=rank)
            subprocess.run([sys.executable, __file__], env=variables, check=True)
"""
        job = self.run_job(script, RANK="0")
        self.assertEqual(sorted(p["rank"] for p in job.processes), [0, 1, 2])

    def test_each_task_in_a_folder_of_its_own(self):
        """As where srun starts plimsoll run."""
        path = self.write("train.py", TRAIN)
        for rank in "01":
            subprocess.run(
                [PROGRAM, "run", "--", sys.executable, path],
                env=self.environment(RANK=rank),
                cwd=self.work.name,
                stderr=subprocess.DEVNULL,
                check=True,
            )
        code, out, _ = self.ask("explain", "plimsoll-run-1", "plimsoll-run-2")
        self.assertEqual(code, 0)
        self.assertIn("2 ranks", out)

    def test_a_log_that_is_a_pipe_is_not_waited_for(self):
        script = TRAIN + "    import os; os.mkfifo(os.path.join(os.environ['PLIMSOLL_RUN'], 'log.txt'))\n"
        self.assertEqual(self.run_job(script).code, 0)

    def test_two_jobs_at_once_and_numbered_folders(self):
        path = self.write("train.py", TRAIN)
        line = [PROGRAM, "run", "-q", "--", sys.executable, path]
        jobs = [
            subprocess.Popen(line, cwd=self.work.name, env=self.environment(), stderr=subprocess.DEVNULL)
            for _ in range(2)
        ]
        self.assertEqual([job.wait(60) for job in jobs], [0, 0])
        folders = sorted(glob.glob(os.path.join(self.work.name, "plimsoll-run-*")))
        self.assertEqual([os.path.basename(f) for f in folders], ["plimsoll-run-1", "plimsoll-run-2"])
        for folder in folders:
            self.assertEqual(len(glob.glob(os.path.join(folder, "*.pickle"))), 1)
            self.assertEqual(os.stat(folder).st_mode & 0o777, 0o700)

    # The host's memory.

    # Waits for lines of the record: however busy the machine is, they come.
    SAMPLES = """
    import json, os, signal, sys, time
    def lines():
        with open(os.path.join(os.environ["PLIMSOLL_RUN"], "host.jsonl")) as file:
            return [json.loads(line) for line in file if line.endswith("\\n")]
    def until(found):
        while not any(found(line) for line in lines()): time.sleep(0.02)
    def holds(pid, least):
        return lambda line: any(row[0] == pid and row[1] >= least for row in line.get("held", []))
    def gone(pid):
        return lambda line: line.get("gone") == pid
"""
    WORKER_KILLED = SAMPLES + """
    child = os.fork()
    if child == 0:
        kept = bytearray(300 << 20)
        time.sleep(1000000)
    until(holds(child, 300 << 20))
    os.kill(child, signal.SIGKILL)
    until(gone(child))
    os.waitpid(child, 0)
    print(child)
    sys.exit(1)
"""

    def host_record(self, folder):
        with open(os.path.join(folder, "host.jsonl")) as file:
            return [json.loads(line) for line in file]

    def test_a_killed_worker_is_told(self):
        job = self.run_job(self.WORKER_KILLED)
        self.assertEqual(job.code, 1)
        pid = int(job.out)
        said = " ".join(job.err.split())
        self.assertIn("orker 0 (pid %d) was killed by signal 9" % pid, said)
        self.assertRegex(said, r"It held 3\d\d\.\d\d MiB at ")
        self.assertIn("explanation.txt", job.names("*"))
        code, out, _ = self.ask("explain", job.folder)
        self.assertEqual(code, 0)
        self.assertIn("(pid %d) was killed by signal 9" % pid, " ".join(out.split()))
        host = json.loads(self.ask("explain", "--json", job.folder)[1])["host"]
        self.assertEqual([(kill["pid"], kill["signal"]) for kill in host["kills"]], [(pid, 9)])
        (worker,) = [process for process in host["processes"] if process["pid"] == pid]
        self.assertEqual((worker["role"], worker["number"]), ("worker", 0))
        self.assertGreaterEqual(worker["then"]["resident"], 300 << 20)
        # Nothing but the file is needed.
        self.assertEqual(self.ask("explain", os.path.join(job.folder, "host.jsonl"))[0], 0)
        code, _, err = self.ask("report", job.folder)
        self.assertEqual(code, 2)
        self.assertIn("a record of the host's memory alone", err)

    def test_a_killed_worker_of_a_job_that_recorded(self):
        job = self.run_job(textwrap.dedent(TRAIN) + textwrap.dedent(self.WORKER_KILLED))
        self.assertEqual(len(job.names()), 1)
        said = " ".join(job.err.split())
        self.assertIn("(pid %d) was killed by signal 9" % int(job.out), said)
        self.assertIn("report.html", job.names("*"))

    def test_the_main_process_is_killed(self):
        script = self.SAMPLES + """
    kept = bytearray(200 << 20)
    until(holds(os.getpid(), 200 << 20))
    os.kill(os.getpid(), signal.SIGKILL)
"""
        job = self.run_job(script)
        self.assertEqual(job.code, 128 + signal.SIGKILL)
        self.assertIn("The main process (pid ", job.err)
        end = self.host_record(job.folder)[-1]
        self.assertEqual((end["code"], end["signal"]), (137, 9))

    def test_a_shell_says_that_its_command_was_killed(self):
        path = self.write("inner.py", self.SAMPLES + """
    kept = bytearray(200 << 20)
    until(holds(os.getpid(), 200 << 20))
    os.kill(os.getpid(), signal.SIGKILL)
""")
        folder = os.path.join(self.work.name, "shell")
        line = "%s %s; exit $?" % (sys.executable, path)
        code, _, err = self.ask("run", "-o", folder, "--", "sh", "-c", line)
        self.assertEqual(code, 137)
        self.assertIn("was killed by signal 9", " ".join(err.split()))

    def test_the_record_outlives_plimsoll(self):
        script = self.SAMPLES + """
    until(holds(os.getpid(), 1))
    print("ready", flush=True)
    time.sleep(1000000)
"""
        folder, started = self.start_job(script)
        started.kill()
        record = self.host_record(folder)
        (pid,) = {line["process"] for line in record if "process" in line}
        os.kill(pid, signal.SIGKILL)
        started.communicate(timeout=LONG)
        code, out, _ = self.ask("explain", folder)
        self.assertEqual(code, 0)
        self.assertIn("the record has no end", out)

    def test_pinned_memory_is_sampled(self):
        script = textwrap.dedent(TRAIN) + textwrap.dedent(self.SAMPLES) + textwrap.dedent("""
            torch.cuda.memory.pinned = 5 << 30
            until(lambda line: any(len(row) > 4 and row[4] == 5 << 30 for row in line.get("held", [])))
        """)
        job = self.run_job(script)
        self.assertEqual(job.code, 0)
        self.assertIn("of the host's memory, at ", job.err)
        host = json.loads(self.ask("explain", "--json", job.folder)[1])["host"]
        self.assertEqual(host["kills"], [])
        self.assertGreater(host["peak_together"], 0)

    def test_ranks_and_their_workers_are_told_apart(self):
        script = self.SAMPLES + """
    import subprocess
    if "RANK" not in os.environ:
        ranks = [subprocess.Popen([sys.executable, __file__], env=dict(os.environ, RANK=str(r)))
                 for r in range(2)]
        sys.exit(max(rank.wait() for rank in ranks))
    child = os.fork()
    if child == 0: time.sleep(1000000)
    until(holds(child, 1))
    until(lambda line: line.get("process") == child and line["role"] == "worker")
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    import torch
"""
        job = self.run_job(script)
        self.assertEqual(job.code, 0, job.err)
        roles = {line["process"]: (line["role"], line["rank"])
                 for line in self.host_record(job.folder) if "process" in line}
        self.assertEqual(
            sorted(roles.values(), key=str),
            [("main", None), ("rank", 0), ("rank", 1), ("worker", 0), ("worker", 1)],
        )

    # Settings.

    def test_budget(self):
        script = "import torch\nfor _ in range(3): torch.cuda.allocate(2 << 30)\n"
        self.assertEqual(self.run_job(script).code, 0)
        job = self.run_job(script, ["--budget", "5GiB"])
        self.assertEqual(job.code, 1)
        self.assertIn(VERDICT, job.err)
        # The snapshot says that the limit is the user's own.
        self.assertIn("shares are of the budget of 5.00 GiB", " ".join(job.err.split()))
        job = self.run_job(script, ["--budget", "100GiB"])
        self.assertEqual(job.code, 0)
        self.assertIn("--budget is not below", job.err)

    def test_max_entries(self):
        script = "import torch\nfor _ in range(1500): torch.cuda.allocate(2 << 20)\n"
        job = self.run_job(script, ["--max-entries", "1000"])
        self.assertEqual(job.processes[0]["snapshots"][0]["events"], 1000)
        self.assertIn("only the last 1000 events", job.err)

    def test_modules(self):
        script = """
    import torch
    from torch.nn import Module, ModuleList
    layers = [Module(lambda: torch.cuda.allocate(2 << 30)) for _ in range(2)]
    def forward():
        for layer in layers: layer()
        torch.cuda.allocate(4 << 30)
    blocks = ModuleList(None, **{"0": layers[0], "1": layers[1]})
    inner = Module(forward, blocks=blocks)
    model = Module(lambda: inner(), module=inner)
    torch.cuda.init()
    model()
    torch.cuda.allocate(20 << 30)
"""
        job = self.run_job(script, ["--modules"])
        with open(os.path.join(job.folder, job.names()[0]), "rb") as file:
            (trace,) = pickle.load(file)["device_traces"]
        notes = [event["user_metadata"] for event in trace if event["action"] == "alloc"]
        self.assertEqual(notes, ["plimsoll.module:" + n for n in ("blocks.0", "blocks.1", "Module")])
        self.assertEqual(trace[-1]["user_metadata"], "")
        self.assertIn("in blocks.*", job.err)

    def test_a_history_of_the_script_stays(self):
        script = """
    import torch
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=17)
    for _ in range(30): torch.cuda.allocate(2 << 20)
"""
        job = self.run_job(script)
        self.assertEqual(job.processes[0]["history"], "script")
        self.assertEqual(job.processes[0]["snapshots"][0]["events"], 17)

    def test_older_releases(self):
        for release in ("1.13", "2.0", "2.1"):
            job = self.run_job(RUN_OUT, FAKE_TORCH=release)
            self.assertEqual(job.code, 1)
            self.assertEqual(job.processes[0]["history"], "run", release)
            self.assertIn(VERDICT, job.err, release)

    # Where there is nothing to record, and what could go wrong.

    def test_no_cuda_in_the_build(self):
        job = self.run_job("import torch; print('fine')", FAKE_TORCH="cpu")
        self.assertEqual((job.code, job.out), (0, "fine\n"))
        self.assertIn("built without CUDA", job.err)
        self.assertIn("nothing was recorded", job.err)

    def test_cuda_not_used(self):
        job = self.run_job("import torch")
        self.assertEqual(job.code, 0)
        self.assertIn("no process of the job initialised CUDA", job.err)

    def test_no_torch(self):
        job = self.run_job("import json, sys; sys.exit(3)")
        self.assertEqual(job.code, 3)
        self.assertIn("no process of the job was seen to import PyTorch before it ended", job.err)
        self.assertFalse(os.path.exists(job.folder))

    def test_torch_is_asked_for_before_it_is_imported(self):
        job = self.run_job("import importlib.util as u; assert u.find_spec('torch')\n" + textwrap.dedent(TRAIN))
        self.assertEqual(len(job.names()), 1)

    def test_a_sitecustomize_of_the_user_runs(self):
        site = self.write("site/sitecustomize.py", "import builtins; builtins.mine = 42\n")
        path = os.path.dirname(site) + ":" + os.path.join(HERE, "fake_torch")
        script = TRAIN + "    import sitecustomize; print(mine, sitecustomize.__file__)\n"
        job = self.run_job(script, PYTHONPATH=path)
        self.assertEqual(job.out, "42 %s\n" % site)
        self.assertEqual(len(job.names()), 1)

    def test_the_programs_path_is_its_own(self):
        job = self.run_job("import sys; print(any('hook' in entry for entry in sys.path))")
        self.assertEqual(job.out, "False\n")

    def test_the_package_is_brought_along(self):
        job = self.run_job("""
            import os, plimsoll
            from plimsoll.base.errors import PlanError
            print(os.path.basename(os.path.dirname(os.path.dirname(plimsoll.__file__))))
        """)
        self.assertEqual((job.code, job.out), (0, "package\n"))

    def test_an_installed_package_comes_first(self):
        self.write("plimsoll.py", "OWN = True\n")
        job = self.run_job("import plimsoll\nprint(plimsoll.OWN)\n")
        self.assertEqual((job.code, job.out), (0, "True\n"))

    def test_a_folder_that_cannot_be_written_to(self):
        script = TRAIN + """
    import os, shutil
    shutil.rmtree(os.environ["PLIMSOLL_RUN"])
    torch.cuda.allocate(2 << 30); print("done")
"""
        job = self.run_job(script)
        self.assertEqual((job.code, job.out), (0, "done\n"))

    def test_temporary_files_that_somebody_removes(self):
        """Where the folder of the run is not safe, the hook lies among them."""
        temporary = os.path.join(self.work.name, "temporary")
        os.mkdir(temporary, 0o700)
        script = """
    import os, shutil, subprocess, sys
    %s
    for name in os.listdir(os.environ["TMPDIR"]): shutil.rmtree(os.path.join(os.environ["TMPDIR"], name))
    import torch
    torch.cuda.allocate(2 << 30)
    try: torch.cuda.allocate(20 << 30)
    except torch.OutOfMemoryError: pass
    try: import plimsoll
    except ImportError: pass
    raise SystemExit(subprocess.call([sys.executable, "-c", "raise SystemExit(6)"]))
"""
        os.chmod(self.work.name, 0o777)
        for before in ("", "import torch; torch.cuda.init()"):
            job = self.run_job(script % before, TMPDIR=temporary)
            self.assertEqual(job.code, 6, job.err)
            self.assertNotIn("Traceback", job.err)

    def test_a_run_inside_a_run(self):
        inner = os.path.join(self.work.name, "inner")
        path = self.write("inner.py", TRAIN)
        script = "import subprocess, sys\nsys.exit(subprocess.call([%r, 'run', '-o', %r, '--', sys.executable, %r]))"
        job = self.run_job(script % (PROGRAM, inner, path))
        self.assertEqual(job.code, 0)
        self.assertEqual(job.names(), [])
        self.assertEqual(len(glob.glob(os.path.join(inner, "*.pickle"))), 1)


if __name__ == "__main__":
    # A shell's background ignores it, and so would what is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
