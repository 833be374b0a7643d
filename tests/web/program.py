"""The program under test: what it says, and the pages that it writes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[1] / "data"


def snapshot_file(name: str) -> Path:
    return DATA / "snapshots" / f"{name}.pickle.xz"


class Program:
    """Pages are written once for each list of files, into `folder`."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path.resolve()
        self.folder = folder
        self._pages: dict[tuple[str, ...], Path] = {}
        self._plans: dict[tuple[str, ...], tuple[Path, dict[str, Any]]] = {}
        self._answers: dict[tuple[str, ...], bytes] = {}

    def page(self, *files: Path, compare: tuple[Path, ...] = (), redact: bool = False) -> Path:
        baseline = [word for file in compare for word in ("--compare", file)]
        if redact:
            baseline.append("--redact")
        key = tuple(str(word) for word in (*files, *baseline))
        if key not in self._pages:
            page = self.folder / f"page{len(self._pages)}.html"
            self._run("report", *files, *baseline, "-o", page)
            self._pages[key] = page
        return self._pages[key]

    def prediction(self, step: Path, batch: int, *flags: Any, fine: tuple[int, ...] = (0,)) -> Path:
        key = tuple(str(word) for word in (step, batch, *flags))
        if key not in self._pages:
            page = self.folder / f"page{len(self._pages)}.html"
            self._run("predict", step, "--batch", batch, "--gpu", "H200", *flags, "--html", page, fine=fine)
            self._pages[key] = page
        return self._pages[key]

    def predict(self, step: Path, batch: int, *flags: Any) -> dict[str, Any]:
        return self._answer("predict", step, "--batch", batch, "--gpu", "H200", *flags, "--json")

    def planned(self, step: Path, *flags: Any, fine: tuple[int, ...] = (0,)) -> tuple[Path, dict[str, Any]]:
        """The page of a plan, and the plan itself."""
        key = tuple(str(word) for word in (step, *flags))
        if key not in self._plans:
            page = self.folder / f"plan{len(self._plans)}.html"
            self._plans[key] = page, json.loads(self._run("plan", step, *flags, "--json", "--html", page, fine=fine))
        return self._plans[key]

    def explain(self, *files: Path, at: int | None = None) -> dict[str, Any]:
        where = [] if at is None else ["--at", str(at)]
        return self._answer("explain", "--json", *where, *files)

    def diff(self, before: Path, after: Path) -> dict[str, Any]:
        return self._answer("diff", "--json", before, after)

    def tune(self, file: Path) -> dict[str, Any]:
        # 1 says that nothing fits, and the figures are there all the same.
        return self._answer("tune", "--json", file, fine=(0, 1))

    def _answer(self, *words: Any, fine: tuple[int, ...] = (0,)) -> Any:
        """Asked once: files stay as they are, and many tests ask of the same few."""
        key = tuple(str(word) for word in words)
        if key not in self._answers:
            self._answers[key] = self._run(*words, fine=fine)
        return json.loads(self._answers[key])

    def _run(self, *words: Any, fine: tuple[int, ...] = (0,)) -> bytes:
        # As bytes, so that paths that are no UTF-8 arrive as they are.
        command = [os.fsencode(self.path), *(os.fsencode(str(word)) for word in words)]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode not in fine:
            message = done.stderr.decode(errors="replace")
            raise AssertionError(f"{command} left with {done.returncode}: {message}")
        return done.stdout


def size_text(size: int) -> str:
    """As the program writes sizes (FormatBytes in src/base/bytes.cc)."""
    if abs(size) < 1024:
        return f"{size} bytes"
    for power, unit in ((1, "KiB"), (2, "MiB"), (3, "GiB")):
        if abs(size) < 1024 ** (power + 1) or unit == "GiB":
            return f"{size / 1024**power:.2f} {unit}"
    raise AssertionError


def size_from_text(text: str) -> tuple[float, float]:
    """The size that "48.00 MiB" stands for, and by how much it may be off."""
    number, unit = text.split()
    scale = {"bytes": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}[unit]
    return float(number) * scale, 0 if unit == "bytes" else 0.005 * scale
