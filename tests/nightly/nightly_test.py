#!/usr/bin/env python3
"""tools/nightly on a table of its own: tests/nightly/nightly_test.py

Parts are run once for a commit, taken up again after a stop, and held back until what they need has passed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

NIGHTLY = Path(__file__).resolve().parents[2] / "tools/nightly"

TABLE = """
[[part]]
name = "build"
run = "echo built >>ran; test ! -e broken"

[[part]]
name = "check"
after = ["build"]
shards = 2
run = "echo check {shard} of {shards} with {jobs} >>ran"

[[part]]
name = "fuzz"
each = "targets/fuzz_*.cc"
at_once = 2
run = "echo fuzz {names} for {fuzz_seconds} >>ran"

[[part]]
name = "slow"
run = "echo slow >>ran; test -e quick || sleep 600"
"""


class Nightly(unittest.TestCase):
    def setUp(self) -> None:
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.root = Path(made.name)
        (self.root / "targets").mkdir()
        for name in ("a", "b", "c"):
            (self.root / f"targets/fuzz_{name}.cc").touch()
        (self.root / "parts.toml").write_text(TABLE)
        (self.root / ".gitignore").write_text("build/\nran\nbroken\nquick\n")
        self.git("init", "-q")
        self.commit()

    def git(self, *words: str) -> None:
        who = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", "-C", str(self.root), *who, *words], check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a commit")

    def command(self, *words: str) -> list[str]:
        return [sys.executable, str(NIGHTLY), "--root", str(self.root), "--table", str(self.root / "parts.toml"), *words]

    def nightly(self, *words: str) -> tuple[int, str]:
        done = subprocess.run(self.command(*words), capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def ran(self) -> list[str]:
        path = self.root / "ran"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def test_every_part_runs_once_for_a_commit(self) -> None:
        code, text = self.nightly("--jobs", "3", "--fuzz-seconds", "7", "build", "check", "fuzz")
        self.assertEqual(code, 0, text)
        self.assertIn("5 of 5 parts passed", text)
        self.assertEqual(
            self.ran(),
            ["built", "check 0 of 2 with 3", "check 1 of 2 with 3", "fuzz a b for 7", "fuzz c for 7"],
        )
        # With other numbers, too: what passed has passed.
        code, text = self.nightly("--jobs", "1", "build", "check", "fuzz")
        self.assertEqual((code, self.ran()), (0, []), text)
        self.commit()
        self.git("commit", "-q", "--allow-empty", "-m", "another commit")
        self.nightly("build")
        self.assertEqual(self.ran(), ["built"])

    def test_a_changed_tree_has_results_of_its_own(self) -> None:
        self.nightly("build")
        (self.root / "changed.txt").write_text("x")
        self.ran()
        self.nightly("build")
        self.assertEqual(self.ran(), ["built"])

    def test_what_needs_a_failed_part_is_not_run(self) -> None:
        (self.root / "broken").touch()
        code, text = self.nightly("check")
        self.assertEqual((code, self.ran()), (1, ["built"]), text)
        self.assertIn("check.1 not run, since build has not passed", text)
        self.assertIn("0 of 3 parts passed", text)
        (self.root / "broken").unlink()
        code, text = self.nightly("--jobs", "3", "check.1")
        self.assertEqual((code, self.ran()), (0, ["built", "check 1 of 2 with 3"]), text)

    def test_a_part_that_was_stopped_runs_again(self) -> None:
        child = subprocess.Popen(self.command("build", "slow"), stdout=subprocess.PIPE, text=True)
        while "slow" not in ((self.root / "ran").read_text() if (self.root / "ran").exists() else ""):
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        told = child.communicate()[0]
        self.assertEqual(child.returncode, 130, told)
        self.assertIn("slow … stopped", told)
        self.ran()
        (self.root / "quick").touch()
        code, text = self.nightly("build", "slow")
        self.assertEqual((code, self.ran()), (0, ["slow"]), text)

    def test_the_list_shows_results(self) -> None:
        self.nightly("build")
        code, text = self.nightly("--list")
        self.assertEqual(code, 0)
        self.assertRegex(text, r"build +passed in 0\.0 min")
        self.assertRegex(text, r"check\.0 +not run")

    def test_an_unknown_part_is_refused(self) -> None:
        code, text = self.nightly("frobnicate")
        self.assertEqual(code, 2, text)
        self.assertIn("there is no part 'frobnicate'", text)


if __name__ == "__main__":
    unittest.main()
