"""Notebooks behind `--run`: the code of their cells."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fresh_process import fresh  # noqa: E402

from plimsoll.base.errors import CaptureError  # noqa: E402
from plimsoll.scripts.command import run_each  # noqa: E402
from plimsoll.scripts.notebook import cells_of, run_notebook, without_magics  # noqa: E402
from plimsoll.scripts.run import Run, RunResult  # noqa: E402


def notebook(folder: Path, *cells: str) -> str:
    made = [
        {"cell_type": kind, "source": source.splitlines(keepends=True), "metadata": {}}
        for kind, _, source in (cell.partition("\n") for cell in cells)
    ]
    path = folder / "train.ipynb"
    path.write_text(json.dumps({"cells": made, "nbformat": 4, "metadata": {}}))
    return str(path)


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("x = 1\ny = 2", "x = 1\ny = 2"),
        ("%matplotlib inline\nx = 1", "pass  # matplotlib inline\nx = 1"),
        ("if True:\n    !pip install x\nx = 1", "if True:\n    pass  # pip install x\nx = 1"),
        ("names = !ls\nx = 1", "names = []\nx = 1"),
        ("%%time\nx = 1", "\nx = 1"),
        ("%%bash\nrm -r *", ""),
        ("%%writefile a.py\nx = (", ""),
        ("x = '''\n%not magic\n'''", "x = '''\n%not magic\n'''"),
        ("print?\nx = 5 % 2", "pass  # \nx = 5 % 2"),
        ("", ""),
    ],
)
def test_magics_are_left_out_and_lines_stay(cell: str, code: str) -> None:
    assert without_magics(cell) == code


def test_code_cells_are_counted_with_all_others(tmp_path: Path) -> None:
    path = notebook(tmp_path, "markdown\n# A title", "code\nx = 1", "raw\nraw", "code\ny = x")
    assert [cell.name for cell in cells_of(path)] == ["train.ipynb cell 2", "train.ipynb cell 4"]


def test_cells_share_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "told", told, raising=False)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    path = notebook(
        tmp_path,
        "code\nimport sys\ndef f():\n    return later\nget_ipython().run_line_magic('x', '')",
        "code\nlater = 7\ndisplay(later)\nsys.told.append((f(), __name__))",
    )
    run_notebook(path, lambda source, name: None)
    assert told == [(7, "__main__")]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": [1]}', '{"cells": 3}', "\x00"])
def test_what_is_no_notebook_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.ipynb").write_text(text)
    with pytest.raises(CaptureError, match="is no notebook"):
        cells_of(str(tmp_path / "train.ipynb"))


def _ran(path: str) -> RunResult:
    return run_each([Run([path], None, "H200")])[0]


def test_a_notebook_is_followed(tmp_path: Path) -> None:
    path = notebook(
        tmp_path,
        "markdown\nTraining",
        "code\n%matplotlib inline\nimport torch\nmodel = torch.nn.Linear(32, 8).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        "code\nfor step in range(9):\n    loss = model(torch.randn(4, 32).cuda()).sum()\n"
        "    loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
        "    print(loss.item())",
    )
    run = fresh(_ran, path).value
    assert run.model == "Linear"
    assert any(note.startswith("train.ipynb cell 3:6 in <module>") for note in run.notes), run.notes


def test_an_error_names_the_cell_and_its_line(tmp_path: Path) -> None:
    path = notebook(tmp_path, "code\nx = 1", "code\n\nprint(y)")
    with pytest.raises(CaptureError) as raised:
        fresh(_ran, path)
    assert raised.value.where == "train.ipynb cell 2:2 in <module>"
    assert "NameError" in raised.value.what
