"""Evaluations are followed, however their loop is written: not only those over a DataLoader."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fresh_process import fresh  # noqa: E402
from test_later import parts, steps  # noqa: E402
from test_script import captured, script  # noqa: E402

from plimsoll.scripts.command import main  # noqa: E402

HEAD = """
def made(n): return [(torch.randn(batch, 32), torch.randint(0, 8, (batch,))) for _ in range(n)]
train, held_out = made(30), made(20)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def train_on(x, y):
    model.train()
    loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
def score(logits): return torch.cat(logits).argmax(-1).float().mean().item()
"""

#: How people write the loop that trains.
TRAINING = {
    "list": "for x, y in train: train_on(x, y)\n",
    "range": "for step in range(1000): train_on(*train[step % 30])\n",
    "enumerated": "for step, (x, y) in enumerate(train): train_on(x, y)\n",
    "generator": """
def batches():
    for one in train: yield one
for x, y in batches(): train_on(x, y)
""",
    "endless": """
def endless():
    while True: yield from train
for step, (x, y) in zip(range(1000), endless()): train_on(x, y)
""",
    "while": "step = 0\nwhile step < 1000:\n    train_on(*train[step % 30]); step += 1\n",
    "epochs": """
for epoch in range(40):
    for x, y in train: train_on(x, y)
""",
    "next": """
stream = iter(train)
for step in range(25):
    x, y = next(stream)
    train_on(x, y)
""",
    "loader": """
for x, y in DataLoader(TensorDataset(torch.randn(30 * batch, 32),
                                     torch.randint(0, 8, (30 * batch,))), batch_size=batch):
    train_on(x, y)
""",
}
#: And the one that evaluates: gradients are on and logits are kept, or not.
EVALUATION = {
    "list": "score([model(x.cuda()) for x, y in held_out])\n",
    "appended": """
model.eval(); logits = []
for x, y in held_out: logits.append(model(x.cuda()))
score(logits); del logits
""",
    "in training mode": """
logits = []
for x, y in held_out: logits.append(model(x.cuda()))
score(logits); del logits
""",
    "without gradients": """
logits = []
with torch.no_grad():
    for x, y in tuple(held_out): logits.append(model(x.cuda()))
score(logits); del logits
""",
    "generator": """
def batches():
    for x, y in held_out: yield x.cuda()
model.eval(); score([model(x) for x in batches()])
""",
    "range": """
model.eval(); logits = []
for i in range(0, len(held_out)): logits.append(model(held_out[i][0].cuda()))
score(logits); del logits
""",
    "dict": """
model.eval()
for name, some in {"seen": held_out[:4], "unseen": held_out}.items():
    score([model(x.cuda()) for x, y in some])
""",
    "zip": """
model.eval(); logits = []
for i, (a, b) in enumerate(zip(held_out, held_out)): logits.append(model(a[0].cuda()))
score(logits); del logits
""",
    "own iterable": """
class Batches:
    def __iter__(self): return iter(held_out)
model.eval(); logits = []
for x, y in Batches(): logits.append(model(x.cuda()))
score(logits); del logits
""",
    "recursion": """
def each(rest):
    return [model(rest[0][0].cuda())] + each(rest[1:]) if rest else []
model.eval(); score(each(held_out))
""",
    "while": """
model.eval(); logits, i = [], 0
while i < len(held_out):
    logits.append(model(held_out[i][0].cuda())); i += 1
score(logits); del logits
""",
    "until it stops": """
model.eval(); logits, rest = [], iter(held_out)
while True:
    try: x, y = next(rest)
    except StopIteration: break
    logits.append(model(x.cuda()))
score(logits); del logits
""",
    "one forward": "model.eval(); model(torch.cat([x for x, y in held_out]).cuda())\n",
    "shared function": """
def run(batches, trains):
    model.train(trains); logits = []
    for x, y in batches:
        logits.append(model(x.cuda()))
        if trains: train_on(x, y)
    score(logits)
run(held_out, False)
""",
}


def follow(folder: Path, training: str, evaluation: str, *words: str) -> dict[str, Any]:
    return captured(folder, HEAD + TRAINING[training] + EVALUATION[evaluation], *words).document


@pytest.mark.parametrize("evaluation", EVALUATION)
def test_an_evaluation_is_followed(evaluation: str, tmp_path: Path) -> None:
    told = follow(tmp_path, "list", evaluation, "{batch}")
    assert steps(told) == 3 and any(part[0] == "evaluation" for part in parts(told))
    assert not any("no evaluation" in note or "is not counted" in note for note in told["notes"])


@pytest.mark.parametrize("training", TRAINING)
def test_it_is_followed_behind_any_training(training: str, tmp_path: Path) -> None:
    told = follow(tmp_path, training, "appended", "{batch}")
    assert steps(told) == 3 and any(part[0] == "evaluation" for part in parts(told))


#: A loop of its own in the forward, as most networks have.
BLOCKS = """
class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
    def forward(self, x):
        for block in self.blocks: x = block(x)
        return x[:, :8]
"""
PARTS = {
    "fetched in the loop": "for i in range(20): logits = model(held_out[i][0].cuda())\n",
    "two models": """
for x, y in held_out:
    for one in (model, twin): logits = one(x.cuda())
""",
}


@pytest.mark.parametrize("evaluation", PARTS)
def test_a_batch_of_an_evaluation_is_one_part(evaluation: str, tmp_path: Path) -> None:
    """Further batches repeat a part: half a batch would leave its logits each time."""
    head = HEAD.replace("nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))", "Blocks()")
    evaluated = "import copy\ntwin = copy.deepcopy(model)\nmodel.eval()\n" + PARTS[evaluation]
    told = captured(tmp_path, BLOCKS + head + TRAINING["list"] + evaluated, "{batch}").document
    events = told["variants"][0]["events"]
    numbers = [i for i, event in enumerate(events) if event[0] == "part"]
    calls = [
        [e[1] for e in events[begin:end] if e[0] == "call"]
        for begin, end in zip(numbers, [*numbers[1:], len(events)])
    ]
    repeated = [i for i, at in enumerate(numbers) if "times" in str(events[at])]
    assert repeated or evaluation == "two models"
    assert all(calls[i] == calls[i - 1] for i in repeated)


@pytest.mark.parametrize("kept", ["history.append(logits)", "history = logits"])
def test_what_each_epoch_leaves_is_unknown(kept: str, tmp_path: Path) -> None:
    loop = """
history = []
for epoch in range(40):
    for x, y in train: train_on(x, y)
    logits = []
    with torch.no_grad():
        for x, y in held_out: logits.append(model(x.cuda().repeat(200, 1)))
    """
    told = captured(tmp_path, HEAD + loop + kept + "\n", "{batch}").document
    found = [one["what"] for one in told.get("not_followed", [])]
    assert found == (["each round of the loop leaves more on the GPU"] if "append" in kept else [])


@pytest.mark.parametrize("evaluation", ["list", "in training mode"])
def test_it_is_followed_where_the_batch_is_in_the_text(evaluation: str, tmp_path: Path) -> None:
    path = script(tmp_path, HEAD + TRAINING["list"] + EVALUATION[evaluation])
    out = tmp_path / "job.step.json.gz"
    assert fresh(main, ["-o", str(out), "--", "python", path]).value == 0
    told = json.loads(gzip.decompress(out.read_bytes()))
    assert any(part[0] == "evaluation" for part in parts(told))
    assert not any("evaluation" in note for note in told["notes"])
