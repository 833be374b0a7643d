#!/usr/bin/env python3
"""Every command that a golden answer says to type next, typed: next_test.py PROGRAM [CASE…]

A suggestion that the program itself refuses is worse than none. What would train is not run: `run` gets `true` in place
of the job, and --run a Python that is not there, so that everything up to it is read and checked. Lines of Python are for
the user's script (python/tests/test_questions.py).
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "golden" / "cases"
NO_PYTHON = "/nonexistent/python"
# By day each fifth, by night all.
NIGHTLY = "PLIMSOLL_NIGHTLY" in os.environ


def suggestions(text):
    """The lines below the last heading "Next" that are commands and not what they are for."""
    blocks = re.split(r"(?m)^Next$", text)
    if len(blocks) < 2:
        return []
    return [line.strip() for line in blocks[-1].splitlines() if re.match(r"  \S", line)]


def is_python(line):
    """A line for the user's script, which no shell command is."""
    try:
        compile(line, "script", "exec")
    except SyntaxError:
        return False
    return True


def typed(line, folder):
    """The words and variables of a line, with nothing that trains and no file outside the folder."""
    words = shlex.split(re.sub(r" >\S+", "", line))
    variables = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    assert words[0] == "plimsoll", line
    words = words[1:]
    if "-o" in words:
        place = words.index("-o") + 1
        words[place] = os.path.join(folder, words[place])
    if "--" in words:
        words = words[: words.index("--") + 1] + [NO_PYTHON if "--run" in words else "true"]
    if words[0] == "run":
        words[1:1] = ["-o", os.path.join(folder, "run")]
    return words, variables


def problem(program, line):
    with tempfile.TemporaryDirectory() as folder:
        words, variables = typed(line, folder)
        done = subprocess.run(
            [program, *words],
            cwd=ROOT,
            env={**os.environ, **variables, "PLIMSOLL_RUNS": "/nonexistent", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
        )
    if "--run" in words:
        good = done.returncode == 2 and "there is no program" in done.stderr
    else:
        good = done.returncode in (0, 1, 3)
    return "" if good else f"exit code {done.returncode}: {done.stderr.strip()}"


def main(program, only):
    lines = {}
    for case in sorted(path.parent for path in CASES.glob("*/*/cmd")):
        name_of_case = f"{case.parent.name}/{case.name}"
        if only and name_of_case not in only:
            continue
        for name in ("expected", "expected_err"):
            path = case / name
            if path.exists():
                for line in suggestions(path.read_text(errors="replace")):
                    lines.setdefault(line, name_of_case)
    failed = 0
    for tried, (line, case) in enumerate(lines.items()):
        if not NIGHTLY and tried % 5:
            continue
        why = "" if is_python(line) else problem(os.path.abspath(program), line)
        if why:
            failed += 1
            print(f"{case}: {line}\n  {why}")
    print(f"{len(lines)} suggestions, {'all' if NIGHTLY else 'each fifth'} tried, {failed} that the program refuses")
    return 1 if failed or not lines else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
