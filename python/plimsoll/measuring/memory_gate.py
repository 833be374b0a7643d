"""GPU memory of tests held against limits and against a kept report; no pytest in here."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..base.errors import ProgramError
from ..base.json_text import read_json_file
from ..base.sizes import shown

SCHEMA = "plimsoll.gpu_memory/1"


@dataclass(frozen=True)
class Figure:
    """What a job takes of a GPU: the peak that PyTorch holds from the driver, in bytes."""

    reserved: int
    gpu: str
    how: str  #: "measured" or "predicted"


@dataclass(frozen=True)
class Checked:
    """A test's figure beside its limit and what it was."""

    test: str
    reserved: int
    gpu: str
    how: str
    limit: int | None
    baseline: int | None
    failure: str | None

    @property
    def growth(self) -> float | None:
        """0.05 is 5 % more than the baseline."""
        return None if not self.baseline else self.reserved / self.baseline - 1


def checked(
    test: str, figure: Figure, limit: int | None, baseline: int | None, fail_above: float
) -> Checked:
    failure = None
    taken = f"{shown(figure.reserved)} {_how(figure.gpu, figure.how)}"
    if limit is not None and figure.reserved > limit:
        failure = f"{taken} is more than the limit of {shown(limit)}"
    elif baseline and figure.reserved > baseline * (1 + fail_above):
        growth = 100 * (figure.reserved / baseline - 1)
        failure = (
            f"{taken} is {growth:.1f} % more than the baseline of {shown(baseline)}; "
            f"{100 * fail_above:g} % are allowed"
        )
    return Checked(test, figure.reserved, figure.gpu, figure.how, limit, baseline, failure)


class Baseline:
    """A report that was kept, or none."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._tests: dict[tuple[str, str, str], int] = {}
        if path is None:
            return
        try:
            document = read_json_file(path)
            if document["schema"] != SCHEMA:
                raise ValueError(f"its schema is {document['schema']!r}")
            for one in document["tests"]:
                self._tests[one["test"], one["gpu"], one["how"]] = int(one["reserved"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ProgramError(
                f"{os.fspath(path)} is no report of GPU memory: {error}",
                hint="--gpu-memory-report writes one",
            ) from error

    def of(self, test: str, figure: Figure) -> int | None:
        """Of the same test, on the same card, known in the same way."""
        return self._tests.get((test, figure.gpu, figure.how))


def write_report(path: str | os.PathLike[str], tests: Sequence[Checked]) -> list[Path]:
    """As JSON, and beside it as a table for a pull request; the files."""
    as_json, as_table = Path(path), Path(path).with_suffix(".md")
    as_json.parent.mkdir(parents=True, exist_ok=True)
    document = {"schema": SCHEMA, "tests": [asdict(one) for one in tests]}
    as_json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    as_table.write_text(table(tests), encoding="utf-8")
    return [as_json, as_table]


def table(tests: Sequence[Checked]) -> str:
    lines = [
        "| test | GPU | reserved | limit | before | change | |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in tests:
        growth = "new" if one.growth is None else f"{100 * one.growth:+.1f} %"
        cells = (
            f"`{one.test}`",
            f"{one.gpu}, {one.how}",
            shown(one.reserved),
            "" if one.limit is None else shown(one.limit),
            "" if one.baseline is None else shown(one.baseline),
            growth,
            "ok" if one.failure is None else "**too much**",
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _how(gpu: str, how: str) -> str:
    return f"predicted for {gpu}" if how == "predicted" else f"reserved on {gpu}"
