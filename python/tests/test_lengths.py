"""Jobs over batch and length, and jobs whose data decide the sizes of their batches."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fresh_process import fresh  # noqa: E402
from test_script import HEAD, script  # noqa: E402
from torch import nn  # noqa: E402

import plimsoll  # noqa: E402
from plimsoll.base.errors import CaptureError  # noqa: E402
from plimsoll.base.place import Place  # noqa: E402
from plimsoll.events import casts  # noqa: E402
from plimsoll.events.event import Call, NewStorage, Tensor  # noqa: E402
from plimsoll.events.points import lengths_for  # noqa: E402
from plimsoll.scripts.command import main  # noqa: E402
from plimsoll.scripts.data_sizes import DataSizes  # noqa: E402
from plimsoll.scripts.launchers import name_of_length  # noqa: E402


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embedding(x)
        return h @ h.transpose(1, 2)


def numbers(document: dict[str, Any]) -> set[tuple[int, ...]]:
    return {tuple(values) for values in document["numbers"]}


def test_a_make_batch_with_a_length_is_captured_at_five_points() -> None:
    made = plimsoll.capture(
        Scores,
        lambda parameters: torch.optim.SGD(parameters, 0.1),
        lambda n, side: torch.zeros(n, side, dtype=torch.long),
        lambda model, x: model(x).sum(),
        lengths=(8, 16, 24),
    )
    document = made.document
    assert document["schema"] == "plimsoll.step/2"
    assert document["dimensions"] == ["batch", "side"]
    assert document["points"] == [[2, 8], [3, 8], [2, 16], [3, 16], [2, 24]]
    # The bytes of the scores: batch × side × side.
    assert tuple(4 * n * s * s for n, s in document["points"]) in numbers(document)


def test_lengths_without_a_length_are_refused() -> None:
    with pytest.raises(CaptureError, match="takes no length"):
        plimsoll.capture(
            Scores,
            lambda parameters: torch.optim.SGD(parameters, 0.1),
            lambda n: torch.zeros(n, 8, dtype=torch.long),
            lambda model, x: model(x).sum(),
            lengths=(8, 16, 24),
        )


def test_the_lengths_around_one_leave_the_same_rest() -> None:
    for asked in (8192, 300, 224, 100, 7):
        short, middle, long = lengths_for(asked)
        assert 1 <= short < middle < long == asked
        assert middle - short == long - middle
    assert lengths_for(300) == (172, 236, 300)


def test_one_other_word_in_braces_is_a_length() -> None:
    assert name_of_length(["a", "{batch}", "--l={max_length}"]) == "max_length"
    assert name_of_length(["a", "{batch}", '{"json": 1}']) is None
    with pytest.raises(CaptureError, match="2 words"):
        name_of_length(["{a}", "{b}"])


def document_of(folder: Path, text: str, *words: str, flags: tuple[str, ...] = ()) -> Any:
    out = folder / "job.step.json.gz"
    arguments = ["-o", str(out), *flags, "--", "python", script(folder, text), *words]
    assert fresh(main, arguments).value == 0
    with gzip.open(out) as file:
        return json.load(file)


OVER_LENGTH = """
    length = int(sys.argv[2])
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        x = torch.zeros(batch, length, 8, device="cuda")
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_script_is_captured_over_the_length_that_is_asked_about(tmp_path: Path) -> None:
    told = document_of(tmp_path, OVER_LENGTH, "{batch}", "{length}", flags=("--length", "512"))
    assert told["dimensions"] == ["batch", "length"]
    assert {point[1] for point in told["points"]} == {256, 384, 512}
    assert tuple(4 * 8 * n * s for n, s in told["points"]) in numbers(told)


CHANGING = """
    model = nn.LSTM(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for length in (5, 9, 3, 7, 4, 8):
        x = torch.zeros(length, 6, 8).cuda()
        model(x)[0].sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_script_whose_batch_cannot_be_varied_is_followed_as_it_stands(tmp_path: Path) -> None:
    told = document_of(tmp_path, CHANGING)
    assert told["schema"] == "plimsoll.step/2"
    # From the third step on; the last is not over when the script ends.
    sizes = [told["points"][step] for step in told["sequence"]]
    assert [size[0] for size in sizes] == [3, 7, 4][: len(sizes)]
    # The weights of a recurrent layer lie in one piece, to which they come by way of copies.
    weights = [row for row in told["variants"][0]["events"] if row[0] == "parameter"]
    assert len(weights) == 4 and {row[5] for row in weights} == {1}


KEPT_FOR = """
    model = nn.LSTM(8, 8).cuda()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    kept = []
    for length in (5, 9, 3, 7, 4, 8, 6, 5, 2, 9):
        x = torch.zeros(length, 6, 8).cuda()
        loss = model(x)[0].sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(loss.detach())
        kept = kept[-{steps}:]
