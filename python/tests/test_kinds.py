"""Every kind of job that docs/capture.md lists, captured without a GPU and predicted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kinds import KINDS, Kind  # noqa: E402, I001
from kinds import models, loops, libraries  # noqa: E402, F401  # in the order of the table
from program_here import is_here  # noqa: E402
from step_checks import Checked  # noqa: E402

import plimsoll  # noqa: E402

TABLE = Path(__file__).resolve().parents[2] / "docs" / "capture.md"
_SIZES = "depends on values"


def parameter(kind: Kind) -> object:
    marks = [pytest.mark.nightly] if kind.nightly else []
    return pytest.param(kind, id=re.sub(r"[^\w.()]+", "_", kind.name), marks=marks)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [parameter(kind) for kind in KINDS])
def test_a_kind_of_job(kind: Kind) -> None:
    for package in kind.needs:
        pytest.importorskip(package)
    if kind.refused:
        with pytest.raises(plimsoll.CaptureError, match=kind.refused) as caught:
            kind.job()
        assert caught.value.where and caught.value.hint
        return
    made = kind.job()
    Checked(made.document)
    if kind.assumes:
        assert any(kind.assumes in note for note in made.notes), made.notes
    else:
        assert not any(_SIZES in note for note in made.notes), made.notes
    if is_here():
        small, large = (plimsoll.predict(made, batch=batch, gpu="H200") for batch in (2, 64))
        assert small.fits and 0 < small.allocated.best < large.allocated.best
        if kind.assumes:
            assert any(kind.assumes in line for line in large.assumptions)


def test_the_table_lists_every_kind() -> None:
    text = TABLE.read_text().split("| kind of job | captured |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()]
    assert [name for name, _ in rows] == [kind.name for kind in KINDS]
    for (name, told), kind in zip(rows, KINDS):
        outcome = re.split("[:,]", told)[0]
        assert outcome == kind.outcome, name
