"""Random numbers that nobody needs, drawn all the same: what comes after them is then what it is in
the job itself. A loader shuffles its data by a number that is drawn after the model's weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

_aten = torch.ops.aten
#: By the name of torch.nn.init: what it draws for each element.
STARTS = {
    "uniform_": "uniform",
    "xavier_uniform_": "uniform",
    "kaiming_uniform_": "uniform",
    "trunc_normal_": "uniform",
    "normal_": "normal",
    "xavier_normal_": "normal",
    "kaiming_normal_": "normal",
    "orthogonal_": "normal",
    "sparse_": "normal",
    "_no_grad_uniform_": "uniform",
    "_no_grad_normal_": "normal",
    "_no_grad_trunc_normal_": "uniform",
}
_OPERATORS = {
    _aten.uniform_: "uniform",
    _aten.normal_: "normal",
    _aten.rand: "uniform",
    _aten.randn: "normal",
    _aten.randint: "integer",
    _aten.random_: "integer",
}
#: Of one piece. Normal numbers are drawn sixteen at a time.
_PIECE = 1 << 22
#: Beyond this it takes too long; the order of shuffled data is then another.
_MOST = 400_000_000


class Draws:
    """Of the host's generator."""

    def __init__(self) -> None:
        self._drawn = 0

    def start(self, name: str, tensor: torch.Tensor) -> None:
        """torch.nn.init."""
        if tensor.device.type == "cpu":
            self._draw(STARTS[name], tensor.numel())

    def operator(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        kind = _OPERATORS.get(func.overloadpacket)
        if kind is None or not isinstance(result, torch.Tensor) or kwargs.get("generator"):
            return
        if result.device.type == "cpu":
            self._draw(kind, result.numel())

    def _draw(self, kind: str, count: int) -> None:
        self._drawn += count
        if self._drawn > _MOST:
            return
        with no_dispatch():
            for _ in range(math.ceil(count / _PIECE)):
                piece = min(_PIECE, count)
                # The last piece of normal numbers is not left with fewer than are drawn at once.
                if 0 < count - piece < 16:
                    piece = count
                scratch = torch.empty(piece)
                if kind == "uniform":
                    scratch.uniform_()
                elif kind == "normal":
                    scratch.normal_()
                else:
                    scratch.to(torch.int64).random_()
                count -= piece