"""


@pytest.mark.parametrize("steps", [1, 2, 3, 20])
def test_what_is_kept_for_some_steps_does_not_tell_them_apart(tmp_path: Path, steps: int) -> None:
    told = document_of(tmp_path, KEPT_FOR.replace("{steps}", str(steps)))
    assert len(told["points"]) >= 6
    rows = told["variants"][0]["events"]
    begins = [at for at, row in enumerate(rows) if row[0] == "step"]
    # By step: what it makes, and what it lets go.
    made = [
        {new[0] for row in rows[a:b] if row[0] == "call" for new in row[8]}
        for a, b in zip(begins, [*begins[1:], len(rows)])
    ]
    gone = {row[1] for row in rows[begins[2] :] if row[0] == "free"}
    assert len(gone & made[0]) == (steps == 2)
    # Each has a number, and none is left out: what reads the file has room for so many.
    numbers = {new[0] for row in rows if row[0] == "call" for new in row[8]}
    numbers |= {row[1] for row in rows if row[0] == "parameter"}
    assert numbers == set(range(1, len(numbers) + 1))


SHUFFLED = """
    class Texts(torch.utils.data.Dataset):
        def __len__(self):
            return 40
        def __getitem__(self, index):
            return torch.ones(2 + index % 17)
    torch.manual_seed(3)
    model = nn.Linear(1, 300).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    pad = lambda samples: nn.utils.rnn.pad_sequence(samples, batch_first=True)
    for x in DataLoader(Texts(), 4, shuffle=True, collate_fn=pad):
        model(x.cuda()[..., None]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def shuffled() -> list[int]:
    """The lengths of the batches, as they come where all numbers are drawn."""
    torch.manual_seed(3)
    nn.Linear(1, 300)
    order = [*torch.utils.data.DataLoader(range(40), 4, shuffle=True)]
    return [max(2 + int(i) % 17 for i in batch) for batch in order]


def test_an_epoch_comes_in_the_order_that_its_seed_gives(tmp_path: Path) -> None:
    told = document_of(tmp_path, SHUFFLED, flags=("--data", "20"))
    expected = fresh(shuffled).value
    steps = [told["points"][s] if isinstance(s, int) else s for s in told["sequence"]]
    assert [step[1] for step in steps] == expected[2:]
    data = told["data"]
    assert data["batches"] == 10 and data["complete"]
    longest = max(expected)
    assert data["heaviest"][0]["batch"] == expected.index(longest)
    assert data["heaviest"][0]["shapes"] == [[4, longest]]
    assert sum(samples for _, samples in data["lengths"]) == 40


def test_of_a_large_epoch_little_is_kept() -> None:
    sizes = DataSizes()
    for index in range(20_000):
        sizes.add(torch.empty(4, 10 + index % 5, device="meta"))
    sizes.add((torch.empty(4, 99, device="meta"), torch.empty(4, device="meta")))
    found = sizes.result()
    assert len(found.shapes) == 6 and len(found.order) == 20_001
    assert found.heaviest[0].place == -20_000 and len(found.heaviest) == 5


def test_casts_of_an_operator_are_told_from_its_last_argument(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def call(op: str, made: int, *given: int) -> Call:
        args = [Tensor(number, 0, 0) for number in given]
        return Call(op, Place("", "", 0), args, {}, [], [NewStorage(made, 8, 0)])

    monkeypatch.setattr(casts.platform, "machine", lambda: "aarch64")
    events: list[Any] = [call("aten._to_copy.default", n, 9) for n in (1, 2, 3)]
    order = casts.Casts(events)
    order.before([Tensor(n, 0, 0) for n in (2, 3)])
    assert [event.made[0].storage for event in events] == [1, 3, 2]


assert HEAD
