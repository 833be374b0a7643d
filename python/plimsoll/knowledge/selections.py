"""Operators whose results have a size that only values tell, run at a size that is assumed.

As much as there can be is assumed, or, where indices are compared, that each comes up equally
often (facts.py); or what the user has stated (base/assumptions.py). A note says which. Where there
is no most, as in `repeat_interleave`, nothing can be assumed, and the user is told.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, NamedTuple

import torch
from torch.utils._mode_utils import no_dispatch

from ..base.assumptions import NOTHING_STATED, Assumptions
from ..base.errors import CaptureError
from ..base.notes import Note
from ..base.pieces import Pieces
from ..base.places import current_line
from .facts import SMALL, Facts, facts_of, set_facts

_aten = torch.ops.aten


class Selected(NamedTuple):
    """What was run in place of an operator."""

    #: As it is told.
    name: str
    args: list[Any]
    result: Any


class Assuming(NamedTuple):
    """How something is assumed, and who is told."""

    #: Takes what was assumed in one line of the code.
    note: Note
    #: Takes what holds wherever it was.
    note_stated: Note
    stated: Assumptions = NOTHING_STATED


def run_assumed(
    func: Any, args: Any, kwargs: dict[str, Any], how: Assuming, has_data: bool = False
) -> Selected | None:
    """Runs among fake tensors, unless the size of what it gives back is known without values.
    `has_data`: what the host has is the job's own, not made up."""
    if has_data and func is _aten._pack_padded_sequence.default and _is_real(args[1]):
        return _packed_by_length(str(func), args)
    if func is _aten.index.Tensor:
        if any(_is_mask(index) for index in args[1]):
            return Selected(str(func), list(args), _indexed(func, args, how))
        return None
    operator = _operator(func)
    return None if operator is None else operator(str(func), args, kwargs, how)


@functools.cache
def _operator(func: Any) -> _Operator | None:
    return _OPERATORS.get(str(func))


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


# How many.


def _count(mask: torch.Tensor, how: Assuming) -> int:
    """Of the elements of a mask that are true."""
    about = facts_of(mask)
    if about.values is not None:
        if about.routed:
            how.stated.note_routing(how.note_stated)
        with no_dispatch():
            return int(about.values.count_nonzero())
    share = about.share
    if share is None and how.stated.mask is not None:
        share = how.stated.mask
        how.stated.note_mask(how.note_stated)
    if share is None:
        _say(how, "how much is selected", "all, the most there can be")
        return mask.numel()
    _say(how, "how much is selected", _in_words(share))
    return math.ceil(mask.numel() * share - 1e-6)


def _in_words(share: float) -> str:
    if share in (0, 1):
        return "all" if share else "nothing"
    return f"one in {1 / share:.4g}"


_SELECTED = ": how much is selected depends on values; assumed: one in "


def selected_at(notes: list[str]) -> list[str]:
    """The lines at which an equal share of what there is was assumed to be selected."""
    return sorted({note.split(_SELECTED)[0] for note in notes if _SELECTED in note})


def _say(how: Assuming, what: str, assumed: str) -> None:
    how.note(f"{what} depends on values; assumed: {assumed}")


def _places(count: int, like: torch.Tensor) -> torch.Tensor:
    return torch.empty(count, dtype=torch.int64, device=like.device)


# One function for each operator.


def _nonzero(name: str, args: Any, kwargs: dict[str, Any], how: Assuming) -> Selected:
    (mask,) = args
    count, dims = _count(mask, how), mask.dim()
    # As a GPU makes it: one row for each dimension, turned.
    made = torch.empty_strided((count, dims), (1, count), dtype=torch.int64, device=mask.device)
    values, about = None, facts_of(mask)
    with no_dispatch():
        if about.routed and about.values is not None:
            values = about.values.nonzero()
        elif count == mask.numel() <= SMALL:
            values = torch.ones(tuple(mask.shape)).nonzero()
    below = max(mask.shape, default=1)
    set_facts(made, Facts(below=below, values=values, routed=about.routed))
    return Selected(name, list(args), made)


