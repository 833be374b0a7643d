#!/usr/bin/env python3
"""A recorded job behaves as it would without us: each script of same/*.txt runs plain, under
`plimsoll run` and with the hook in its environment. Exit code, output and files are the same.
same_test.py PROGRAM [SCRIPT…]

A script begins behind a line "=== NAME OPTION…". Before it stands `import torch` and an allocation,
from the stand-in, so that it is recorded. Options:

  nocuda       nothing is put before it
  unrecorded   there is nothing to record
  log          a line in the record's log is expected
  unfinished   the process ends without a word: the record says nothing of its end
  outlives     the process that records outlives the one that was started
  site         a sitecustomize of the user is on the path
  day          runs by day too; otherwise one in five does. PLIMSOLL_NIGHTLY runs all
  send=TERM    the signal is sent once it has printed "ready"
  as=-c        or -m, -, zip: how Python gets the script
  flags=-X     of Python

Times are shown and never judged: other programs take theirs.
"""

import glob
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
FAKE = os.path.join(HERE, "fake_torch")
NIGHTLY = bool(os.environ.get("PLIMSOLL_NIGHTLY"))
PROGRAM = ""
WAYS = ("plain", "run", "hook")
# Against hanging alone: seconds that no job takes, however busy the machine is.
LONG = 1000
PRELUDE = "import torch; torch.cuda.allocate(2 << 30)\n"


class Script:
    def __init__(self, header, text):
        self.name, *options = re.split("[ ,]+", header)
        values = dict(option.partition("=")[::2] for option in options)
        self.options = set(options)
        self.send = values.get("send")
        self.given = values.get("as", "script")
        self.flags = values["flags"].split() if "flags" in values else []
        self.text = text if "nocuda" in values else PRELUDE + text


def read_scripts():
    scripts = []
    for path in sorted(glob.glob(os.path.join(HERE, "same", "*.txt"))):
        with open(path) as file:
            parts = re.split("^=== (.*)\n", file.read(), flags=re.MULTILINE)
        scripts += [Script(header, text) for header, text in zip(parts[1::2], parts[2::2])]
    return scripts


class Ended:
    """What a job left behind, but for its record."""

    def __init__(self, code, work, seconds):
        self.code = 128 - code if code < 0 else code
        self.seconds = seconds
        self.files = dict(self._found(work))

    def _found(self, folder, within=""):
        for entry in sorted(os.scandir(folder), key=lambda one: one.name):
            name = os.path.join(within, entry.name)
            found = entry.stat(follow_symlinks=False)
            kept = [stat.filemode(found.st_mode), found.st_nlink]
            if entry.is_symlink():
                kept.append(os.readlink(entry.path))
            elif entry.is_dir():
                yield from self._found(entry.path, name)
            elif entry.is_file():
                with open(entry.path, "rb") as file:
                    kept.append(file.read())
            yield name, kept


