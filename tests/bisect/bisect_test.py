#!/usr/bin/env python3
"""`plimsoll bisect` in real repositories, with a stand-in for the capture: bisect_test.py PROGRAM [TEST…]

`bisect_test.py PROGRAM --show` prints the answer for one of them, for docs/bisect.md.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEPS = HERE.parent / "data" / "steps"
PYTHON = HERE.parent / "stand_in" / "python"
PROGRAM = ""
LONG = 300
SMALL = "# step mlp_adamw_fp32\n"
LARGE = "# step resnet18_adamw_amp_bf16\n"
LARGEST = "# step gpt2_adamw_fp32\n"
ASKED = ["--gpu", "RTX 4090", "--batch", "8"]


class Repository:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.dated = {}
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words):
        identity = ["-c", "user.name=Ada Example", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
        made = subprocess.run(
            ["git", *identity, *words],
            cwd=self.folder,
            env={**os.environ, **self.dated},
            capture_output=True,
            text=True,
            check=True,
        )
        return made.stdout.strip()

    def commit(self, text, subject, name="train.py", date="2026-11-01T10:00:00Z"):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.git("add", "--all")
        # The same hashes every time.
        self.dated = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        self.git("commit", "--quiet", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD")


class BisectTest(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.TemporaryDirectory()
        self.addCleanup(self.work.cleanup)
        root = Path(self.work.name) / "job"
        root.mkdir()
        self.temporary = Path(self.work.name) / "tmp"
        self.temporary.mkdir()
        self.repository = Repository(root)

    def environment(self):
        return {**os.environ, "TMPDIR": str(self.temporary), "NO_COLOR": "1", "COLUMNS": "100"}

    def bisect(self, *flags, command=(str(PYTHON), "train.py", "{batch}"), cwd=None):
        return subprocess.run(
            [PROGRAM, "bisect", *flags, "--", *command],
            cwd=cwd or self.repository.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=LONG,
        )

    def document(self, *flags, code=1, **more):
        made = self.bisect(*flags, "--json", **more)
        self.assertEqual(made.returncode, code, made.stderr)
        return json.loads(made.stdout)

    def assert_nothing_left(self):
        self.assertEqual(len(self.repository.git("worktree", "list").splitlines()), 1)
        self.assertEqual(list(self.temporary.iterdir()), [])

    def test_finds_the_commit(self):
        hashes = [self.repository.commit(SMALL + f"# {i}\n", f"small {i}") for i in range(6)]
        grew = self.repository.commit(LARGE, "wider | `layers`")
        hashes += [grew] + [self.repository.commit(LARGE + f"# {i}\n", f"large {i}") for i in range(6)]
        found = self.document("--good", hashes[0], *ASKED)
        self.assertEqual(found["schema"], "plimsoll.bisect/1")
        self.assertTrue(found["grew"])
        self.assertEqual(found["first_after"]["commit"], grew)
        self.assertEqual(found["first_after"]["subject"], "wider | `layers`")
        self.assertEqual(found["first_after"]["author"], "Ada Example")
        self.assertRegex(found["first_after"]["date"], r"^\d{4}-\d\d-\d\dT")
        self.assertEqual(found["last_before"]["commit"], hashes[5])
        self.assertEqual(len(found["possible"]), 1)
        self.assertEqual(found["candidates"], 13)
        self.assertLessEqual(len(found["tried"]), 2 + 4)
        peak = found["peak_reserved"]
        self.assertEqual(peak["growth"], peak["after"] - peak["before"])
        self.assertGreater(peak["growth"], 0)
        self.assertTrue(found["categories"])
        self.assertTrue(found["holders"])
        # As predict says of the same step.
        step = STEPS / "resnet18_adamw_amp_bf16.step.json.gz"
        said = subprocess.run([PROGRAM, "predict", str(step), *ASKED, "--json"], capture_output=True, check=True)
        self.assertEqual(json.loads(said.stdout)["reserved"], peak["after"])
        text = self.bisect("--good", hashes[0], *ASKED)
        self.assertEqual(text.returncode, 1)
        self.assertTrue(text.stdout.startswith(f"Commit {grew[:12]} made it grow: from "), text.stdout)
        self.assert_nothing_left()

    def test_users_files_are_not_touched(self):
        good = self.repository.commit(SMALL, "small")
        self.repository.commit(LARGE, "large")
        train = self.repository.folder / "train.py"
        train.write_text("an edit that is not committed\n")
        (self.repository.folder / "staged").write_text("staged")
        self.repository.git("add", "staged")
        hook = self.repository.folder / ".git" / "hooks" / "post-checkout"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {self.repository.folder}/hooked\n")
        hook.chmod(0o755)
        index = (self.repository.folder / ".git" / "index").read_bytes()
        status = self.repository.git("status", "--porcelain")
        index = (self.repository.folder / ".git" / "index").read_bytes()
        self.document("--good", good, *ASKED)
        self.assertEqual((self.repository.folder / ".git" / "index").read_bytes(), index)
        self.assertEqual(self.repository.git("status", "--porcelain"), status)
        self.assertEqual(train.read_text(), "an edit that is not committed\n")
        self.assertEqual(self.repository.git("branch", "--show-current"), "main")
        self.assertFalse((self.repository.folder / "hooked").exists())
        self.assert_nothing_left()

    def test_broken_commits_are_skipped(self):
        good = self.repository.commit(SMALL, "small")
        broken = [self.repository.commit("# broken\n" + "#" * i, f"broken {i}") for i in range(3)]
        bad = self.repository.commit(LARGE, "large")
        found = self.document("--good", good, *ASKED)
        self.assertEqual([one["commit"] for one in found["possible"]], broken + [bad])
        skipped = [one for one in found["tried"] if one["skipped"]]
        self.assertEqual(len(skipped), 3)
        self.assertIn("mend it", skipped[0]["skipped"])
        self.assertIn("One of 4 commits", found["verdict"])
        # And where they lie beside the one.
        self.repository.commit(LARGEST, "largest")
        found = self.document("--good", bad, *ASKED)
        self.assertEqual(found["first_after"]["subject"], "largest")

    def test_ends_that_cannot_be_predicted(self):
        good = self.repository.commit("# broken\n", "broken")
        self.repository.commit(LARGE, "large")
        made = self.bisect("--good", good, *ASKED)
        self.assertEqual(made.returncode, 2)
        self.assertIn(f"commit {good[:12]} cannot be predicted", made.stderr)

    def test_nothing_grew(self):
        good = self.repository.commit(SMALL, "small")
        for i in range(3):
            self.repository.commit(SMALL + f"# {i}\n", f"small {i}")
        found = self.document("--good", good, *ASKED, code=0)
        self.assertFalse(found["grew"])
        self.assertIsNone(found["first_after"])
        self.assertEqual(len(found["tried"]), 2)
        self.assertTrue(found["verdict"].startswith("No commit between "))

    def test_shrinking_is_no_growth(self):
        good = self.repository.commit(LARGE, "large")
        self.repository.commit(SMALL, "small")
        self.assertLess(self.document("--good", good, *ASKED, code=0)["peak_reserved"]["growth"], 0)

    def test_allowance_and_rest(self):
        hashes = [self.repository.commit(text, "a commit") for text in (SMALL, LARGE, LARGEST)]
        found = self.document("--good", hashes[0], *ASKED)
        self.assertEqual(found["first_after"]["commit"], hashes[1])
        self.assertGreater(found["peak_reserved_in_all"]["growth"], found["peak_reserved"]["growth"])
        above = self.document("--good", hashes[0], "--fail-above", "5GiB", *ASKED)
        self.assertEqual(above["first_after"]["commit"], hashes[2])
        text = self.bisect("--good", hashes[0], *ASKED).stdout
        self.assertIn(f"plimsoll bisect --good {hashes[1][:12]} --bad HEAD --fail-above 1%", text)

    def test_below_the_root_and_links(self):
        good = self.repository.commit(SMALL, "small", "jobs/train.py")
        self.repository.commit(LARGE, "large", "jobs/train.py")
        folder = self.repository.folder / "jobs"
        self.assertTrue(self.document("--good", good, *ASKED, cwd=folder)["grew"])
        # A Python that lies in the user's files and is not committed, named from the folder.
        (self.repository.folder / ".git" / "info").mkdir(exist_ok=True)
        (self.repository.folder / ".git" / "info" / "exclude").write_text("venv\ndata\n")
        (folder / "venv").mkdir()
        (folder / "venv" / "python").symlink_to(PYTHON)
        command = ("venv/python", "train.py", "{batch}")
        self.assertTrue(self.document("--good", good, *ASKED, cwd=folder, command=command)["grew"])
        (folder / "data").mkdir()
        (folder / "data" / "kept").write_text("kept")
        self.document("--good", good, "--link", "data", *ASKED, cwd=folder)
        self.assertEqual((folder / "data" / "kept").read_text(), "kept")
        made = self.bisect("--good", good, "--link", "train.py", *ASKED, cwd=folder)
        self.assertEqual(made.returncode, 2)
        self.assertIn("--link names what is committed", made.stderr)
        self.assert_nothing_left()

    def test_merges(self):
        good = self.repository.commit(SMALL, "small")
        self.repository.git("checkout", "--quiet", "-b", "branch")
        self.repository.commit(SMALL + "# 1\n", "one of the branch")
        grew = self.repository.commit(LARGE, "two of the branch")
        self.repository.git("checkout", "--quiet", "main")
        self.repository.commit("", "beside it", "other")
        self.repository.git("merge", "--quiet", "--no-ff", "-m", "merge", "branch")
        made = self.bisect("--good", good, *ASKED)
        self.assertIn("it is a merge", made.stdout)
        line = next(one for one in made.stdout.splitlines() if one.strip().startswith("plimsoll bisect"))
        words = shlex.split(line)
        found = self.document("--good", words[3], "--bad", words[5], *ASKED)
        self.assertEqual(found["first_after"]["commit"], grew)

    def test_releases(self):
        pythons = []
        for name, text in (("a", SMALL), ("b", SMALL), ("c", LARGE)):
            folder = Path(self.work.name) / name
            folder.mkdir()
            (folder / "python").symlink_to(PYTHON)
            (folder / "step").write_text(text)
            pythons += ["--python", str(folder / "python")]
        found = self.document(*pythons, *ASKED, command=("python", "train.py", "{batch}"))
        self.assertEqual(found["of"], "releases")
        self.assertEqual(found["first_after"]["python"], pythons[-1])
        self.assertTrue(found["first_after"]["torch"])

    def test_ended_by_a_signal(self):
        good = self.repository.commit(SMALL, "small")
        self.repository.commit("# slow\n", "slow")
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen(
                [PROGRAM, "bisect", "--good", good, *ASKED, "--", str(PYTHON), "train.py", "{batch}"],
                cwd=self.repository.folder,
                env=self.environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            deadline = time.monotonic() + LONG
            while not list(self.temporary.glob("plimsoll-*/complaint.txt")) and time.monotonic() < deadline:
                # The second try has begun once its archive lies there, after its worktree.
                if list(self.temporary.glob("*/capture.zip")) and "slow" in self.checked_out():
                    break
                time.sleep(0.05)
            process.send_signal(number)
            _, said = process.communicate(timeout=LONG)
            self.assertEqual(process.returncode, 128 + number, said)
            self.assertIn("stopped", said)
            self.assert_nothing_left()

    def checked_out(self):
        files = list(self.temporary.glob("*/job/train.py"))
        return files[0].read_text() if files else ""

    def test_what_cannot_be_asked(self):
        good = self.repository.commit(SMALL, "small")
        other = self.repository.commit(LARGE, "large")
        for flags, said in (
            ([], "neither --good nor --python"),
            (["--good", "nothing"], "'nothing' names no commit"),
            (["--good", "HEAD"], "the two commits are one"),
            (["--good", other, "--bad", good], "does not come before"),
            (["--python", "a"], "nothing to compare it with"),
            (["--python", "a", "--python", "b"], "--python names no file"),
            (["--good", good, "--python", "a"], "ask one after the other"),
        ):
            made = self.bisect(*flags, *ASKED)
            self.assertEqual(made.returncode, 2, flags)
            self.assertIn(said, made.stderr)
            self.assertEqual(len(made.stderr.strip().splitlines()), 1, made.stderr)
        made = self.bisect("--good", good, "--gpu", "L4")
        self.assertIn("no batch to compare at is given", made.stderr)
        made = self.bisect("--good", good, *ASKED, cwd=self.work.name)
        self.assertIn("lies in no git repository", made.stderr)


def show():
    test = BisectTest("test_merges")
    test.setUp()
    plain, entropy = "# step bisect/plain\n", "# step bisect/entropy\n"
    commits = (
        (plain, "train a small language model"),
        (plain + "# random words\n", "name the data"),
        (plain + "# lr\n", "read the learning rate from the environment"),
        ("import evaluation\n", "begin the evaluation"),
        (plain + "# evaluation\n", "evaluate later"),
        (entropy, "reward entropy"),
        (entropy + "# said\n", "say what is trained"),
        (entropy + "# ten\n", "ten steps are enough"),
    )
    for day, (text, subject) in enumerate(commits, 1):
        test.repository.commit(text, subject, date=f"2026-11-0{day}T10:00:00Z")
    made = test.bisect("--good", "HEAD~7", "--gpu", "RTX 4090", "--batch", "16", "-q")
    print(made.stdout.replace(str(PYTHON), "python"), end="")
    test.doCleanups()


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    if sys.argv[1:] == ["--show"]:
        show()
    else:
        unittest.main()
