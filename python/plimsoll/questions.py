"""plimsoll.explain, plimsoll.predict and plimsoll.plan: the program's answers in Python."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from .answers import Explanation, Plan, Prediction
from .errors import ProgramError
from .program import Answered, ask

if TYPE_CHECKING:
    from .api import Capture

Source = Union[str, "os.PathLike[str]"]
Step = Union[Source, "Capture"]


def explain(path: Source | Sequence[Source], *more: Source, **flags: Any) -> Explanation:
    """Why a job ran out of memory, or what its peak is made of.

    Logs, memory snapshots, profiles; several files are the ranks of one job, or a snapshot and its
    log. `flags` are those of the program: `at=120`.
    """
    first = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    return Explanation(ask("explain", [os.fspath(one) for one in (*first, *more)], flags))


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
    return Prediction(_asked_of("predict", step, flags))


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
    answered = _asked_of("plan", step, flags)
    if answered.document.get("schema") == "plimsoll.tune/1":
        raise ProgramError(
            f"{answered.document['file']} is a memory snapshot",
            hint="A plan is made of a captured step; `plimsoll tune` tries the allocator's "
            "settings on a snapshot",
        )
    return Plan(answered)


def _asked_of(command: str, step: Step | Sequence[Source], flags: dict[str, Any]) -> Answered:
    if isinstance(step, (str, os.PathLike)):
        return ask(command, [os.fspath(step)], flags)
    if isinstance(step, Sequence):
        return ask(command, [os.fspath(one) for one in step], flags)
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
        path = Path(folder) / "captured.step.json"
        step.write(path)
        return ask(command, [str(path)], flags)
