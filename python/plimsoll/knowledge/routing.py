"""Choices among experts, as the user says that they come out (`routing=skewed:3`).

The indices that `topk` and its like give are made up then: whatever the model makes of them, masks,
counts, offsets, follows from those (facts.py), with no more to be assumed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from .facts import ROUTED, Facts, facts_of, set_facts

_aten = torch.ops.aten
#: Which of the results has the places. A sort has all of them, whoever is busiest.
_CHOOSING = {
    _aten.topk: 1,
    _aten.max: 1,
    _aten.argmax: 0,
    _aten.multinomial: 0,
}


_ZEROS = (_aten.zeros, _aten.zeros_like, _aten.new_zeros)
_SCATTERS = (_aten.scatter.value, _aten.scatter_.value)


def route(func: Any, args: Any, kwargs: dict[str, Any], result: Any, skew: float) -> None:
    """After an operator has run: if it chooses, what it has chosen."""
    if func.overloadpacket in _ZEROS:
        _keep_zeros(result)
    elif func in _SCATTERS:
        _scatter(args, result)
    else:
        _choose(func, args, kwargs, result, skew)


def _keep_zeros(result: Any) -> None:
    """Into which choices may be written. They take no memory here."""
    if isinstance(result, FakeTensor) and result.numel() <= ROUTED:
        with no_dispatch():
            values = torch.zeros((), dtype=result.dtype).expand(result.shape)
        set_facts(result, facts_of(result)._replace(values=values))


def _scatter(args: Any, result: Any) -> None:
    """`torch.zeros_like(scores).scatter_(1, chosen, 1)`"""
    into, dim, places, value = args
    known, chosen = facts_of(into).values, facts_of(places)
    if known is None or chosen.values is None or not chosen.routed:
        return
    with no_dispatch():
        values = known.scatter(dim, chosen.values, value)
    set_facts(result, Facts(values=values, routed=True), writes=int(result is into))


def _choose(func: Any, args: Any, kwargs: dict[str, Any], result: Any, skew: float) -> None:
    which = _CHOOSING.get(func.overloadpacket)
    results = result if isinstance(result, (list, tuple)) else [result]
    if which is None or which >= len(results) or not isinstance(results[which], FakeTensor):
        return
    chosen = results[which]
    choices = facts_of(chosen).below
    if choices is None or not args[0].is_floating_point():
        return
    several = func.overloadpacket in (_aten.topk, _aten.multinomial) and chosen.dim() > 0
    dim = kwargs.get("dim", args[2] if len(args) > 2 else -1) if func is _aten.topk.default else -1
    shape = list(chosen.shape)
    each = shape.pop(dim) if several else 1
    with no_dispatch():
        rows = skewed(math.prod(shape), each, choices, skew).view(*shape, each)
        values = rows.movedim(-1, dim) if several else rows.squeeze(-1)
    set_facts(chosen, facts_of(chosen)._replace(values=values.contiguous(), routed=True))


def skewed(tokens: int, each: int, experts: int, skew: float) -> torch.Tensor:
    """[tokens, each], the experts of each token. None is chosen twice by one, if there are enough:
    so the busiest gets every token at most. The others take turns."""
    rows = torch.zeros(tokens, each, dtype=torch.int64)
    if experts < 2 or not each:
        return rows
    share = tokens * each / experts
    busiest = tokens if skew * share >= tokens else math.ceil(skew * share - 1e-6)
    taken = torch.full((tokens,), each)
    taken[:busiest] -= 1
    begin = torch.cumsum(taken, 0) - taken
    places = torch.arange(each) - (torch.arange(tokens) < busiest).long()[:, None]
    turns = (begin[:, None] + places) % (experts - 1) + 1
    return torch.where(places < 0, rows, turns)
