"""plimsoll.explain, plimsoll.predict and plimsoll.plan: the program's answers in Python."""

from __future__ import annotations

import contextlib
import os
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, Union

from ..base.errors import ProgramError
from .answers import Explanation, Plan, Prediction
from .program import ask


class Written(Protocol):
    """A `plimsoll.Capture`: it can be written as a step file."""

    def write(self, path: str | os.PathLike[str]) -> None: ...


Source = Union[str, "os.PathLike[str]"]
Step = Union[Source, Written]


def explain(
    source: Source | BaseException | Sequence[Source], *more: Source, **flags: Any
) -> Explanation:
    """Why a job ran out of memory, or what its peak is made of.

    Logs, memory snapshots, profiles; several files are the ranks of one job, or a snapshot and its
    log. Or the exception itself, of which the text is taken. `flags` are those of the program:
    `at=120`.
    """
    with _files(source) as files:
        return Explanation(ask("explain", [*files, *(os.fspath(one) for one in more)], flags))


def predict(
    step: Step | Sequence[Source],
    *,
    batch: int | None = None,
    gpu: str | None = None,
    max_batch: bool = False,
    **flags: Any,
) -> Prediction:
    """How much memory a training step will need.

    `step` is a `Capture`, the file of one, or two snapshots with `batches=(8, 16)`. Other flags are
    those of the program (docs/predict.md): `precision="amp_bf16"`, `limit="20GiB"`,
    `set={"tf32": "on"}`.
    """
    flags = {"batch": batch, "gpu": gpu, "max_batch": max_batch, **flags}
    with _files(step) as files:
        return Prediction(ask("predict", files, flags))


def plan(
    step: Step,
    *,
    gpu: str | None = None,
    global_batch: int | None = None,
    **flags: Any,
) -> Plan:
    """What to change so that a captured step fits, and the fastest way.

    Other flags are those of the program (docs/plan.md): `budget="20GiB"`, `keep_numerics=True`.
    """
    flags = {"gpu": gpu, "global_batch": global_batch, **flags}
    with _files(step) as files:
        answered = ask("plan", files, flags)
    if answered.document.get("schema") == "plimsoll.tune/1":
        raise ProgramError(
            f"{answered.document['file']} is a memory snapshot",
            hint="A plan is made of a captured step; `plimsoll tune` tries the allocator's "
            "settings on a snapshot",
        )
    return Plan(answered)


@contextlib.contextmanager
def _files(source: Any) -> Iterator[list[str]]:
    """What the program reads: what is no file yet is one for as long as this is open."""
    if isinstance(source, (str, os.PathLike)):
        yield [os.fspath(source)]
    elif isinstance(source, Sequence):
        yield [os.fspath(one) for one in source]
    else:
        with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
            path = Path(folder) / "captured.step.json"
            if isinstance(source, BaseException):
                path = Path(folder) / "error.txt"
                path.write_text("".join(traceback.format_exception_only(type(source), source)))
            elif callable(getattr(source, "write", None)):
                source.write(path)
            else:
                raise TypeError(
                    "plimsoll reads a path, several paths, an exception or a Capture, not "
                    f"{type(source).__name__}"
                )
            yield [str(path)]
