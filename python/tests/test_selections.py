"""Sizes that only values tell: what is assumed, and what is known of values all the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional

from program_here import needs_program  # noqa: E402
from step_checks import Checked  # noqa: E402

import plimsoll  # noqa: E402


class Does(nn.Module):
    """A layer, and then what a test is about."""

    def __init__(self, what):
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.what = what

    def forward(self, x):
        return self.what(self.layer(x))


def capture(what, batches=(2, 3), **options):
    settings = dict(
        optimizer=lambda p: torch.optim.SGD(p, 0.1),
        make_batch=lambda n: torch.randn(n, 8),
        loss=lambda m, x: m(x).sum(),
        steps=1,
        batches=batches,
    )
    return plimsoll.capture(lambda: Does(what), **{**settings, **options})


def shape_of(what, op):
    """Of what `op` made in the forward, as pairs for the two batches."""
    made = capture(what)
    step = Checked(made.document)
    call = next(call for name, call in step.calls("forward") if name == op)
    return step.layout(call[7][0])[1], made.notes


@pytest.mark.parametrize(
    "what, op, shape, assumed",
    [
        (lambda y: y[y > 0], "aten.index.Tensor", [[8, 12]], "all, the most"),
        (lambda y: y[(y > 0).any(1)], "aten.index.Tensor", [[2, 3], 4], "all, the most"),
        (lambda y: y.masked_select(y > 0), "aten.index.Tensor", [[8, 12]], "all, the most"),
        (lambda y: y * (y > 0).nonzero().sum(), "aten.nonzero.default", [[8, 12], 2], "all, the"),
        (lambda y: y.view(-1)[(y.argmax(1) == 2).repeat(4)], "aten.index.Tensor", [[2, 3]], "in 4"),
        (lambda y: y[y.argmax(1) == 7].sum() + y, "aten.add.Tensor", [[2, 3], 4], "nothing"),
        (lambda y: y[F.one_hot(y.argmax(1), 4).bool()], "aten.index.Tensor", [[2, 3]], "one in 4"),
        (lambda y: y[torch.rand_like(y) < 0.25], "aten.index.Tensor", [[2, 3]], "one in 4"),
        (lambda y: y[~(torch.rand_like(y) < 0.25)], "aten.index.Tensor", [[6, 9]], "one in 1.333"),
        (lambda y: y * y.argmax(1).unique().sum(), "aten._unique2.default", [[2, 3]], "all"),
        (lambda y: y * torch.bincount(y.argmax(1)).sum(), "aten.bincount.default", [4], "4 bins"),
    ],
)  # fmt: skip
def test_a_size_that_depends_on_values(what, op, shape, assumed):
    found, notes = shape_of(what, op)
    assert found == shape
    (said,) = [note for note in notes if "depends on values" in note]
    assert said.startswith("test_selections.py:") and assumed in said


def copied_over(mask, y):
    mask.copy_(y[:, 0] > 0)


def filled_in_part(mask, y):
    mask[1:] = True


@pytest.mark.parametrize("write", [copied_over, filled_in_part])
def test_what_is_written_into_a_mask_is_no_longer_known(write):
    def changed(y):
        mask = torch.zeros(len(y), dtype=torch.bool, device=y.device)
        write(mask, y)
        return y[mask]

    assert shape_of(changed, "aten.index.Tensor")[0] == [[2, 3], 4]


def test_as_much_of_a_mask_is_known_as_was_chosen():
    def chosen(y):
        mask = torch.zeros(16 * len(y), dtype=torch.uint8, device=y.device)
        mask[torch.randperm(16 * len(y), device=y.device)[: 4 * len(y)]] = 1
        return y.repeat(16, 1)[mask.bool()]

    assert shape_of(chosen, "aten.index.Tensor")[0] == [[8, 12], 4]


def test_places_of_everything_are_known():
    def by_expert(y):
        for index in (y.sum(0) > 0).nonzero():
            if index == 3:
                continue
            y = y + index.item()
        return y

    made = capture(by_expert)
    adds = [
        call for name, call in Checked(made.document).calls("forward") if name == "aten.add.Tensor"
    ]
    assert [call[5][1] for call in adds] == [0, 1, 2]


def test_lists_of_values():
    def listed(y):
        assert (y.sum(0) > 0).nonzero().tolist() == [[0], [1], [2], [3]]
        assert y[:0].tolist() == []
        return y

    def loss(model, x):
        y = model(x)
        assert y.tolist() == [[1.0] * 4] * len(y) and y.argmax(1).tolist() == [1] * len(y)
        return y.sum()

    assert capture(listed, loss=loss).notes
    with pytest.raises(plimsoll.CaptureError, match="reads the value of a tensor"):
        capture(lambda y: y[: y.argmax(1).tolist()[0]])


def test_tokens_that_are_split_by_expert():
    def by_expert(y):
        chosen = y.argmax(1)
        counts = torch.bincount(chosen, minlength=4).cpu().tolist()
        return torch.cat(
            [part.exp() for part in y[chosen.argsort()].repeat(4, 1).split([4 * n for n in counts])]
        )

    made = capture(by_expert, (4, 8))
    step = Checked(made.document)
    parts = [call for name, call in step.calls("forward") if name == "aten.exp.default"]
    assert [step.layout(call[7][0])[1] for call in parts] == [[[4, 8], 4]] * 4


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="of torch 2.8 and newer")
def test_products_of_groups_in_float32():
    def grouped(y):
        weights = y.new_ones(3, 4, 6).requires_grad_()
        ends = torch.tensor([1, 1, 2], dtype=torch.int32, device=y.device)
        return torch._grouped_mm(y, weights, offs=ends)

    made = capture(grouped)
    step = Checked(made.document)
    products = [call for name, call in step.calls() if name == "aten._grouped_mm.default"]
    shapes = [step.layout(call[7][0])[1] for call in products]
    assert shapes[0] == [[2, 3], 6] and sorted(shapes[1:], key=len) == [[[2, 3], 4], [3, 4, 6]]


def test_the_line_of_a_backward_is_that_of_its_forward():
    def assigned(y):
        made = y.clone()
        made[y > 0] = 2 * y[y > 0]
        return made

    made = capture(assigned)
    assert "aten.index.Tensor" in Checked(made.document).ops("backward")
    assert all(note.startswith("test_selections.py:") for note in made.notes)


def test_an_error_does_not_follow_from_a_truth():
    def careful(y):
        if (y > 0).any():
            raise ValueError("never")
        if not (y > 0).any():
            raise ValueError("never")
        return y

    made = capture(careful)
    assert [note.split("; ")[1] for note in made.notes] == ["False is assumed", "True is assumed"]


def test_knowledge_of_values_leaves_no_trace():
    made = capture(lambda y: y[y > 0])
    assert "aten._index_put_impl_.default" in Checked(made.document).ops("backward")


# Steps that do something once for each sample.


WIDE = 1 << 18


def one_by_one(y):
    """A running sum of what is done to each, all kept for the backward."""
    total = y.new_zeros(4, WIDE)
    kept = []
    for row in y.unbind():
        wide = torch.outer(row, row.new_ones(WIDE)).sin()
        kept.append(wide.exp())
        total = total + wide
    return torch.cat(kept).sum() + total.sum()


def test_a_sample_that_only_the_larger_batch_has():
    made = capture(one_by_one)
    step = Checked(made.document)
    assert any("once for each sample" in note for note in made.notes)
    sizes = [call[8][0][1] for name, call in step.calls("forward") if name == "aten.exp.default"]
    assert sizes == [16 * WIDE, 16 * WIDE, [0, 16 * WIDE]]
    (joined,) = [call for name, call in step.calls("forward") if name == "aten.cat.default"]
    assert step.layout(joined[7][0])[1] == [[8, 12], WIDE]


@needs_program
def test_further_samples_are_predicted():
    def peak(batches):
        return plimsoll.predict(capture(one_by_one, batches), batch=12, gpu="H200").allocated.best

    # The second of two batches is as it was run.
    assert peak((3, 5)) == pytest.approx(peak((11, 12)), rel=0.01)


def test_what_only_the_larger_batch_does_is_no_sample():
    with pytest.raises(plimsoll.CaptureError, match="batch 2 and at batch 3"):
        capture(lambda y: y.exp().tanh() if y.shape[0] > 2 else y.exp())


def test_runs_that_part_for_another_reason_are_still_refused():
    with pytest.raises(plimsoll.CaptureError, match="batch 2 and at batch 3"):
        capture(lambda y: y.tanh() if y.shape[0] > 2 else y.exp())
