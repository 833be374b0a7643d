"""The lines of a job that read or change gradients outside of backward and optimizer.step().

Clipping, a gradient scaler, norms that are logged, averages over ranks by hand: they need whole
gradients of all parameters, which an optimizer that steps inside the backward has used up by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..base.places import current_line, is_called_in

#: What makes gradients ready for the next step.
_ZEROING = (torch.ops.aten.zero_, torch.ops.aten._foreach_zero_)
#: Where no line of the user's is at work: a loop of ours with a gradient scaler.
NO_LINE = "the training loop"


class GradientUses:
    def __init__(self) -> None:
        #: "train.py:57 in main", in the order in which they were seen.
        self.lines: list[str] = []
        #: Storages of gradients that a backward has completed, and that are there still.
        self._complete: set[int] = set()
        #: Optimizers that step, one inside another.
        self._stepping = 0

    def completed(self, storages: Iterable[int]) -> None:
        """At the end of a backward."""
        self._complete.update(storages)

    def freed(self, storage: int) -> None:
        self._complete.discard(storage)

    def step_begins(self) -> None:
        self._stepping += 1

    def step_ends(self) -> None:
        self._stepping -= 1

    @property
    def are_possible(self) -> bool:
        """Asked before every operator."""
        return bool(self._complete) and not self._stepping

    def see(self, func: Any, storages: Iterable[int]) -> None:
        """An operator gets these. Those of a backward add to gradients, or are hooks of one."""
        if self._complete.isdisjoint(storages) or func.overloadpacket in _ZEROING:
            return
        if torch._C._current_autograd_node() is not None or is_called_in("zero_grad"):
            return
        line = current_line() or NO_LINE
        if line not in self.lines:
            self.lines.append(line)


def of_all(uses: Iterable[list[str]]) -> dict[str, list[str]]:
    """Of the runs of one variant, as the step file has it."""
    return {"gradients_used": list(dict.fromkeys(line for lines in uses for line in lines))}