def _indexed(func: Any, args: Any, how: Assuming) -> torch.Tensor:
    """`x[mask]`"""
    places: list[Any] = []
    for index in args[1]:
        if _is_mask(index):
            count = _count(index, how)
            places += [_places(count, index) for _ in range(index.dim())]
        else:
            places.append(index)
    made: torch.Tensor = func(args[0], places)
    return made


def _masked_select(name: str, args: Any, kwargs: dict[str, Any], how: Assuming) -> Selected:
    """A GPU does `x[mask]`."""
    own, mask = torch.broadcast_tensors(args[0], args[1])
    about = facts_of(args[1])
    if about.routed and about.values is not None:
        set_facts(mask, about._replace(values=about.values.expand(mask.shape)))
    elif about.share is not None:
        set_facts(mask, about)
    made = own.new_empty(_count(mask, how))
    return Selected("aten.index.Tensor", [own, [mask]], made)


def _most_different(tensor: torch.Tensor, length: int, how: Assuming) -> int:
    choices = None if tensor.is_floating_point() else facts_of(tensor).choices
    if choices is not None and choices <= length:
        _say(how, "how many are different", f"all {choices} that there can be")
        return choices
    _say(how, "how many are different", "all")
    return length


def _unique(name: str, args: Any, kwargs: dict[str, Any], how: Assuming) -> Selected:
    tensor = args[0]
    by_dim = "dim" in name
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0) if by_dim else None
    if "consecutive" in name and not by_dim:
        dim = kwargs.get("dim", args[3] if len(args) > 3 else None)
    length = tensor.numel() if dim is None else tensor.shape[dim]
    count = _most_different(tensor, length, how)
    shape = [count] if dim is None else list(tensor.shape)
    if dim is not None:
        shape[dim] = count
    made = tensor.new_empty(shape)
    set_facts(made, facts_of(tensor)._replace(values=None))
    inverse = _places(length, tensor).view(tensor.shape if dim is None else [length])
    return Selected(name, list(args), (made, inverse, _places(count, tensor)))


def _bincount(name: str, args: Any, kwargs: dict[str, Any], how: Assuming) -> Selected:
    tensor = args[0]
    weights = kwargs.get("weights", args[1] if len(args) > 1 else None)
    length = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
    about = facts_of(tensor)
    if about.routed and about.values is not None and weights is None:
        return _counted_for_real(name, args, about.values, length, how)
    below = about.below
    if not length and below is None:
        raise _refused(
            "torch.bincount gives back as many as the largest value says",
            "Give it the number of bins: torch.bincount(x, minlength=...)",
        )
    bins = max(length, below or 0)
    _say(how, "what torch.bincount counts", f"as much in each of {bins} bins, and nothing beyond")
    dtype = torch.int64 if weights is None else torch.float64
    made = torch.empty(bins, dtype=dtype, device=tensor.device)
    if weights is None and bins <= SMALL:
        each, more = divmod(tensor.numel(), bins)
        with no_dispatch():
            set_facts(made, Facts(values=torch.tensor([each + (i < more) for i in range(bins)])))
    return Selected(name, list(args), made)


def _counted_for_real(
    name: str, args: Any, values: torch.Tensor, length: int, how: Assuming
) -> Selected:
    how.stated.note_routing(how.note_stated)
    with no_dispatch():
        counts = torch.bincount(values, minlength=length)
    made = torch.empty(counts.shape, dtype=counts.dtype, device=args[0].device)
    set_facts(made, Facts(values=counts, routed=True))
    return Selected(name, list(args), made)


def _repeat(name: str, args: Any, kwargs: dict[str, Any], how: Assuming) -> Selected:
    length = kwargs.get("output_size")
    if length is None:
        raise _refused(
            "repeat_interleave gives back as many as the values of `repeats` add up to",
            "Give the sum: repeat_interleave(..., output_size=...)",
        )
    return Selected(name, list(args), _places(length, args[0]))


