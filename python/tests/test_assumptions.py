"""What the user states of values: how masks select, how experts are chosen."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from step_checks import Checked  # noqa: E402
from test_selections import capture  # noqa: E402

import plimsoll  # noqa: E402
from plimsoll.base.assumptions import parse_assumptions  # noqa: E402
from plimsoll.knowledge.routing import skewed  # noqa: E402

WORST = "one expert is taken to get every token, as `assume` says"


def shapes(made, op):
    """Of what `op` made in the forward, one after the other."""
    step = Checked(made.document)
    return [step.layout(call[7][0])[1] for name, call in step.calls("forward") if name == op]


@pytest.mark.parametrize(
    "what, op, shape",
    [
        (lambda y: y[y > 0], "aten.index.Tensor", [[2, 3]]),
        (lambda y: y.masked_select(y > 0), "aten.index.Tensor", [[2, 3]]),
        (lambda y: y * (y > 0).nonzero().sum(), "aten.nonzero.default", [[2, 3], 2]),
        (lambda y: y.repeat(4, 1)[y.repeat(4, 1)[:, 0] > 0], "aten.index.Tensor", [[2, 3], 4]),
    ],
)
def test_a_mask_selects_the_share_that_is_stated(what, op, shape):
    made = capture(what, assume="mask=0.25")
    assert shapes(made, op)[0] == shape
    assert "masks are taken to select 25 % of their elements, as `assume` says" in made.notes


def test_a_mask_may_select_nothing():
    made = capture(lambda y: y.sum() + y[y > 0].sum(), assume="mask=0")
    assert shapes(made, "aten.index.Tensor") == [], "what has no bytes is not told"
    assert "masks are taken to select 0 % of their elements, as `assume` says" in made.notes


def test_what_is_known_of_a_mask_counts_more():
    made = capture(lambda y: y[torch.rand_like(y) < 0.5], assume="mask=0.25")
    assert shapes(made, "aten.index.Tensor") == [[[4, 6]]]
    assert any("what `assume` says of masks changed nothing" in note for note in made.notes)


def test_what_is_put_where_a_mask_selects():
    def put(y):
        made, mask = y.clone(), y > 0
        made[mask] = 2 * y[mask]
        return made

    assert shapes(capture(put, assume="mask=0.5"), "aten.index.Tensor") == [[[4, 6]]]


def by_where(y):
    chosen = y.topk(2)[1]
    return sum(y[torch.where(chosen == index)[0]].exp().sum() for index in range(4))


def by_code(y):
    """As transformers does: a mask with one row for each expert, and those alone that are hit."""
    code = F.one_hot(y.topk(2)[1], 4).permute(2, 1, 0)
    total = y.sum()
    for index in (code.sum((-1, -2)) > 0).nonzero():
        total = total + y[torch.where(code[index].squeeze(0))[1]].exp().sum()
    return total


def by_count(y):
    chosen = y.topk(2)[1].flatten()
    counts = torch.bincount(chosen, minlength=4).tolist()
    parts = y.repeat(2, 1)[chosen.argsort()].split(counts)
    return sum(part.exp().sum() for part in parts)


def by_scatter(y):
    mask = torch.zeros_like(y).scatter_(1, y.topk(2)[1], 1.0).bool()
    return sum(y[mask[:, index]].exp().sum() for index in range(4))


def test_places_that_choices_are_written_to():
    made = capture(by_scatter, (16, 32), assume="routing=worst")
    tokens = [[16, 32], [6, 11], [5, 11], [5, 10]]
    assert shapes(made, "aten.exp.default") == [[rows, 4] for rows in tokens]


@pytest.mark.parametrize("model", [by_where, by_code, by_count])
@pytest.mark.parametrize(
    "routing, tokens",
    [
        ("balanced", [[8, 16]] * 4),
        ("skewed:1.25", [[10, 20], [8, 15], [7, 15], [7, 14]]),
        ("worst", [[16, 32], [6, 11], [5, 11], [5, 10]]),
    ],
)
def test_experts_get_what_is_stated(model, routing, tokens):
    made = capture(model, (16, 32), assume=f"routing={routing}")
    assert shapes(made, "aten.exp.default") == [[rows, 4] for rows in tokens]
    if routing == "worst":
        assert WORST in made.notes
    assert not any("changed nothing" in note for note in made.notes)


def test_one_choice_for_each_token_may_leave_experts_without_any():
    def switch(y):
        chosen = y.argmax(1)
        total = y.sum()
        for index in range(4):
            mine = torch.where(chosen == index)[0]
            if mine.numel():
                total = total + y[mine].exp().sum()
        return total

    assert shapes(capture(switch, assume="routing=worst"), "aten.exp.default") == [[[2, 3], 4]]


def test_a_routing_that_nothing_depends_on():
    made = capture(lambda y: y.exp(), assume="routing=worst,mask=0.5")
    assert sum("changed nothing" in note for note in made.notes) == 2


@pytest.mark.parametrize(
    "tokens, each, experts", [(16, 2, 4), (7, 3, 5), (5, 1, 3), (4, 4, 4), (1, 2, 8), (3, 2, 1)]
)
@pytest.mark.parametrize("skew", [1, 1.5, 3, float("inf")])
def test_choices_are_made_up(tokens, each, experts, skew):
    rows = skewed(tokens, each, experts, skew)
    assert rows.shape == (tokens, each) and 0 <= rows.min() and rows.max() < experts
    if each > experts:
        return
    assert all(len(set(row)) == each for row in rows.tolist()), "each token chooses different ones"
    busiest, *others = torch.bincount(rows.flatten(), minlength=experts).tolist()
    wanted = min(tokens, -(-skew * tokens * each // experts) if skew < tokens else tokens)
    assert busiest == wanted or each == experts
    assert max(others) - min(others) <= 1


@pytest.mark.parametrize(
    "text",
    [
        "mask", "mask=", "mask=1.01", "mask=-0.5", "mask=nan", "mask=1e-3", "mask=.5", "mask=25%",
        "mask= 0.5", "mask=٣", "routing=", "routing=Worst", "routing=skewed", "routing=skewed:",
        "routing=skewed:0.5", "routing=skewed:inf", "routing=worst:2", "experts=2", ",",
        "routing=worst,", "mask=0.5,mask=0.5", 3, {"mask": 0.5},
    ],
)  # fmt: skip
def test_anything_else_is_refused(text):
    with pytest.raises(plimsoll.CaptureError, match="`assume`") as caught:
        capture(lambda y: y, assume=text)
    assert caught.value.hint and "\n" not in str(caught.value)


def test_each_form_is_read():
    assert parse_assumptions("") == parse_assumptions("routing=balanced")
    both = parse_assumptions("mask=0.125,routing=skewed:2.5")
    assert (both.mask, both.skew) == (0.125, 2.5)
