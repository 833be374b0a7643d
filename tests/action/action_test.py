#!/usr/bin/env python3
"""The GitHub action against a repository and an API of its own, both here: action_test.py PROGRAM [TEST…]

`action_test.py PROGRAM --show` prints the comment of one such run, for docs/ci.md.
"""

import http.server
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SCRIPT = ROOT / "action" / "memory_comment.py"
STEPS = ROOT / "tests" / "data" / "steps"
PYTHON = ROOT / "tests" / "stand_in" / "python"
PROGRAM = ""
SMALL = "# step mlp_adamw_fp32\n"
LARGE = "# step gpt2_adamw_fp32\n"
BOT = "github-actions[bot]"
MARKER = "<!-- plimsoll: memory -->"


class GitHub:
    """As much of its API as the action asks: the comments of one pull request, a hundred a page."""

    def __init__(self):
        self.comments = []
        self.refuse = {}  # method: status
        self.asked = []
        self.number = 100
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, status, document=None):
                body = b"" if document is None else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def handle_any(self):
                outer.asked.append(f"{self.command} {self.path}")
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Authorization") != "Bearer secret":
                    return self.answer(401, {})
                if self.command in outer.refuse:
                    return self.answer(outer.refuse[self.command], {})
                path, _, query = self.path.partition("?")
                if path == "/repos/ada/job/issues/7/comments":
                    if self.command == "GET":
                        page = int(re.search(r"[?&]page=(\d+)", "?" + query)[1])
                        return self.answer(200, outer.comments[(page - 1) * 100 : page * 100])
                    return self.answer(201, outer.add(BOT, json.loads(body)["body"]))
                named = re.fullmatch(r"/repos/ada/job/issues/comments/(\d+)", path)
                one = next((c for c in outer.comments if named and c["id"] == int(named[1])), None)
                if one is None:
                    return self.answer(404, {})
                if self.command == "DELETE":
                    outer.comments.remove(one)
                    return self.answer(204)
                one["body"] = json.loads(body)["body"]
                return self.answer(200, one)

            do_GET = do_POST = do_PATCH = do_DELETE = handle_any

            def log_message(self, *words):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def add(self, login, body):
        self.number += 1
        self.comments.append({"id": self.number, "user": {"login": login}, "body": body})
        return self.comments[-1]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class ActionTest(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.TemporaryDirectory()
        self.addCleanup(self.work.cleanup)
        self.folder = Path(self.work.name) / "job"
        self.folder.mkdir()
        self.github = GitHub()
        self.addCleanup(self.github.close)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words):
        identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
        made = subprocess.run(["git", *identity, *words], cwd=self.folder, capture_output=True, text=True, check=True)
        return made.stdout.strip()

    def commit(self, text):
        (self.folder / "train.py").write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", "a commit")
        return self.git("rev-parse", "HEAD")

    def settings(self, base, **more):
        event = Path(self.work.name) / "event.json"
        event.write_text(json.dumps({"pull_request": {"number": 7, "base": {"sha": base}}} if base else {}))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PLIMSOLL_", "GITHUB_"))}
        return {
            **kept,
            "GITHUB_API_URL": self.github.url,
            "GITHUB_REPOSITORY": "ada/job",
            "GITHUB_EVENT_PATH": str(event),
            "GITHUB_OUTPUT": str(Path(self.work.name) / "output"),
            "GITHUB_STEP_SUMMARY": str(Path(self.work.name) / "summary"),
            "RUNNER_TEMP": self.work.name,
            "PLIMSOLL_PROGRAM": PROGRAM,
            "PLIMSOLL_COMMAND": f"{PYTHON} train.py --batch-size {{batch}}",
            "PLIMSOLL_GPU": "RTX 4090",
            "PLIMSOLL_BATCH": "8",
            **more,
        }

    def step(self, name, settings):
        return subprocess.run(
            [sys.executable, str(SCRIPT), name], cwd=self.folder, env=settings, capture_output=True, text=True
        )

    def act(self, base, token="secret", **more):
        """Both steps, each with what action.yml gives it."""
        settings = self.settings(base, **more)
        first = self.step("predict", settings)
        self.assertEqual(first.returncode, 0, first.stdout + first.stderr)
        self.log = first.stdout
        return self.step("comment", {**settings, "PLIMSOLL_TOKEN": token})

    def ours(self):
        return [c["body"] for c in self.github.comments if c["user"]["login"] == BOT]

    def test_creates_then_edits(self):
        base = self.commit(SMALL)
        self.commit(LARGE)
        made = self.act(base)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("plimsoll: commented", made.stdout)
        (body,) = self.ours()
        self.assertTrue(body.startswith(MARKER + "\n"))
        self.assertIn("Batch 8 fits on `RTX 4090`", body)
        self.assertIn("| reserved |", body)
        self.assertIn("By category", body)
        self.assertIn("By source line", body)
        self.commit(SMALL)
        made = self.act(base)
        self.assertIn("plimsoll: edited the comment", made.stdout)
        (body,) = self.ours()
        self.assertIn("Reserved memory is as before.", body)
        self.assertEqual(len(self.git("worktree", "list").splitlines()), 1)
        self.assertEqual(self.git("status", "--porcelain"), "")

    def test_the_gate(self):
        base = self.commit(SMALL)
        self.commit(LARGE)
        made = self.act(base, PLIMSOLL_FAIL_ABOVE="5%")
        self.assertEqual(made.returncode, 1)
        self.assertIn("**The gate (`5%`) fails:**", self.ours()[0])
        self.commit(SMALL)
        self.assertEqual(self.act(base, PLIMSOLL_FAIL_ABOVE="5%").returncode, 0)
        self.assertIn("The gate (`5%`) is kept.", self.ours()[0])

    def test_figures_are_those_of_predict(self):
        base = self.commit(SMALL)
        self.commit(LARGE)
        self.act(base)
        step = STEPS / "gpt2_adamw_fp32.step.json.gz"
        words = [PROGRAM, "predict", str(step), "--gpu", "RTX 4090", "--batch", "8", "--json"]
        said = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        outputs = dict(line.split("=", 1) for line in (Path(self.work.name) / "output").read_text().splitlines())
        self.assertEqual(outputs["reserved"], str(said["reserved"]))
        self.assertEqual(outputs["fits"], "true")
        self.assertGreater(int(outputs["growth"]), 0)

    def test_what_does_not_fit(self):
        base = self.commit(SMALL)
        self.commit(LARGE)
        made = self.act(base, PLIMSOLL_GPU="8GiB", PLIMSOLL_FAIL_ABOVE="1000%")
        self.assertIn("**does not fit**", self.ours()[0])
        self.assertIn("**It fitted before.**", self.ours()[0])
        self.assertEqual(made.returncode, 1)

    def test_second_page_and_strangers(self):
        base = self.commit(SMALL)
        for i in range(140):
            self.github.add("someone", f"{MARKER}\nnot ours {i}")
        self.github.add(BOT, "<!-- plimsoll: other -->\nof another job")
        mine = self.github.add(BOT, f"{MARKER}\nold")
        twice = self.github.add(BOT, f"{MARKER}\nmade by a run at the same time")
        self.act(base)
        self.assertIn("GPU memory", mine["body"])
        self.assertNotIn(twice, self.github.comments)
        self.assertEqual(len(self.ours()), 2)
        self.assertEqual(sum(one.startswith("GET") for one in self.github.asked), 2)
        self.assertTrue(all(c["body"].startswith(f"{MARKER}\nnot ours") for c in self.github.comments[:140]))

    def test_without_permission(self):
        base = self.commit(SMALL)
        for token, refuse, said in (
            ("secret", {"POST": 403}, "GitHub answers 403"),
            ("", {}, "there is no token"),
            ("secret", {"GET": 422}, "GitHub answers 422"),
        ):
            self.github.refuse = refuse
            made = self.act(base, token=token)
            self.assertEqual(made.returncode, 0)
            self.assertIn(said, made.stdout)
            self.assertIn("it is in the summary of this job", made.stdout)
        self.assertEqual((Path(self.work.name) / "summary").read_text().count("### GPU memory"), 3)
        self.assertEqual(self.github.comments, [])

    def test_no_pull_request(self):
        self.commit(SMALL)
        made = self.act(None)
        self.assertIn("this is no pull request", made.stdout)
        self.assertIn("Batch 8 fits", (Path(self.work.name) / "summary").read_text())

    def test_scripts_that_cannot_be_predicted(self):
        evil = "``` </details> @ada | <script> ::error::x"
        base = self.commit(SMALL)
        self.commit(evil)
        made = self.act(base)
        self.assertEqual(made.returncode, 2)
        (body,) = self.ours()
        self.assertIn("could not be predicted on this pull request", body)
        # All of it in a fence that it cannot close.
        fence = re.search(r"^(`{4,})text$", body, re.M)[1]
        inside = body.split(f"{fence}text\n")[1].split(f"\n{fence}\n")[0]
        self.assertIn(evil, inside)
        self.assertNotIn("@ada", body.replace(inside, ""))
        # The base alone: said, and not compared.
        self.commit(SMALL)
        base = self.git("rev-parse", "HEAD~1")
        made = self.act(base, PLIMSOLL_FAIL_ABOVE="1%")
        self.assertEqual(made.returncode, 0)
        self.assertIn("could not be predicted, and is not compared", self.ours()[0])

    def test_log_has_no_commands(self):
        base = self.commit(SMALL)
        self.commit("::set-output name=x::y")
        self.act(base)
        between = ""
        stopped = None
        for line in self.log.splitlines():
            if stopped is None and line.startswith("::stop-commands::"):
                stopped = line.removeprefix("::stop-commands::")
            elif stopped is not None and line == f"::{stopped}::":
                stopped = None
            elif stopped is None:
                between += line + "\n"
        self.assertNotIn("::", between)

    def test_the_token_is_not_in_the_first_step(self):
        text = (ROOT / "action.yml").read_text()
        first, second = text.split("memory_comment.py\" predict")
        self.assertNotIn("PLIMSOLL_TOKEN", first)
        self.assertIn("PLIMSOLL_TOKEN", second)
        # Every variable that the script reads is given by it, and the other way round.
        given = set(re.findall(r"^        PLIMSOLL_([A-Z_]+):", text, re.M))
        read = set(re.findall(r"setting\(['\"]([A-Z_]+)['\"]", SCRIPT.read_text()))
        self.assertEqual(given, read)


def show():
    """A pull request that adds a reward for entropy to a small language model."""
    test = ActionTest("test_the_gate")
    test.setUp()
    base = test.commit("# step bisect/plain\n")
    test.commit("# step bisect/entropy\n")
    test.act(base, PLIMSOLL_FAIL_ABOVE="5%", PLIMSOLL_BATCH="16")
    print(test.ours()[0].replace(str(PYTHON), "python"), end="")
    test.doCleanups()


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    if sys.argv[1:] == ["--show"]:
        show()
    else:
        unittest.main()
