#!/usr/bin/env python3
"""What a training script will take, on a pull request and on its base, as one comment.

    memory_comment.py predict    runs the script on both, on tensors without memory; writes the comment
    memory_comment.py comment    creates or edits the comment; its exit code is that of the gate

Two steps, since the first runs the pull request's code and must not have the token. Between them lie two
files in RUNNER_TEMP. Python's standard library alone; action.yml names the variables.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

LONGEST_COMMENT = 60_000  # GitHub takes 65,536 characters
COMMENTS_A_PAGE = 100
MOST_PAGES = 100
FINE, GREW, UNUSABLE = 0, 1, 2


class Unusable(Exception):
    """Told in one line; the exit code is 2."""


def setting(name: str, default: str = "") -> str:
    return os.environ.get(f"PLIMSOLL_{name}", "").strip() or default


def marker() -> str:
    """The first line of the comment, by which it is found again."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", setting("NAME", "memory"))
    return f"<!-- plimsoll: {name} -->"


def kept(what: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", setting("NAME", "memory"))
    return Path(os.environ.get("RUNNER_TEMP", tempfile.gettempdir())) / f"plimsoll-{name}-{what}"


# Markdown, in which nothing foreign is read as such.


def code(text: str) -> str:
    """One line as code. Bars would end a cell."""
    plain = re.sub(r"[\x00-\x1f\x7f]", " ", text).replace("`", "'").replace("|", "/")
    return f"`{plain.strip() or ' '}`"


def block(text: str) -> str:
    """Lines as code, in a fence that they cannot close."""
    plain = re.sub(r"[\x00-\x09\x0b-\x1f\x7f]", " ", text).strip("\n")
    longest = max((len(run) for run in re.findall(r"`+", plain)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{plain}\n{fence}\n"


def size(count: float) -> str:
    """As the program writes them."""
    for unit, exponent in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(count) >= 1 << exponent:
            return f"{count / (1 << exponent):.2f} {unit}"
    return f"{count:.0f} bytes"


def signed(count: float) -> str:
    return ("+" if count > 0 else "") + size(count)


def unfolds(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n</details>\n"


# The two predictions.


def run(words: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, cwd=cwd, text=True, errors="replace", capture_output=True, check=False)
    except FileNotFoundError as error:
        raise Unusable(f"there is no program {words[0]}; install it in a step before") from error


def git(*words: str, cwd: Path | None = None) -> str | None:
    made = run(["git", "-c", "core.hooksPath=/dev/null", *words], cwd)
    return made.stdout.strip() if made.returncode == 0 else None


def log(text: str) -> None:
    """Into the log of the step, where lines that begin with :: would be commands."""
    token = secrets.token_hex(16)
    print(f"::stop-commands::{token}\n{text.rstrip()}\n::{token}::", flush=True)


class Prediction:
    """The program's answer for the files of one folder: a document, or why there is none."""

    def __init__(self, folder: Path, snapshot: Path) -> None:
        program = setting("PROGRAM", "plimsoll")
        words = [program, "predict", "--run", "--json", "--gpu", setting("GPU"), "--snapshot", str(snapshot)]
        if setting("BATCH"):
            words += ["--batch", setting("BATCH")]
        words += [*shlex.split(setting("FLAGS")), "--", *shlex.split(setting("COMMAND"))]
        made = run(words, folder)
        log(made.stderr)
        self.snapshot = snapshot
        self.document: dict = {}
        self.refused = ""
        if made.returncode in (0, 1, 3):
            self.document = json.loads(made.stdout)
        else:
            lines = [line for line in made.stderr.splitlines() if line.startswith("plimsoll: ")]
            self.refused = lines[-1] if lines else f"plimsoll ended with exit code {made.returncode}"

    def __bool__(self) -> bool:
        return not self.refused

    def peak(self, what: str) -> int:
        return self.document[what]

    @property
    def runs(self) -> bool:
        return bool(self.document["fits"])

    @property
    def verdict(self) -> str:
        return str(self.document["verdict"])


class Worktree:
    """The files of a commit beside the checkout, with what is not committed linked into them."""

    def __init__(self, commit: str, scratch: Path) -> None:
        self.root = scratch / "base"
        self.made = git("worktree", "add", "--quiet", "--detach", str(self.root), commit) is not None

    def __enter__(self) -> Path | None:
        if not self.made:
            return None
        folder = self.root / (git("rev-parse", "--show-prefix") or "")
        for link in setting("LINK").splitlines():
            place = folder / link.strip()
            if link.strip() and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(Path(link.strip()).absolute())
        return folder if folder.is_dir() else None

    def __exit__(self, *error: object) -> None:
        git("worktree", "remove", "--force", str(self.root))


def event() -> dict:
    path = os.environ.get("GITHUB_EVENT_PATH")
    if not path:
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def base_commit() -> str | None:
    """What the pull request is compared with: where it left its base, as far as that is checked out."""
    base = event().get("pull_request", {}).get("base", {}).get("sha")
    if not base or not re.fullmatch(r"[0-9a-f]{40,64}", base):
        return None
    if git("cat-file", "-e", f"{base}^{{commit}}") is None:
        git("fetch", "--quiet", "--depth=1", "--no-tags", "origin", base)
    return git("merge-base", base, "HEAD") or base


# The comment.


def why(part: dict) -> str:
    """A part that was not followed, or the figure that decides."""
    place = f" ({code(part['file'] + ':' + str(part['line']))})" if part["file"] else ""
    return code(part["what"]) + place


def headline(head: Prediction, base: Prediction | None) -> str:
    document = head.document
    fits = {"fits": "fits", "does_not_fit": "**does not fit**", "unknown": "**may not fit**"}[head.verdict]
    text = (
        f"Batch {document['batch']} {fits} on {code(document['gpu'])}: {size(head.peak('device'))} of "
        f"{size(document['memory'])} on the device, {size(head.peak('reserved'))} reserved by PyTorch."
    )
    if head.verdict == "unknown":
        text += f" Unknown: {why(document['unknown'][0])}."
    if base:
        growth = head.peak("reserved") - base.peak("reserved")
        text += " Reserved memory " + (f"changed by {signed(growth)}." if growth else "is as before.")
        if base.document["batch"] != document["batch"]:
            text += f" The batch was {base.document['batch']} before."
        if base.verdict == "fits" and head.verdict == "does_not_fit":
            text += " **It fitted before.**"
    return text


def peaks(head: Prediction, base: Prediction) -> str:
    rows = ["| at most | base | this pull request | change |", "|---|---|---|---|"]
    for what, name in (("allocated", "allocated"), ("reserved", "reserved"), ("device", "on the device")):
        before, after = base.peak(what), head.peak(what)
        percent = f" ({100 * (after - before) / before:+.1f} %)" if before else ""
        rows.append(f"| {name} | {size(before)} | {size(after)} | {signed(after - before)}{percent} |")
    return "\n".join(rows) + "\n"


def by_category(head: Prediction, base: Prediction) -> str:
    found: dict[str, list[int]] = {}
    for side, document in enumerate((base.document, head.document)):
        for line in document["account"]:
            found.setdefault(line["what"], [0, 0])[side] += line["bytes"]
    rows = ["| change | what | base | this pull request |", "|---|---|---|---|"]
    for what, (before, after) in sorted(found.items(), key=lambda item: -abs(item[1][1] - item[1][0])):
        if before != after:
            rows.append(f"| {signed(after - before)} | {what.replace('_', ' ')} | {size(before)} | {size(after)} |")
    return "\n".join(rows) + "\n" if len(rows) > 2 else ""


def by_line(head: Prediction, base: Prediction) -> tuple[str, int, str]:
    """What `plimsoll diff` says of the two predicted runs, its exit code, and what it complains of."""
    program = setting("PROGRAM", "plimsoll")
    words = [program, "diff", "--json", str(base.snapshot), str(head.snapshot)]
    if setting("FAIL_ABOVE"):
        words += ["--fail-above", setting("FAIL_ABOVE")]
    made = run(words)
    if made.returncode not in (0, 1):
        raise Unusable(made.stderr.strip().splitlines()[-1])
    holders = json.loads(made.stdout)["holders"]
    rows = ["| change | what | where |", "|---|---|---|"]
    for one in holders[:12]:
        times = f"({one['count_before']}× → {one['count_after']}×)"
        rows.append(f"| {signed(one['growth'])} | {one['category'].replace('_', ' ')} | {code(one['what'])} {times} |")
    if len(holders) > 12:
        rows.append(f"\n{len(holders) - 12} more.")
    complaint = made.stderr.strip().removeprefix("plimsoll: ")
    return ("\n".join(rows) + "\n" if holders else ""), made.returncode, complaint


def account(head: Prediction) -> str:
    rows = ["| bytes | what |", "|---|---|"]
    rows += [f"| {size(line['bytes'])} | {line['what'].replace('_', ' ')} |" for line in head.document["account"]]
    rows += ["", "| bytes | what | where |", "|---|---|---|"]
    rows += [
        f"| {size(one['bytes'])} | {one['category'].replace('_', ' ')} | {code(one['where'])} |"
        for one in head.document["holders"]
    ]
    return "\n".join(rows) + "\n"


def write_comment(head: Prediction, base: Prediction | None, base_name: str) -> tuple[str, int]:
    parts = [marker(), "### GPU memory\n"]
    result = FINE
    if not head:
        parts += ["The script could not be predicted on this pull request:\n", block(head.refused)]
        result = UNUSABLE
    else:
        parts.append(headline(head, base or None) + "\n")
        if base:
            lines, result, complaint = by_line(head, base)
            parts.append(peaks(head, base))
            if result == GREW:
                parts.append(f"**The gate ({code(setting('FAIL_ABOVE'))}) fails:** {code(complaint)}\n")
            elif setting("FAIL_ABOVE"):
                parts.append(f"The gate ({code(setting('FAIL_ABOVE'))}) is kept.\n")
            categories = by_category(head, base)
            parts += [unfolds("By category", categories)] if categories else []
            parts += [unfolds("By source line", lines)] if lines else []
        elif base is not None:
            parts += [f"Its base ({code(base_name[:12])}) could not be predicted, and is not compared:\n"]
            parts += [block(base.refused)]
        parts.append(unfolds("Where it is at the peak", account(head)))
        if head.document.get("assumptions"):
            parts.append(unfolds("Assumed", block("\n".join(head.document["assumptions"]))))
    parts.append(f"Predicted without a GPU from {code(setting('COMMAND'))}.\n")
    return "\n".join(parts)[:LONGEST_COMMENT], result


def predict() -> int:
    if not setting("COMMAND") or not setting("GPU"):
        raise Unusable("command and gpu have to be given")
    outputs: dict[str, object] = {"verdict": "", "fits": "", "reserved": "", "growth": ""}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        head = Prediction(Path.cwd(), scratch / "head.pickle")
        base: Prediction | None = None
        commit = base_commit() if head else None
        if commit:
            with Worktree(commit, scratch) as place:
                if place:
                    base = Prediction(place, scratch / "base.pickle")
                else:
                    log(f"plimsoll: the base {commit} is not checked out; give actions/checkout fetch-depth: 0")
        text, result = write_comment(head, base, commit or "")
        if head:
            outputs.update(verdict=head.verdict, fits=str(head.runs).lower(), reserved=head.peak("reserved"))
        if head and base:
            outputs["growth"] = head.peak("reserved") - base.peak("reserved")
    kept("comment.md").write_text(text, encoding="utf-8")
    kept("result").write_text(str(result), encoding="utf-8")
    if os.environ.get("GITHUB_OUTPUT"):
        with open(os.environ["GITHUB_OUTPUT"], "a", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in outputs.items())
    log(text)
    return FINE  # the next step tells, so that there is a comment in any case


# GitHub.


class Forbidden(Exception):
    """The token may not."""


def ask(method: str, path: str, body: dict | None = None) -> list | dict:
    url = os.environ.get("GITHUB_API_URL", "https://api.github.com") + path
    request = urllib.request.Request(url, method=method)
    request.add_header("Authorization", f"Bearer {setting('TOKEN')}")
    request.add_header("Accept", "application/vnd.github+json")
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    for patience in (1, 4, None):
        try:
            with urllib.request.urlopen(request, data, timeout=30) as answer:
                text = answer.read()
                return json.loads(text) if text else {}
        except urllib.error.HTTPError as error:
            if error.code in (401, 403, 404):
                raise Forbidden(f"GitHub answers {error.code} to {method}") from error
            if error.code < 500 or patience is None:
                raise Unusable(f"GitHub answers {error.code} to {method} {path}") from error
        except OSError as error:
            if patience is None:
                raise Unusable(f"GitHub cannot be reached: {error}") from error
        time.sleep(patience)
    raise AssertionError


def own_comments(comments: str) -> list[int]:
    """Ours, the oldest first: anyone may write our marker, so that the author counts as well."""
    found = []
    for page in range(1, MOST_PAGES + 1):
        part = ask("GET", f"{comments}?per_page={COMMENTS_A_PAGE}&page={page}")
        for one in part:
            author = (one.get("user") or {}).get("login")
            if author == setting("AUTHOR", "github-actions[bot]") and (one.get("body") or "").startswith(marker()):
                found.append(one["id"])
        if len(part) < COMMENTS_A_PAGE:
            break
    return found


def post(number: int, text: str) -> str:
    repository = os.environ["GITHUB_REPOSITORY"]
    comments = f"/repos/{repository}/issues/{number}/comments"
    own = own_comments(comments)
    if not own:
        ask("POST", comments, {"body": text})
        return "commented"
    ask("PATCH", f"/repos/{repository}/issues/comments/{own[0]}", {"body": text})
    # Two runs at once may each have made one.
    for other in own[1:]:
        ask("DELETE", f"/repos/{repository}/issues/comments/{other}")
    return "edited the comment"


def summarize(text: str, why: str) -> None:
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text + "\n")
    where = "it is in the summary of this job" if path else "it is in the log of the step before"
    print(f"plimsoll: no comment: {why}; {where}", flush=True)


def comment() -> int:
    text = kept("comment.md").read_text(encoding="utf-8")
    result = int(kept("result").read_text(encoding="utf-8"))
    number = event().get("pull_request", {}).get("number")
    if not isinstance(number, int):
        summarize(text, "this is no pull request")
    elif not setting("TOKEN"):
        summarize(text, "there is no token")
    else:
        try:
            print(f"plimsoll: {post(number, text)}", flush=True)
        except Forbidden as error:
            summarize(text, f"{error}; the token of a pull request from a fork may not write, else give "
                      "the job permissions: pull-requests: write")
        except Unusable as error:
            summarize(text, str(error))
    if result == GREW:
        print("plimsoll: memory grew by more than fail-above", flush=True)
    return result


def main() -> int:
    steps = {"predict": predict, "comment": comment}
    if len(sys.argv) != 2 or sys.argv[1] not in steps:
        print(__doc__, file=sys.stderr)
        return UNUSABLE
    try:
        return steps[sys.argv[1]]()
    except (Unusable, OSError, ValueError, KeyError) as error:
        print(f"plimsoll: {error if isinstance(error, Unusable) else repr(error)}", file=sys.stderr)
        return UNUSABLE


if __name__ == "__main__":
    sys.exit(main())