def _refused(what: str, hint: str) -> CaptureError:
    return CaptureError(f"{what}, and a capture has no values", where=current_line(), hint=hint)


def _overlapping(name: str, args: Any, kwargs: dict[str, Any], how: Assuming) -> Selected:
    """torchvision's suppression of boxes that overlap: places of those that stay, best first."""
    boxes = args[0]
    _say(how, "how many boxes stay", "all, the most there can be")
    made = _places(boxes.shape[0], boxes)
    set_facts(made, Facts(below=max(boxes.shape[0], 1)))
    return Selected(name, list(args), made)


def _is_real(tensor: Any) -> bool:
    return type(tensor) is torch.Tensor


def _packed_by_length(name: str, args: Any) -> Selected:
    """As `_packed`, for lengths that are known."""
    padded, lengths, batch_first = args
    steps = padded.shape[1 if batch_first else 0]
    with no_dispatch():
        sizes = (lengths.unsqueeze(0) > torch.arange(steps).unsqueeze(1)).sum(1)
        sizes = sizes[sizes > 0]
        rows = int(lengths.sum())
        # Steps that the same sequences have are copied together, before all is put in one piece.
        _, together = torch.unique_consecutive(sizes, return_counts=True)
        alive = torch.unique_consecutive(sizes)
        pieces = Pieces((together * alive).tolist())
    made = padded.new_empty((rows, *padded.shape[2:]))
    return Selected(name, [*args, pieces], (made, sizes))


def _packed(name: str, args: Any, kwargs: dict[str, Any], how: Assuming) -> Selected:
    """_pack_padded_sequence(input, lengths, batch_first) -> data, how many have each step."""
    padded, lengths, batch_first = args
    batch, steps = padded.shape[:2] if batch_first else padded.shape[1::-1]
    with no_dispatch():
        known_to_be_full = _is_real(lengths) and bool((lengths == steps).all())
        sizes = torch.full((steps,), batch)
    if not known_to_be_full:
        _say(how, "the length of a sequence", "each is as long as the longest")
    made = padded.new_empty((batch * steps, *padded.shape[2:]))
    return Selected(name, list(args), (made, sizes))


def _grouped(name: str, args: Any, kwargs: dict[str, Any], how: Assuming) -> Selected | None:
    """_grouped_mm(self, mat2, offs, bias, out_dtype): one product for each group of rows, of sizes
    that values tell. Torch describes it for bfloat16 alone; a GPU takes other types too."""
    a, b = args[:2]
    if a.dtype is torch.bfloat16:
        return None
    if a.dim() == b.dim() == 2:
        groups: Any = kwargs.get("offs", args[2] if len(args) > 2 else None)
        shape = [groups.shape[0], a.shape[0], b.shape[1]]
    else:
        shape = [*(a.shape[:-1] if b.dim() == 3 else a.shape[1:-1]), b.shape[-1]]
    along = 16 // a.element_size()  # rows begin at multiples of 16 bytes
    row = -(-shape[-1] // along) * along
    strides = [row, 1] if len(shape) == 2 else [shape[1] * row, row, 1]
    made = torch.empty_strided(shape, strides, dtype=a.dtype, device=a.device)
    return Selected(name, list(args), made)


_Operator = Callable[[str, Any, "dict[str, Any]", Assuming], "Selected | None"]
_OPERATORS: dict[str, _Operator] = {
    "aten.nonzero.default": _nonzero,
    "aten.masked_select.default": _masked_select,
    "aten._unique2.default": _unique,
    "aten.unique_dim.default": _unique,
    "aten.unique_consecutive.default": _unique,
    "aten.bincount.default": _bincount,
    "aten.repeat_interleave.Tensor": _repeat,
    "aten._pack_padded_sequence.default": _packed,
    "aten._grouped_mm.default": _grouped,
    "torchvision.nms.default": _overlapping,
}
