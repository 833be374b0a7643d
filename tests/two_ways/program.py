"""Runs plimsoll and keeps what it said."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from dataclasses import dataclass
from typing import Any

#: Against hanging alone.
WALL_SECONDS = 1200

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("PLIMSOLL_")},
    "COLUMNS": "100",
    "NO_COLOR": "1",
    "LC_ALL": "C.UTF-8",
    "PLIMSOLL_NVML": "/nonexistent/libnvidia-ml.so.1",
    "PLIMSOLL_RUNS": "/nonexistent",
}


@dataclass
class Answer:
    """What one command printed."""

    words: list[str]
    code: int
    out: str
    err: str

    @property
    def command(self) -> str:
        """To paste into a shell in the root of the repository."""
        return "plimsoll " + shlex.join(self.words)

    @property
    def refused(self) -> bool:
        return self.code == 2

    @property
    def document(self) -> dict[str, Any]:
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


class Program:
    def __init__(self, path: str) -> None:
        self.path = path
        self.runs = 0

    def ask(self, *words: object) -> Answer:
        self.runs += 1
        texts = [str(word) for word in words]
        done = subprocess.run(
            [self.path, *texts],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            timeout=WALL_SECONDS,
            check=False,
        )
        if done.returncode not in (0, 1, 2, 3):
            raise Crash(
                f"plimsoll {shlex.join(texts)}: exit code {done.returncode}\n{done.stderr[-500:]}"
            )
        return Answer(texts, done.returncode, done.stdout, done.stderr)


class Crash(Exception):
    """The program ended in a way that is no answer."""