class Place:
    """Two environments of Python, of which one has the hook, and the folders of a job."""

    def __init__(self, root):
        self.root = root
        self.work = os.path.join(root, "work")
        self.records = os.path.join(root, "records")
        self.pythons = {}
        for way in ("plain", "hook"):
            venv = os.path.join(root, way)
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
            # The same path in each, so that nothing that is printed differs by it.
            self.pythons[way] = venv
        hooked = os.path.join(root, "hook", "bin", "python")
        line = [PROGRAM, "hook", "install", "--python", hooked]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        self.python = os.path.join(root, "venv", "bin", "python")

    def use(self, way):
        link = os.path.join(self.root, "venv")
        if os.path.lexists(link):
            os.unlink(link)
        os.symlink(self.pythons["hook" if way == "hook" else "plain"], link)
        for folder in (self.work, self.records):
            shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(os.path.join(self.work, "tmp"))
        os.makedirs(self.records)

    def environment(self, way, script):
        drop = ("PLIMSOLL", "RANK", "LOCAL_RANK", "SLURM", "PYTHON", "TORCHELASTIC")
        own = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
        path = FAKE
        if "site" in script.options:
            path = os.path.join(self.work, "site") + ":" + path
        own.update(PYTHONPATH=path, PYTHONHASHSEED="0", TMPDIR=os.path.join(self.work, "tmp"), NO_COLOR="1")
        own.update(PYTHONPYCACHEPREFIX=os.path.join(self.root, "cache"), PLIMSOLL_RUNS=self.records + "/register")
        own.update(PROGRAM=PROGRAM, RECORDS=self.records)
        if way == "hook":
            own["PLIMSOLL_RUN"] = os.path.join(self.records, "run")
        return own

    def command(self, script):
        """As it is typed, with what it needs written to the folder."""
        path = os.path.join(self.work, "train.py")
        if script.given != "-c":
            with open(path, "w") as file:
                file.write(script.text)
        if "site" in script.options:
            os.mkdir(os.path.join(self.work, "site"))
            with open(os.path.join(self.work, "site", "sitecustomize.py"), "w") as file:
                file.write("import sys; sys.custom = 42\n")
        if script.given == "zip":
            with zipfile.ZipFile(os.path.join(self.work, "job.zip"), "w") as archive:
                archive.writestr(zipfile.ZipInfo("__main__.py"), script.text)  # without a date
        words = {"-m": ["-m", "train"], "-c": ["-c", script.text], "-": ["-"], "zip": ["job.zip"]}
        words = words.get(script.given, ["train.py"]) + ["--lr", "1e-4"]
        return [self.python, *script.flags, *words]

    def run(self, way, script):
        self.use(way)
        line = self.command(script)
        # Its own output apart from that of the program.
        line = ["sh", "-c", 'exec "$@" >out 2>err', "sh", *line]
        if way == "run":
            line = [PROGRAM, "run", "-q", "-o", os.path.join(self.records, "run"), "--", *line]
        given = os.path.join(self.work, "train.py") if script.given == "-" else os.devnull
        begun = time.monotonic()
        with open(given) as stdin, open(os.path.join(self.root, "said"), "w") as said:
            job = subprocess.Popen(
                line, cwd=self.work, env=self.environment(way, script), stdin=stdin, stdout=said, stderr=said
            )
            if script.send:
                self.send(job, getattr(signal, "SIG" + script.send))
            try:
                code = job.wait(LONG)
            except subprocess.TimeoutExpired:
                job.kill()
                raise AssertionError("%s hangs (%s)" % (script.name, way)) from None
        return Ended(code, self.work, time.monotonic() - begun)

    def send(self, job, number):
        out = os.path.join(self.work, "out")
        until = time.monotonic() + LONG
        while time.monotonic() < until and job.poll() is None:
            if os.path.exists(out) and os.path.getsize(out):
                break
            time.sleep(0.01)
        time.sleep(0.05)
        job.send_signal(number)

    def processes(self):
        found = []
        for path in sorted(glob.glob(os.path.join(self.records, "run*", "*.json"))):
            with open(path) as file:
                found.append(json.load(file))
        return found

    def log(self):
        path = os.path.join(self.records, "run", "log.txt")
        if not os.path.exists(path):
            return ""
        with open(path) as file:
            return file.read()


class SameTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.place = Place(cls.folder.name)
        cls.seconds = dict.fromkeys(WAYS, 0.0)
        cls.slow = []
        cls.count = 0

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()
        print("%d scripts" % cls.count, *("%s %.1f s" % one for one in cls.seconds.items()), sep=", ", file=sys.stderr)
        print("over 1.05 times the plain time and 2 s: %s" % (", ".join(cls.slow) or "none"), file=sys.stderr)

    def check(self, script):
        plain = self.place.run("plain", script)
        type(self).count += 1
        for way in WAYS:
            ended = self.place.run(way, script) if way != "plain" else plain
            self.seconds[way] += ended.seconds
            if ended.seconds > 1.05 * plain.seconds + 2:
                self.slow.append("%s (%s %.1f s for %.1f)" % (script.name, way, ended.seconds, plain.seconds))
            with self.subTest(way):
                self.assertEqual(ended.code, plain.code)
                self.assertEqual(ended.files, plain.files)
                if way != "plain":
                    self.check_record(script)

    def check_record(self, script):
        processes = self.place.processes()
        if "log" not in script.options:
            self.assertEqual(self.place.log(), "")
        self.assertEqual(glob.glob(os.path.join(self.place.records, "**", "*.part"), recursive=True), [])
        if "unrecorded" in script.options:
            return self.assertEqual(processes, [])
        self.assertTrue(processes)
        if "unfinished" not in script.options and "outlives" not in script.options:
            self.assertTrue(all(one["ended"] for one in processes), processes)


def add_tests(wanted):
    for i, script in enumerate(read_scripts()):
        if wanted and script.name not in wanted:
            continue
        if not wanted and not NIGHTLY and i % 5 and "day" not in script.options:
            continue
        setattr(SameTest, "test_" + script.name, lambda self, script=script: self.check(script))


if __name__ == "__main__":
    # A shell's background ignores it, and so would what is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    PROGRAM = os.path.abspath(sys.argv[1])
    add_tests(sys.argv[2:])
    unittest.main(argv=sys.argv[:1])
