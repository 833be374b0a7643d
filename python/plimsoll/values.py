"""What is answered when the code reads a tensor's value, which a fake tensor does not have."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from .errors import CaptureError
from .places import Places, current_line

_aten = torch.ops.aten
# transformers asks there whether a mask masks nothing and positions count up: as they do unless one
# passes others.
_KNOWN = "masking_utils.py:"


class Notes(Protocol):
    def __call__(self, text: str) -> None: ...


class Values:
    """A truth is taken to be true, unless it asks for a NaN or an infinity: training is taken to go
    well. A number that is read outside the model (a loss, to print it) is taken to be 1. Inside the
    model a number decides what happens next, and the capture would guess: that is an error.
    """

    def __init__(self, note: Notes, whole_numbers: bool = False) -> None:
        """`whole_numbers`: those that are read outside the model are taken to be 1 as well, as in
        the metrics of a script."""
        self._note = note
        self._whole_numbers = whole_numbers
        self._bad_news: dict[int, Any] = {}

    def follow(self, func: Any, args: Any, result: Any) -> None:
        """Keeps in mind which truths ask for a NaN or an infinity."""
        if not isinstance(result, FakeTensor) or result.dtype is not torch.bool:
            return
        if self._asks_for_trouble(func, args):
            # Keeping the tensor would keep its storage; its number in memory is enough, as long as
            # it lives. It is read within a line or two.
            self._bad_news[id(result)] = func
        else:
            self._bad_news.pop(id(result), None)

    def _asks_for_trouble(self, func: Any, args: Any) -> bool:
        if func in (_aten.isnan.default, _aten.isinf.default):
            return True
        if func is _aten.ne.Tensor:  # isnan(x) is x != x
            return bool(args[0] is args[1])
        if func is _aten.eq.Scalar:  # isinf(x) is abs(x) == inf
            return bool(args[1] == float("inf"))
        names = (_aten.any, _aten.all, _aten.logical_or, _aten.bitwise_or)
        return func.overloadpacket in names and any(id(arg) in self._bad_news for arg in args)

    def read(self, tensor: torch.Tensor, places: Places | None) -> Any:
        if not isinstance(tensor, FakeTensor):
            with no_dispatch():
                return tensor.item()
        where = current_line()
        if tensor.dtype is torch.bool:
            answer = id(tensor) not in self._bad_news
            if where is None or not where.startswith(_KNOWN):
                self._note(f"{where}: a tensor is asked whether it is true; {answer} is assumed")
            return answer
        if tensor.constant is not None:
            with no_dispatch():
                return tensor.constant.item()
        if places is None or not places.in_model():
            if tensor.is_floating_point():
                self._note(f"{where}: the value of a tensor is read; 1.0 is assumed")
                return 1.0
            if self._whole_numbers:
                self._note(f"{where}: the value of a tensor ({tensor.dtype}) is read; 1 is assumed")
                return 1
        raise CaptureError(
            f"the code reads the value of a tensor ({tensor.dtype}) and goes on by it, "
            "but a capture has no values",
            where=where,
            hint="Keep what depends on it on the device (torch.where, a mask), "
            "or pass the number in from outside",
        )
