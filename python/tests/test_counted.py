"""Whether means over a part of their elements count the same share in every batch."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from test_script import captured  # noqa: E402

import plimsoll  # noqa: E402

TAGGER = """
words = torch.randint(1, 50, (400, 8))
tags = words % 5
lengths = torch.randint(2, 9, (400, 1))
padding = torch.arange(8)[None] >= lengths
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 5)
    def forward(self, words):
        return self.head(self.embedding(words))
model = Tagger().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train(tags, loss_of):
    for x, y in DataLoader(TensorDataset(words, tags), batch):
        x, y = x.cuda(), y.cuda()
        loss_of(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
"""

IGNORED = "train(tags.masked_fill(padding, -100), nn.functional.cross_entropy)"
PADDED_ALIKE = """
tags[:, -2:] = -100
train(tags, nn.functional.cross_entropy)
"""
SMOOTHED = "train(tags, nn.CrossEntropyLoss(label_smoothing=0.1))"
MASKED = """
def over_mask(logits, tags):
    mask = tags != -100
    each = nn.functional.cross_entropy(logits, tags, reduction="none")
    return (each * mask).sum() / mask.sum()
train(tags.masked_fill(padding, -100), over_mask)
"""


@pytest.mark.parametrize(
    ("loop", "alike"),
    [
        (IGNORED, False),
        (MASKED, False),
        (PADDED_ALIKE, True),
        (SMOOTHED, True),
    ],
)
def test_targets_that_are_ignored_and_masks(tmp_path: Path, loop: str, alike: bool) -> None:
    step = captured(tmp_path, TAGGER + loop, "{batch}")
    assert set(step.document["counted"].values()) == {alike}


def test_of_a_made_up_batch_nothing_is_known() -> None:
    def loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(x), y)

    def batch(n: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(n, 8), torch.randint(4, (n,))

    model = torch.nn.Linear(8, 4)
    taken = plimsoll.capture(model, torch.optim.SGD(model.parameters(), 0.1), batch, loss)
    assert "counted" not in taken.document
