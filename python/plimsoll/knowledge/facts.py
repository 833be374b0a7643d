"""What is known of the values of fake tensors: of masks how much is true, of indices how far they
go, and of a few small ones everything.

Nothing of this is guessed: an index that `topk` gives is below the length of what it looks
through, and as many of a one-hot code are one as there are codes. What is assumed is that every
index comes up equally often.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, Callable, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

_aten = torch.ops.aten
#: Values are kept of tensors of up to so many elements,
SMALL = 1 << 12
#: and of whole numbers and truths, which lengths and masks are made of, of so many: as many as the
#: host's own tensors may have (recorder.py), lest one batch size is known and the other is not.
_WHOLE = 1 << 20
#: What follows from a stated routing: a code of 64 experts for each of 8 choices of 32,768 tokens.
ROUTED = 1 << 24


class Facts(NamedTuple):
    #: Of a mask: the share that is true.
    share: float | None = None
    #: Of indices: all are smaller than this, and none than `least`.
    below: int | None = None
    least: int = 0
    #: All there is to know.
    values: torch.Tensor | None = None
    #: Random numbers from 0 to 1.
    uniform: bool = False
    #: The values follow from choices as the user says that they come out (routing.py).
    routed: bool = False
    #: An element is 0, or false: part of it is data of the host in which one is.
    has_zero: bool = False

    @property
    def choices(self) -> int | None:
        """How many indices there can be."""
        return None if self.below is None else max(self.below - self.least, 1)


NO_FACTS = Facts()
_KEY = "_plimsoll_facts"


def facts_of(tensor: Any) -> Facts:
    if isinstance(tensor, FakeTensor):
        found: tuple[Facts, int] | None = tensor.__dict__.get(_KEY)
        # Autograd counts what is written into a tensor, through whichever view.
        if found is not None and found[1] == tensor._version:
            return found[0]
    return NO_FACTS


def set_facts(tensor: torch.Tensor, facts: Facts, writes: int = 0) -> None:
    """`writes`: 1 while an operator writes into it, which is counted when that is over."""
    tensor.__dict__[_KEY] = facts, tensor._version + writes


def set_data(fake: torch.Tensor, real: torch.Tensor) -> None:
    """What a script has on the host, on its way to the device."""
    if not real.is_floating_point() and not real.is_complex() and real.numel() <= _WHOLE:
        set_facts(fake, Facts(values=real))


def follow(
    func: Any, args: Any, kwargs: dict[str, Any], result: Any, counts: bool = False
) -> bool:
    """After an operator has run: what is known of its result. `counts`: what counts up is kept, to
    compare choices with. False if there was more to know of routed values than is kept."""
    rule = _RULES.get(func.overloadpacket)
    if rule is None and func.is_view and args and facts_of(args[0]) is not NO_FACTS:
        rule = _same
    if rule is not None:
        rule(func, args, kwargs, result)
        if counts and func.overloadpacket is _aten.arange:
            _keep_count(args, result)
    found = _recomputed(func, args, kwargs)
    if found is None:
        _keep_zero(func, args, result)
        return True
    values, routed = found
    made = result if isinstance(result, (list, tuple)) else [result]
    all_kept = True
    for tensor, one in zip(made, values):
        if not isinstance(tensor, FakeTensor) or not isinstance(one, torch.Tensor):
            continue
        if _is_small(one, routed):
            set_facts(tensor, facts_of(tensor)._replace(values=one, routed=routed))
        elif routed:
            all_kept = False
    return all_kept


def _keep_zero(func: Any, args: Any, result: Any) -> None:
    """Where all elements stay: a mask of which a part has padding is not true everywhere."""
    if not args or not isinstance(result, FakeTensor):
        return
    parts = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
    stays = func.overloadpacket in _WHOLE_COPIES or func.is_view
    if stays and any(_has_zero(facts_of(part)) for part in parts):
        if result.numel() >= sum(part.numel() for part in parts):
            set_facts(result, facts_of(result)._replace(has_zero=True))


def _has_zero(about: Facts) -> bool:
    if about.values is None:
        return about.has_zero
    with no_dispatch():
        return not bool(about.values.all())


def _is_small(tensor: torch.Tensor, routed: bool) -> bool:
    return tensor.numel() <= (
        ROUTED if routed else SMALL if tensor.is_floating_point() else _WHOLE
    )


def _keep_count(args: Any, result: Any) -> None:
    about = facts_of(result)
    if about.below is not None and result.numel() <= SMALL and not result.is_floating_point():
        with no_dispatch():
            set_facts(result, about._replace(values=torch.arange(*args, dtype=result.dtype)))


class _Unknown(Exception):
    """Something that goes in is not known."""


def _recomputed(
    func: Any, args: Any, kwargs: dict[str, Any]
) -> tuple[list[Any] | tuple[Any, ...], bool] | None:
    """The results for real, where everything that goes in is known; and whether some is routed."""
    if func._schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags:
        return None
    if args and isinstance(args[0], torch.Tensor) and facts_of(args[0]).values is None:
        return None  # as of nearly all
    found = 0
    routed = False

    def real(value: Any) -> Any:
        nonlocal found, routed
        if isinstance(value, torch.Tensor):
            about = facts_of(value)
            if about.values is None:
                raise _Unknown
            found += 1
            routed = routed or about.routed
            return about.values
        return [real(one) for one in value] if isinstance(value, (list, tuple)) else value

    # What cannot be done on the host stays unknown: not every view of the device is one of its
    # strides as well.
    with contextlib.suppress(Exception):
        given = [real(arg) for arg in args]
        settings = {key: real(value) for key, value in kwargs.items() if key != "device"}
        if found:
            with no_dispatch():
                made = func(*given, **settings)
            return (made if isinstance(made, (list, tuple)) else [made]), routed
    return None


Rule = Callable[[Any, Any, "dict[str, Any]", Any], None]


def _same(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    """Some of the same values, in another order or type."""
    given = args[0] if not isinstance(args[0], (list, tuple)) else None
    parts = [facts_of(part) for part in args[0]] if given is None else [facts_of(given)]
    if not parts or NO_FACTS in parts:
        return
    shares = [part.share for part in parts if part.share is not None]
    limits = [part.below for part in parts if part.below is not None]
    found = Facts(
        sum(shares) / len(parts) if len(shares) == len(parts) else None,
        max(limits) if len(limits) == len(parts) else None,
        min(part.least for part in parts),
        None,
        all(part.uniform for part in parts),
    )
    made = result if isinstance(result, (list, tuple)) else [result]
    for tensor in made:
        if isinstance(tensor, FakeTensor):
            set_facts(tensor, found)


def _dim(args: Any, kwargs: dict[str, Any], place: int, default: Any) -> Any:
    return kwargs.get("dim", args[place] if len(args) > place else default)


def _places(place: int, default: Any, which: int | None) -> Rule:
    """Results that are places along a dimension."""

    def rule(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        stable = getattr(func, "_overloadname", "") == "stable"  # a word comes before the dimension
        dim = _dim(args, kwargs, place + stable, default)
        if isinstance(dim, bool) or not isinstance(dim, (int, type(None))):
            return
        found = result if which is None else result[which] if isinstance(result, tuple) else None
        shape = args[0].shape
        if isinstance(found, FakeTensor) and len(shape):
            set_facts(found, Facts(below=args[0].numel() if dim is None else shape[dim]))

    return rule


def _filled(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    value = args[1] if len(args) > 1 else kwargs.get("fill_value")
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        set_facts(result, Facts(below=value + 1, least=value))


def _counted(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    numbers = [arg for arg in args if isinstance(arg, (int, float))]
    if isinstance(result, FakeTensor) and len(numbers) == len(args) <= 2:
        set_facts(result, Facts(below=max(math.ceil(numbers[-1]), 1)))


def _clamped(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    given = dict(zip(("min", "max"), args[1:]), **kwargs)
    least, most = given.get("min"), given.get("max")
    if isinstance(least, (int, float)) and isinstance(most, (int, float)):
        set_facts(result, Facts(below=math.floor(most) + 1, least=math.floor(least)))


def _shifted(sign: int) -> Rule:
    def rule(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        about, by = facts_of(args[0]), args[1]
        if about.below is not None and isinstance(by, int) and not kwargs:
            by *= sign
            set_facts(result, Facts(below=about.below + by, least=about.least + by))

    return rule


def _random(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    set_facts(result, Facts(uniform=True))


def _compared(equal: bool) -> Rule:
    def rule(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        a, b = args[0], args[1]
        choices = [each.choices for each in (facts_of(a), facts_of(b)) if each.choices]
        if a.is_floating_point():
            return
        share = facts_of(a).share
        if share is not None and b == 0 and not choices and a.dtype is not torch.bool:
            set_facts(result, Facts(share=1 - share if equal else share))
        if not choices:
            return
        least, below = facts_of(a).least, facts_of(a).below
        outside = isinstance(b, int) and below is not None and not least <= b < below
        # A one-hot code may have room for more than there are.
        share = 0.0 if outside else 1 / min(choices)
        set_facts(result, Facts(share=share if equal else 1 - share))

    return rule


def _beside(smaller: bool) -> Rule:
    """`torch.rand_like(x) < 0.15`"""

    def rule(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        if facts_of(args[0]).uniform and isinstance(args[1], (int, float)):
            share = min(max(float(args[1]), 0.0), 1.0)
            set_facts(result, Facts(share=share if smaller else 1 - share))

    return rule


def _not(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    share = facts_of(args[0]).share
    if share is not None:
        set_facts(result, Facts(share=1 - share))


def _and(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    shares = [facts_of(arg).share for arg in args[:2]]
    found = [share for share in shares if share is not None]
    if found:  # of the other one all may be true
        set_facts(result, Facts(share=math.prod(found)), _writes(func))


def _or(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    a, b = (facts_of(arg).share for arg in args[:2])
    if a is not None and b is not None:
        set_facts(result, Facts(share=min(a + b, 1.0)), _writes(func))


def _writes(func: Any) -> int:
    return 1 if func._schema.is_mutable else 0


def _times(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    """Flags that are numbers: those stay which are in both."""
    if isinstance(result, FakeTensor) and not result.is_floating_point():
        if all(facts_of(arg).share is not None for arg in args[:2]):
            _and(func, args, kwargs, result)


def _largest(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    if isinstance(result, FakeTensor):  # of all: whether a flag is left
        if not result.is_floating_point():
            _for_all(func, args, kwargs, result)
    else:
        _places(1, "all", 1)(func, args, kwargs, result)


def _for_all(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    """How likely all of them are true, or any."""
    if facts_of(args[0]).has_zero and func is _aten.all.default:
        return set_facts(result, Facts(share=0.0))
    share = facts_of(args[0]).share
    if share is None or not isinstance(result, FakeTensor):
        return
    many = args[0].numel() // max(result.numel(), 1)
    if func.overloadpacket is _aten.all:
        set_facts(result, Facts(share=share**many))
    else:
        set_facts(result, Facts(share=min(share * many, 1.0)))


def _total(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    """`mask.sum() == mask.numel()`"""
    if args[0].dtype is torch.bool and facts_of(args[0]).has_zero and result.numel() == 1:
        set_facts(result, Facts(below=args[0].numel()))


def _constant(share: float) -> Rule:
    def rule(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        whole = isinstance(result, FakeTensor) and not result.is_floating_point()
        if whole and not result.is_complex() and facts_of(result).values is None:
            set_facts(result, Facts(share=share))

    return rule


def _put(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    """`mask[chosen] = 1`: index_put_(self, indices, values), from torch 2.15 on also
    index_fill_(self, dim, index, value)."""
    mask = args[0]
    share = facts_of(mask).share
    indices = args[1] if isinstance(args[1], (list, tuple)) else [args[2]]
    if share is None or not mask.dim() == len(indices) == 1 or not mask.numel():
        return
    if indices[0].dtype is torch.int64:
        share += indices[0].numel() / mask.numel()
        set_facts(mask, Facts(share=min(share, 1.0)), writes=1)


_WHOLE_COPIES = {_aten.cat, _aten.stack, _aten._to_copy, _aten.clone, _aten.repeat}
_KEEPING = (
    "_to_copy", "clone", "contiguous", "index_select", "gather", "cat", "stack", "index", "repeat",
)  # fmt: skip
_RULES: dict[Any, Rule] = {
    **{getattr(_aten, name): _same for name in _KEEPING},
    _aten.topk: _places(2, -1, 1),
    _aten.sort: _places(1, -1, 1),
    _aten.max: _largest,
    _aten.min: _places(1, "all", 1),
    _aten.argmax: _places(1, None, None),
    _aten.argmin: _places(1, None, None),
    _aten.argsort: _places(1, -1, None),
    _aten.multinomial: lambda f, args, k, result: set_facts(result, Facts(below=args[0].shape[-1])),
    _aten.full: _filled,
    _aten.full_like: _filled,
    _aten.arange: _counted,
    _aten.randperm: _counted,
    _aten.rand: _random,
    _aten.rand_like: _random,
    _aten.clamp: _clamped,
    _aten.add: _shifted(1),
    _aten.sub: _shifted(-1),
    _aten.eq: _compared(True),
    _aten.ne: _compared(False),
    _aten.lt: _beside(True),
    _aten.le: _beside(True),
    _aten.gt: _beside(False),
    _aten.ge: _beside(False),
    _aten.bitwise_not: _not,
    _aten.logical_not: _not,
    _aten.bitwise_and: _and,
    _aten.logical_and: _and,
    _aten.bitwise_and_: _and,
    _aten.logical_and_: _and,
    _aten.bitwise_or_: _or,
    _aten.logical_or_: _or,
    _aten.mul: _times,
    _aten.mul_: _times,
    _aten.bitwise_or: _or,
    _aten.logical_or: _or,
    _aten.all: _for_all,
    _aten.sum: _total,
    _aten.any: _for_all,
    _aten.zeros: _constant(0.0),
    _aten.zeros_like: _constant(0.0),
    _aten.ones: _constant(1.0),
    _aten.ones_like: _constant(1.0),
    _aten.index_put_: _put,
    _aten.index_fill_: _put,
}
