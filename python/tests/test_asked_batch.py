"""The batch that is asked about: a script that does otherwise there than at small ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fresh_process import fresh  # noqa: E402
from test_script import script  # noqa: E402

from plimsoll.scripts.command import main  # noqa: E402

HEAD = """
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(4096, 32).cuda()
def train(x):
    loss = torch.cat([model(part) for part in x.split(16)]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CHUNKS = (
    HEAD
    + """
for step in range(8):
    train(data[:batch])
"""
)


def asked(folder: Path, text: str, batch: int) -> dict[str, Any]:
    out = folder / "job.step.json.gz"
    words = ["-o", str(out), "--batch", str(batch), "--", "python", script(folder, text)]
    assert fresh(main, [*words, "{batch}"]).value == 0
    with gzip.open(out) as file:
        document: dict[str, Any] = json.load(file)
        return document


def products(document: dict[str, Any]) -> int:
    """Matrix products of the steps."""
    events = document["variants"][0]["events"]
    names = [document["strings"][event[1]] for event in events if event[0] == "call"]
    return sum(name.startswith(("aten.mm", "aten.addmm")) for name in names)


def assumed(document: dict[str, Any]) -> bool:
    return any("does otherwise" in note for note in document["notes"])


def test_a_batch_that_is_cut_into_chunks_has_as_many_as_it_has(tmp_path: Path) -> None:
    few, many = asked(tmp_path, CHUNKS, 12), asked(tmp_path, CHUNKS, 64)
    assert few["batches"] == [4, 8] and not assumed(few)
    assert many["batches"] == [63, 64] and assumed(many)
    assert products(many) == 4 * products(few)


def test_a_batch_that_must_divide_is_captured_with_its_half(tmp_path: Path) -> None:
    text = CHUNKS.replace("for step", "assert batch % 4 == 0\nfor step").replace("16", "48")
    document = asked(tmp_path, text, 64)
    assert document["batches"] == [32, 64] or "not_followed" in document
    assert document["batches"] != [63, 64]


def test_a_batch_beyond_the_data_is_as_large_as_the_data(tmp_path: Path) -> None:
    document = asked(tmp_path, CHUNKS.replace("4096", "10").replace("16", "99"), 64)
    inputs = [layout[1] for layout in document["layouts"] if layout[1][-1:] == [32]]
    assert document["batches"] == [32, 64] or "not_followed" in document
    assert assumed(document) or "not_followed" in document, inputs


def test_a_script_without_a_step_there_is_said(tmp_path: Path) -> None:
    text = (
        HEAD
        + """
for (x,) in DataLoader(TensorDataset(torch.randn(40, 32)), batch_size=batch, drop_last=True):
    train(x.cuda())
"""
    )
    document = asked(tmp_path, text, 64)
    assert any("at batch 64 the script cannot be followed" in note for note in document["notes"])
