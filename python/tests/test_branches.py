"""What a script does at a later step: it is followed, or said not to have been. Harmless branches
are neither."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from program_here import needs_program  # noqa: E402
from test_script import captured  # noqa: E402

from plimsoll.answers.program import find  # noqa: E402

JOB = """
import random
train = [(torch.randn(batch, 32), torch.randint(0, 8, (batch,))) for _ in range(30)]
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
ema = teacher = None
use_ema = patience = 0
seen = []
def freeze():
    for p in model[0].parameters(): p.requires_grad = False
    return torch.optim.SGD(model[2].parameters(), lr=0.1)
def unfreeze():
    for p in model.parameters(): p.requires_grad = True
    return torch.optim.AdamW(model.parameters())
def evaluate():
    with torch.no_grad(): return torch.cat([model(x.cuda()) for x, y in train])
class Switch:
    def __init__(self): self.step, self.at = 0, (20, 40)
    def __call__(self):
        self.step += 1
        if self.step in self.at: return unfreeze()
args = type("Args", (), {"unfreeze_at": 10, "resume": None})
optimizer, switch, size = freeze(), Switch(), 4
for epoch in range(50):
    EPOCH
    for step, (x, y) in enumerate(train):
        BEFORE
        x, y = x.cuda(), y.cuda()
        loss = nn.functional.cross_entropy(model(x.repeat(SIZE, 1)), y.repeat(SIZE))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        AFTER
"""


def follow(folder: Path, branch: str) -> dict[str, Any]:
    """`branch`: "where: lines"."""
    where, text = branch.split(": ", 1)
    places = {"EPOCH": "pass", "BEFORE": "pass", "AFTER": "pass", "SIZE": "size"}
    places[where] = text
    script = JOB
    for name, lines in places.items():
        indent = " " * (4 if name == "EPOCH" else 8)
        script = script.replace(name, lines.replace("\n", "\n" + indent))
    return captured(folder, script, "{batch}").document


def ops_of_steps(document: dict[str, Any]) -> set[str]:
    """Operators of an optimizer that has a state."""
    strings = document["strings"]
    calls = (event for event in document["variants"][0]["events"] if event[0] == "call")
    return {strings[event[1]] for event in calls if "addcdiv" in strings[event[1]]}


def sizes(document: dict[str, Any]) -> set[int]:
    """Rows of what is computed, at the smaller batch."""
    shapes = (layout[1] for layout in document["layouts"] if len(layout[1]) == 2)
    rows = (shape[0] for shape in shapes if shape[1] == 64 and isinstance(shape[0], list))
    return {row[0] for row in rows}


#: A new optimizer for more parameters.
UNFREEZES = [
    "BEFORE: if epoch == 10: optimizer = unfreeze()",
    "EPOCH: if epoch == args.unfreeze_at: optimizer = unfreeze()",
    "BEFORE: if step == 20: optimizer = unfreeze()",
    "BEFORE: if step >= 20 and len(optimizer.param_groups[0]['params']) < 3:"
    " optimizer = unfreeze()",
    "BEFORE: if epoch in (10, 30) and step == 0: optimizer = unfreeze()",
    "AFTER: optimizer = switch() or optimizer",
    "EPOCH: if epoch < 5: pass\nelse: optimizer = unfreeze()",
    "EPOCH: optimizer = freeze() if epoch < 5 else unfreeze()",
]
#: More rows, up to 32 times as many.
RESIZES = [
    "EPOCH: if epoch == 10: size = 32",
    "EPOCH: size = 32 if epoch >= 10 else 4",
    "EPOCH: size = {0: 4, 10: 16, 40: 32}.get(epoch, size)\nif epoch > 9: size = 32",
    "EPOCH: size = min(4 + epoch, 32)",
    "EPOCH: size = [4, 8, 16, 24, 32][epoch // 10]",
    "BEFORE: if step > 20: size = 32",
    "BEFORE: size = 4 if step < 20 else 32",
]
#: Nothing comes of these.
HARMLESS = [
    "AFTER: if step % 10 == 0: print(step, loss.item())",
    "AFTER: if step == 1000: torch.save(model.state_dict(), 'last.pt')",
    "AFTER: if step > 100000: break",
    "AFTER: if step > 10 and loss.item() > 1e6: raise ValueError(step)",
    "AFTER: if patience > 5: break",
    "EPOCH: if args.resume: model.load_state_dict(torch.load(args.resume))",
    "AFTER: if use_ema: ema.update(model)",
    "EPOCH: if epoch == 5: optimizer.param_groups[0]['lr'] *= 0.1",
]
#: What cannot be followed.
MISSED = [
    "AFTER: seen.append(1)\nif len(seen) > 40: optimizer = unfreeze()",
    "AFTER: seen.append(1)\nif len(seen) == 1000: evaluate()",
]


@pytest.mark.parametrize("branch", UNFREEZES)
def test_a_new_optimizer_is_followed(branch: str, tmp_path: Path) -> None:
    told = follow(tmp_path, branch)
    assert ops_of_steps(told) and "not_followed" not in told


@pytest.mark.parametrize("branch", RESIZES)
def test_larger_sizes_are_followed(branch: str, tmp_path: Path) -> None:
    where, text = branch.split(": ", 1)
    told = follow(tmp_path, f"{where}: {text}")
    assert max(sizes(told)) == 4 * 32 and "not_followed" not in told


def verdict(folder: Path, *flags: str) -> tuple[str, int, Any]:
    """Of what `follow` has captured: the verdict, the exit code, and why it is unknown."""
    words = [str(find()), "predict", str(folder / "job.step.json.gz"), "--gpu", "H200", "--json"]
    done = subprocess.run([*words, "--batch", "8", *flags], capture_output=True, text=True)
    document = json.loads(done.stdout)
    return document["verdict"], done.returncode, document["unknown"]


@pytest.mark.parametrize("branch", HARMLESS)
def test_what_is_harmless_is_left_out(branch: str, tmp_path: Path) -> None:
    assert "not_followed" not in follow(tmp_path, branch)


@needs_program
def test_a_script_that_was_followed_fits(tmp_path: Path) -> None:
    follow(tmp_path, HARMLESS[0])
    assert verdict(tmp_path) == ("fits", 0, [])
    assert verdict(tmp_path, "--limit", "1MiB")[:2] == ("does_not_fit", 1)


@needs_program
def test_a_branch_that_was_not_reached_is_unknown(tmp_path: Path) -> None:
    [branch] = follow(tmp_path, MISSED[0])["not_followed"]
    assert verdict(tmp_path) == ("unknown", 3, [branch])
    assert verdict(tmp_path, "--allow-unknown")[:2] == ("unknown", 0)
    assert verdict(tmp_path, "--limit", "1MiB")[:2] == ("does_not_fit", 1)


@pytest.mark.parametrize("branch", MISSED)
def test_what_is_not_followed_is_told(branch: str, tmp_path: Path) -> None:
    [one] = follow(tmp_path, branch)["not_followed"]
    assert one["file"] == "train.py" and one["line"]
