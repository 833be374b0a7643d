"""A script in float32 is captured with autocast too, as if its forward and loss stood in it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fresh_process import fresh  # noqa: E402
from step_checks import Checked  # noqa: E402
from test_later import HEAD  # noqa: E402
from test_script import script  # noqa: E402

from plimsoll.scripts.command import main  # noqa: E402

JOB = (
    HEAD
    + """\
def loss_of(x, y):
    out = model(x.cuda())
    return nn.functional.cross_entropy(out, y.cuda())

for epoch in range(3):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, y in validation:
            model(x.cuda()).argmax(-1)
"""
)
IN_AUTOCAST = JOB.replace(
    "        loss = loss_of(x, y)\n",
    '        with torch.autocast("cuda", dtype=torch.bfloat16):\n'
    "            loss = loss_of(x, y)\n",
)


def captured(folder: Path, text: str) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    out = folder / "job.step.json.gz"
    words = ["-o", str(out), "--every-precision", "--", "python", script(folder, text), "{batch}"]
    assert fresh(main, words).value == 0
    with gzip.open(out) as file:
        return Checked(json.load(file)).document


def told(document: dict[str, Any], variant: int) -> list[Any]:
    """What is done, without where. What goes at once goes in any order."""
    strings, layouts = document["strings"], document["layouts"]
    found: list[Any] = []
    for event in document["variants"][variant]["events"]:
        if event[0] == "call":
            made = [layouts[new[1]] if isinstance(new, list) else new for new in event[6]]
            found.append(["call", strings[event[1]], made, event[8]])
        elif event[0] == "free" and found and found[-1][0] == "free":
            found[-1] = ["free", *sorted([*found[-1][1:], event[1]])]
        else:
            found.append(event)
    return found


def test_it_is_as_if_the_lines_were_there(tmp_path: Path) -> None:
    both = captured(tmp_path / "both", JOB)
    assert [one["precision"] for one in both["variants"]] == ["as_written", "amp_bf16"]
    by_hand = captured(tmp_path / "by_hand", IN_AUTOCAST)
    assert [one["precision"] for one in by_hand["variants"]] == ["as_written"]
    assert told(both, 1) == told(by_hand, 0)
    assert told(both, 0) != told(both, 1)
    assert ["part", "evaluation"] in [event[:2] for event in told(both, 1)]


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (".cuda()\noptimizer", ".cuda().bfloat16()\noptimizer", ""),
        pytest.param(
            "\nfor epoch", "\nmodel = torch.compile(model)\nfor epoch", "the script compiles",
            marks=pytest.mark.nightly,
        ),
        ("\nfor epoch", "\nimport sys, types\nsys.modules['fastai'] = types.ModuleType('fastai')\n"
         "for epoch", "fastai has a setting for it"),
    ],
)  # fmt: skip
def test_it_is_not_put_in_everywhere(tmp_path: Path, before: str, after: str, why: str) -> None:
    text = JOB.replace(before, after, 1).replace("x.cuda()", "x.cuda().to(model[0].weight.dtype)")
    if "compile" in after:
        text = JOB.replace(before, after, 1)
    document = captured(tmp_path, text)
    assert "amp_bf16" not in [one["precision"] for one in document["variants"]]
    said = [note for note in document["notes"] if "autocast in bf16" in note]
    assert len(said) == bool(why) and all(why in note for note in said)


ACCELERATE = """
import os, sys, types
state = types.ModuleType("accelerate.state")
state.PartialState = type("PartialState", (), {"_shared_state": {"device": "cuda"}})
sys.modules["accelerate.state"] = state
is_bf16 = PRECISION == "bf16"
"""


@pytest.mark.parametrize("is_given", [False, True])
def test_accelerate_is_told_by_its_setting(tmp_path: Path, is_given: bool) -> None:
    """As Trainer and Accelerator read it, unless the script says otherwise."""
    asked = '"no"' if is_given else 'os.environ.get("ACCELERATE_MIXED_PRECISION", "no")'
    job = IN_AUTOCAST.replace("torch.bfloat16)", "torch.bfloat16, enabled=is_bf16)")
    both = captured(tmp_path / "both", ACCELERATE.replace("PRECISION ==", f"{asked} ==") + job)
    if is_given:
        assert len(both["variants"]) == 1
        [note] = [note for note in both["notes"] if "autocast in bf16" in note]
        assert "accelerate's setting for it changed nothing" in note
        return
    assert both["variants"][1]["set_by"] == "accelerate"
    by_hand = captured(tmp_path / "by_hand", ACCELERATE.replace("PRECISION ==", '"bf16" ==') + job)
    assert told(both, 1) == told(by_hand, 0) != told(both, 0)
