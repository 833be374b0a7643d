"""A script in float32 is captured with autocast too, as if its forward and loss stood in it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fresh_process import fresh  # noqa: E402
from library_jobs import ACCELERATE, LIGHTNING, TRANSFORMERS  # noqa: E402
from step_checks import Checked  # noqa: E402
from test_checkpoints import in_folder  # noqa: E402
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


IN_BF16 = JOB.replace(".cuda()\noptimizer", ".cuda().bfloat16()\noptimizer").replace(
    "x.cuda()", "x.cuda().bfloat16()"
)
OF_FASTAI = "import sys, types\nsys.modules['fastai'] = types.ModuleType('fastai')\n" + JOB
NEVER_IN_TRAINING = JOB.replace("model.train()", "model.eval()")
FAILS_IN_AUTOCAST = JOB.replace(
    "    return nn", "    assert out.dtype == torch.float32, 'float32 alone'\n    return nn"
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (IN_BF16, "the script has weights in bfloat16"),
        (IN_AUTOCAST, "the script is in autocast as it is written"),
        (OF_FASTAI, "fastai has a setting for it, which is to be set in the script"),
        (NEVER_IN_TRAINING, "no model was seen to compute in training mode"),
        (FAILS_IN_AUTOCAST, "in autocast the script cannot be followed: train.py:"),
        pytest.param(
            JOB.replace("\nfor epoch", "\nmodel = torch.compile(model)\nfor epoch"),
            "the script compiles, and autocast is to be written into it",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_where_it_is_not_put_in_it_is_said_why(tmp_path: Path, text: str, why: str) -> None:
    document = captured(tmp_path, text)
    assert "amp_bf16" not in [one["precision"] for one in document["variants"]]
    assert document["no_autocast"].startswith(why)
    if text == FAILS_IN_AUTOCAST:
        assert document["no_autocast"].endswith("in loss_of: AssertionError: float32 alone")


# Libraries that run the loop.


def with_library(folder: Path, module: str, made: str, text: str) -> str:
    """The job with `made` of a library that is beside it: whoever is made of its class says whether
    all is in autocast."""
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True)
    for package in [one for one in path.parents if folder in one.parents]:
        package.joinpath("__init__.py").touch()
    name, argument = made.split("=")[0].split("(")
    path.write_text(
        f"class {name}:\n"
        f"    def __init__(self, devices=1, {argument}=None):\n"
        f"        self.is_bf16 = {argument} in ('bf16', 'bf16-mixed')\n"
    )
    return f"from {module} import {name}\nis_bf16 = {made}.is_bf16\n" + text


BY_ITS_SETTING = IN_AUTOCAST.replace("torch.bfloat16)", "torch.bfloat16, enabled=is_bf16)")


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return told(captured(tmp_path_factory.mktemp("by_hand"), IN_AUTOCAST), 0)


@pytest.mark.parametrize(
    ("module", "made"),
    [
        ("accelerate.accelerator", "Accelerator(mixed_precision='no')"),
        ("lightning.pytorch.trainer.trainer", "Trainer(precision='32-true')"),
        ("pytorch_lightning.trainer.trainer", "Trainer(precision=32)"),
        ("lightning.fabric.fabric", "Fabric(precision=None)"),
    ],
)
def test_a_library_is_given_its_setting(
    tmp_path: Path, by_hand: list[Any], module: str, made: str
) -> None:
    """Also where the script has it say float32."""
    document = captured(tmp_path, with_library(tmp_path, module, made, BY_ITS_SETTING))
    assert [one["precision"] for one in document["variants"]] == ["as_written", "amp_bf16"]
    assert document["variants"][1]["set_by"] in ("accelerate", "lightning")
    assert told(document, 0) != told(document, 1) == by_hand


def test_a_setting_that_puts_nothing_in_is_none(tmp_path: Path) -> None:
    made = "Trainer(precision='32-true')"
    job = with_library(tmp_path, "lightning.pytorch.trainer.trainer", made, JOB)
    assert captured(tmp_path, job)["no_autocast"] == (
        "lightning's setting for it puts nothing of the script into autocast"
    )


def test_a_library_that_runs_no_loop_sets_nothing(tmp_path: Path, by_hand: list[Any]) -> None:
    made = "Trainer(precision='32-true')"
    job = with_library(tmp_path, "lightning.pytorch.trainer.trainer", made, JOB)
    document = captured(tmp_path, job.replace(f"is_bf16 = {made}.is_bf16\n", ""))
    assert "set_by" not in document["variants"][1]
    assert told(document, 1) == by_hand


@pytest.mark.parametrize(
    ("library", "text", "beside", "written", "instead"),
    [
        ("lightning", LIGHTNING, "max_epochs=100", "precision='32-true'", "'bf16-mixed'"),
        ("pytorch_lightning", LIGHTNING, "max_epochs=100", "precision=32", "'bf16-mixed'"),
        ("accelerate", ACCELERATE, "accumulation_steps=2", "mixed_precision='no'", "'bf16'"),
        ("transformers", TRANSFORMERS, "max_steps=10_000", "bf16=False", "True"),
    ],
)
def test_it_is_as_if_the_setting_were_typed(
    tmp_path: Path, library: str, text: str, beside: str, written: str, instead: str
) -> None:
    """The libraries themselves, where they are installed."""
    pytest.importorskip(library)
    if library == "pytorch_lightning":
        text = text.replace("import lightning as L", "import pytorch_lightning as L")
        text = text.replace("from lightning.pytorch.", "from pytorch_lightning.")

    def with_setting(name: str, setting: str) -> dict[str, Any]:
        folder = tmp_path / name
        folder.mkdir()
        return captured(folder, in_folder(folder, text.replace(beside, f"{beside}, {setting}")))

    edited = f"{written.split('=')[0]}={instead}"
    both, by_hand = with_setting("both", written), with_setting("by_hand", edited)
    assert told(both, 0) != told(both, 1) == told(by_hand, 0)
