#!/usr/bin/env python3
"""Jobs that are killed at random moments, under `plimsoll run` and with the hook: none hangs, and
the record is whole, or one line of `explain` says what is missing. kill_test.py PROGRAM

PLIMSOLL_KILLS=200 is how many (4 by day, 200 by night), PLIMSOLL_SEED repeats those of another run.
"""

import collections
import glob
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
FAKE = os.path.join(HERE, "fake_torch")
NIGHTLY = bool(os.environ.get("PLIMSOLL_NIGHTLY"))
KILLS = int(os.environ.get("PLIMSOLL_KILLS", "200" if NIGHTLY else "4"))
SEED = int(os.environ.get("PLIMSOLL_SEED", "0")) or random.SystemRandom().randrange(1, 10**9)
SIGNALS = ("SIGTERM", "SIGKILL", "SIGINT", "SIGUSR1")
# Against hanging alone: seconds that no job takes, however busy the machine is.
LONG = 1000
# What the script does when the signal comes.
HANDLERS = {
    "none": "",
    "os._exit": "signal.signal({0}, lambda *_: os._exit(5))",
    "sys.exit": "signal.signal({0}, lambda *_: sys.exit(6))",
    "raises": "def late(*_): raise TimeoutError('late')\nsignal.signal({0}, late)",
    "goes on": "signal.signal({0}, lambda *_: None)",
}
SCRIPT = """
import os, signal, sys, time
print("ready", flush=True)
%s
import torch
from torch.optim import optimizer
for step in range(60):
    # What a snapshot takes is most of the time, so that most signals come in the middle of one.
    for _ in range(300): torch.cuda.note("alloc", 1 << 40, 2 << 20)
    optimizer.step()
    torch.cuda.allocate(2 << 20)
    if step %% 4 == 1:
        try: torch.cuda.allocate(20 << 30)
        except torch.OutOfMemoryError: pass
    time.sleep(0.002)
raise SystemExit(step %% 7)
"""


class Kill:
    def __init__(self, number, draw, root, hooked):
        self.draw = draw
        self.way = draw.choice(("run", "hook"))
        self.name = draw.choice(SIGNALS)
        self.handler = draw.choice(sorted(HANDLERS)) if self.name != "SIGKILL" else "none"
        self.moment = draw.uniform(0, 1.0)
        self.of_job = self.name == "SIGKILL" or draw.random() < 0.5
        self.work = os.path.join(root, str(number))
        self.folder = os.path.join(self.work, "run")
        self.python = hooked if self.way == "hook" else sys.executable
        os.mkdir(self.work)

    def __str__(self):
        target = "the job" if self.of_job else "what started it"
        return "%s, %s to %s %.3f s after its start, handler: %s" % (
            self.way, self.name, target, self.moment, self.handler)

    def command(self):
        path = os.path.join(self.work, "train.py")
        with open(path, "w") as file:
            file.write(SCRIPT % HANDLERS[self.handler].format("signal." + self.name))
        line = [self.python, path]
        return line if self.way == "hook" else [PROGRAM, "run", "-o", self.folder, "--", *line]

    def environment(self):
        own = {k: v for k, v in os.environ.items() if not k.startswith(("PLIMSOLL", "RANK", "PYTHON"))}
        own.update(PYTHONPATH=FAKE, NO_COLOR="1", PLIMSOLL_RUNS=os.path.join(self.work, "register"))
        if self.way == "hook":
            own["PLIMSOLL_RUN"] = self.folder
        return own

    def run(self):
        with open(os.path.join(self.work, "said"), "w") as said:
            started = subprocess.Popen(self.command(), env=self.environment(), stdout=subprocess.PIPE, stderr=said)
        started.stdout.readline()
        time.sleep(self.moment)
        self.send(started)
        try:
            started.wait(LONG)
        except subprocess.TimeoutExpired:
            raise AssertionError("it hangs") from None
        return started.returncode

    def send(self, started):
        target = started.pid
        if self.way == "run" and self.of_job:
            with open("/proc/%d/task/%d/children" % (target, target)) as children:
                found = children.read().split()
            if not found:
                return  # it has ended
            target = int(found[0])
        try:
            os.kill(target, getattr(signal, self.name))
        except ProcessLookupError:
            pass


def missing(folder):
    """What a record lacks, in words; "" where it is whole."""
    processes = [path for path in glob.glob(os.path.join(folder, "*.json"))]
    if not processes:
        return NO_PROCESS
    for path in processes:
        with open(path) as file:
            text = file.read()
        if not text:
            return "what a process told"
        process = json.loads(text)
        if not process["ended"]:
            return "an end"
        for snapshot in process["snapshots"]:
            with open(os.path.join(folder, snapshot["file"]), "rb") as file:
                pickle.load(file)
        if not process["snapshots"]:
            return "a snapshot"
    return ""


def explain(folder):
    done = subprocess.run(
        [PROGRAM, "explain", folder], capture_output=True, universal_newlines=True,
        env=dict(os.environ, NO_COLOR="1", COLUMNS="200"), timeout=LONG,
    )
    return done.returncode, done.stdout, done.stderr.splitlines()


def check(kill):
    code = kill.run()
    lacks = missing(kill.folder)
    explained, out, lines = explain(kill.folder)
    assert explained in (0, 2), "explain ended with %d" % explained
    assert not any("Traceback" in line for line in lines), lines
    said = [line for line in lines if line.startswith("plimsoll: ")]
    if explained == 2:
        assert len(said) == 1, "explain said %s" % lines
    if lacks == NO_PROCESS:
        pass  # CUDA had not begun. There may be samples of the host's memory, which are explained
    elif lacks:
        assert any(WORDS in line for line in said) or explained == 2, "%s is missing, and explain said %s" % (lacks, lines)
    else:
        assert explained == 0 and not any(WORDS in line for line in said), (code, lines)
    parts = glob.glob(os.path.join(kill.folder, "**", "*.part"), recursive=True)
    assert kill.name == "SIGKILL" or not parts, parts
    return lacks


NO_PROCESS = "no process"
# What explain says of a process that was killed before it had written its end.
WORDS = "has no end"


def main():
    print("%d kills, PLIMSOLL_SEED=%d" % (KILLS, SEED), flush=True)
    draw = random.Random(SEED)
    counts = collections.Counter()
    failed = 0
    with tempfile.TemporaryDirectory() as root:
        venv = os.path.join(root, "venv")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        hooked = os.path.join(venv, "bin", "python")
        subprocess.run([PROGRAM, "hook", "install", "--python", hooked], check=True, stdout=subprocess.DEVNULL)
        for number in range(KILLS):
            kill = Kill(number, draw, root, hooked)
            try:
                counts[check(kill) or "nothing"] += 1
            except AssertionError as error:
                failed += 1
                print("kill %d: %s\n  %s" % (number, kill, error), flush=True)
    print("missing in the record:", ", ".join("%s %d" % one for one in counts.most_common()))
    print("%d of %d as they should be" % (KILLS - failed, KILLS))
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    PROGRAM = os.path.abspath(sys.argv[1])
    sys.exit(main())
