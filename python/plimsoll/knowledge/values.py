"""What is answered when the code reads a tensor's value, which a fake tensor does not have."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from ..base.assumptions import NOTHING_STATED, Assumptions
from ..base.errors import CaptureError
from ..base.liveness import truth_to_go_on
from ..base.notes import Note
from ..base.places import Places, current_frame, current_line
from . import facts
from .routing import route
from .selections import Assuming, Selected, run_assumed

_aten = torch.ops.aten
# transformers asks there whether a mask masks nothing and positions count up: as they do unless one
# passes others.
_KNOWN = "masking_utils.py:"
# Liger's losses count there the tokens that are not ignored, to divide by them: no size depends on
# it.
_COUNTED = ("fused_linear_cross_entropy.py:", "cross_entropy.py:")


class Values:
    """A truth is taken to be true, unless it asks for a NaN or an infinity or an error follows from
    it: training is taken to go well. A number that is read outside the model (a loss, to print it)
    is taken to be 1. Inside the model a number decides what happens next, and the capture would
    guess: that is an error. A size that depends on values is assumed (selections.py).

    A script has data: what it moves to the device and reads there again is known. The batches of
    a captured job are made up, and nothing is known of those.
    """

    def __init__(
        self, note: Note, has_data: bool = False, stated: Assumptions = NOTHING_STATED
    ) -> None:
        self._note = note
        self._has_data = has_data
        self._stated = stated
        self._bad_news: dict[int, Any] = {}

    def select(
        self, func: Any, args: Any, kwargs: dict[str, Any], places: Places | None
    ) -> Selected | None:
        def note(text: str) -> None:
            # In a backward it is the line of the forward.
            where = current_line() if places is None else places.current().where
            self._note(f"{where}: {text}" if where else text)

        how = Assuming(note, self._note, self._stated)
        return run_assumed(func, args, kwargs, how, self._has_data)

    def come(self, fake: torch.Tensor, real: torch.Tensor) -> None:
        """A tensor of the host takes part in something that is not done there."""
        if self._has_data:
            facts.set_data(fake, real)

    def follow(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Keeps in mind what is known of values, and which truths ask for a NaN or an infinity."""
        skew = self._stated.skew
        if not facts.follow(func, args, kwargs, result, counts=skew is not None):
            self._note(
                f"{current_line()}: too many to follow what {self._stated.by} says of the routing; "
                "every choice is taken to come up equally often there"
            )
        if skew is not None:
            route(func, args, kwargs, result, skew)
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
        about = facts.facts_of(tensor)
        if about.values is not None:
            if about.routed:
                self._stated.note_routing(self._note)
            with no_dispatch():
                return about.values.item()
        where = current_line()
        if tensor.dtype is torch.bool:
            answer = self._truth(tensor, about)
            if self._has_data or where is None or not where.startswith(_KNOWN):
                self._note(f"{where}: a tensor is asked whether it is true; {answer} is assumed")
            return answer
        if tensor.constant is not None:
            with no_dispatch():
                return tensor.constant.item()
        if where is not None and where.startswith(_COUNTED):
            return 1
        if places is None or not places.in_model():
            if tensor.is_floating_point():
                self._note(
                    f"{where}: the script reads a tensor's value; without a GPU there are none, "
                    "and it gets 1.0"
                )
                return 1.0
            if places is not None:  # what is read while a model is built decides how large it is
                self._note(
                    f"{where}: the script reads the value of a tensor ({tensor.dtype}); without a "
                    "GPU there are none, and it gets 1"
                )
                return 1
        raise CaptureError(
            f"the code reads the value of a tensor ({tensor.dtype}) and goes on by it, "
            "but a capture has no values",
            where=where,
            hint="Keep what depends on it on the device (torch.where, a mask), "
            "or pass the number in from outside",
        )

    def are_equal(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        """`torch.equal`: a truth like others."""
        if a.shape != b.shape:
            return False
        self._note(f"{current_line()}: two tensors are compared; they are taken to be equal")
        return True

    def _truth(self, tensor: torch.Tensor, about: facts.Facts) -> bool:
        if id(tensor) in self._bad_news:
            return False
        if about.share is not None:
            return about.share > 0.5
        frame = current_frame()
        to_go_on = None if frame is None else truth_to_go_on(frame.f_code, frame.f_lineno)
        return True if to_go_on is None else to_go_on
