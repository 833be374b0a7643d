"""How large a share of its elements a mean counts: targets that are not ignored, a summed mask.

Where that is not the same each time, the mean of a batch is no mean of its micro-batches."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Optional

import torch
from torch.utils._mode_utils import no_dispatch

from ..base.places import Places
from ..knowledge.facts import facts_of

_aten = torch.ops.aten
_CROSS_ENTROPIES = (_aten.nll_loss_forward, _aten.nll_loss2d_forward)
_MEAN = 1

#: By the line that counts: the shares that were seen, None for one that is not known.
Shares = dict[str, set[Optional[Fraction]]]


class Counted:
    def __init__(self) -> None:
        self.shares: Shares = {}

    def see(self, func: Any, args: Any, result: Any, places: Places) -> None:
        packet = func.overloadpacket
        if packet in _CROSS_ENTROPIES and args[3] == _MEAN:
            share = _share(args[1], args[4])
        elif packet is _aten.sum and result.numel() == 1 < args[0].numel():
            share = _share(args[0])
            if share is None and args[0].is_floating_point():
                return  # of whatever it is
        else:
            return
        self.shares.setdefault(places.current().where or "", set()).add(share)


def _share(tensor: torch.Tensor, ignored: int | None = None) -> Fraction | None:
    values = facts_of(tensor).values
    if values is None:
        return None
    with no_dispatch():
        counts = values if ignored is None else values != ignored
        return Fraction(counts.double().sum().item()) / counts.numel()


def of_all(runs: Iterable[Shares]) -> dict[str, Any]:
    """As the step file has it: by line, whether all are the same. Nothing of lines of which one is
    not known."""
    seen: Shares = {}
    for run in runs:
        for where, shares in run.items():
            seen.setdefault(where, set()).update(shares)
    known = {where: len(all_) == 1 for where, all_ in seen.items() if None not in all_}
    return {"counted": known} if known else {}
