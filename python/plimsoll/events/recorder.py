"""Writes down every operator on the device, with what it got and made, and when each storage dies.
"""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from ..base.lists import GivenLists
from ..base.pieces import Name, Pieces
from ..base.places import Places
from ..knowledge.values import Values
from .attention_calls import attention_call
from .casts import Casts
from .counted import Counted
from .event import (
    NEEDS_GRAD,
    PARAMETER,
    VIEW,
    Buffer,
    Call,
    Event,
    Free,
    Label,
    Layout,
    NewStorage,
    Parameter,
    Phase,
    Recorded,
    StepBegin,
    Tensor,
)
from .gradient_uses import GradientUses
from .remembered import Remembered
from .variables import Variables

# Tensors of the host up to this many elements are kept real: step counters, drop rates and class
# weights are read by the code that makes them. Anything larger is fake, and costs nothing.
_SMALL = 1 << 12
_SMALL_INPUT = 1 << 20

#: What operators make depends on nothing of a run.
_remembered = Remembered()

_aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_OF_BCE = {_aten.sub.Tensor: "aten.sub_.Tensor", _aten.mul.Tensor: "aten.mul_.Tensor"}
_IN_PLACE = {
    _aten.scatter.src: "aten.scatter_.src",
    _aten.scatter_add.default: "aten.scatter_add_.default",
    _aten.index_add.default: "aten.index_add_.default",
    _aten.index_put.default: "aten._index_put_impl_.default",
    **_OF_BCE,
}


class _Watch(weakref.ref):  # type: ignore[type-arg]
    """Tells when a storage dies. Kept by its address until then."""

    __slots__ = ("number", "address")
    number: int
    address: int


@functools.cache
def _is_made_of_others(kind: type) -> bool:
    """A tensor without memory of its own: torchao's of 8 bits is one such, of these and a scale."""
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


class Recorder(TorchDispatchMode):
    """One run of a job. Sits above a FakeTensorMode, which does the work."""

    #: A function without tensors that makes at most so many elements on the host really does.
    small = _SMALL

    def __init__(self, places: Places | None, values: Values) -> None:
        super().__init__()
        self.events: list[Event] = []
        self._casts = Casts(self.events)
        self._variables = Variables(self.number)
        self.layouts: list[Layout] = []
        self._layout_index: dict[Any, int] = {}
        self._live: dict[int, _Watch] = {}
        self._holders: dict[int, int] = {}
        self._labelled: set[tuple[str, int]] = set()
        self._made = 0
        self._quiet = places is None
        self._places = places
        self._values = values
        self._phase: str | None = None
        self._frees = 0
        #: By storage: when it was last copied to the host, which is no event.
        self.host_reads: dict[int, int] = {}
        self.gradient_uses = GradientUses()
        self.counted = Counted()
        #: Called before each operator that is told.
        self.before_operator: Callable[[], None] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # being fenced off from a compiler costs a tenth; most jobs have none

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # else what runs under this is not compiled

    # What the loop tells.

    def step(self) -> None:
        self.events.append(StepBegin())

    def phase(self, name: str) -> None:
        if name != self._phase:
            self._phase = name
            self.events.append(Phase(name))

    def turn_into(self, name: str) -> None:
        """The phase that has just begun is another one."""
        for event in reversed(self.events):
            if isinstance(event, Phase):
                event.name = self._phase = name
            if not isinstance(event, Free):
                return

    def model_tensor(self, kind: str, name: str, tensor: torch.Tensor, piece: int = 0) -> None:
        """A parameter or a buffer that is on the device from the start. `piece`: of parameters that
        lie in one piece of memory."""
        if not self.number(tensor):  # else it is tied to one that was told before
            self._watch(tensor)
            told = self.as_model_tensor(kind, name, tensor)
            if isinstance(told, Parameter):
                told.piece = piece
            self.events.append(told)

    def as_model_tensor(self, kind: str, name: str, tensor: torch.Tensor) -> Parameter | Buffer:
        number, layout = self.number(tensor), self._layout(tensor)
        if kind == "parameter":
            return Parameter(number, layout, name, tensor.requires_grad, 0)
        return Buffer(number, layout, name)

    def gradients(self, tensors: Iterable[torch.Tensor]) -> None:
        """Those that a backward leaves."""
        tensors = list(tensors)
        self.gradient_uses.completed(filter(None, map(self.number, tensors)))
        self.label("gradient", tensors)

    def label(self, category: str, tensors: Iterable[torch.Tensor]) -> None:
        numbers = []
        for tensor in tensors:
            number = self.number(tensor)
            if number and (category, number) not in self._labelled:
                self._labelled.add((category, number))
                numbers.append(number)
        if numbers:
            self.events.append(Label(category, numbers))

    def call(
        self, op: str, args: list[Any], kwargs: dict[str, Any], results: list[torch.Tensor]
    ) -> None:
        """One operator that has run."""
        assert self._places is not None
        place = self._places.current()
        given = [self._value(arg) for arg in args]
        named = {key: self._value(arg) for key, arg in kwargs.items()}
        made = [
            NewStorage(self._watch(result), result.untyped_storage().nbytes(), index)
            for index, result in enumerate(results)
            if self._is_new(result)
        ]
        described = [self._tensor(result) for result in results]
        self._casts.before(given)
        told = Call(op, place, given, named, described, made)
        self.events.append(told)
        self._casts.after()
        self._variables.called(told)

    @property
    def lists(self) -> GivenLists:
        """That modules were given."""
        assert self._places is not None
        return self._places.lists.found

    @property
    def recorded(self) -> Recorded:
        return Recorded(self.events, self.layouts)

    def finish(self) -> None:
        """Nothing that dies from here on is told."""
        self._live.clear()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """What runs inside is part of something that is told as a whole, or not part of the job."""
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before

    # What torch tells.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Autocast asks this of all that it is given: two of three calls that come here.
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if any(map(_is_made_of_others, types)):
            return NotImplemented  # what it does with them comes here next
        kwargs = kwargs or {}
        if self.gradient_uses.are_possible:
            self.gradient_uses.see(func, map(self.number, _tensors(args, kwargs)))
        if self.before_operator is not None and not self._quiet:
            self.before_operator()
        if kwargs.get("pin_memory"):  # pinning asks for a device
            kwargs = {**kwargs, "pin_memory": False}
        if func is torch.ops.aten._local_scalar_dense.default:
            self._read_by_host(args)
            return self._values.read(args[0], self._places)
        if self._runs_for_real(func, args, kwargs):
            with no_dispatch():
                result = func(*args, **kwargs)
            self._ran_for_real(result)
            return result
        if func is _aten.equal.default:
            self._read_by_host(args)
            return self._values.are_equal(*args)
        name = None
        selected = self._values.select(func, args, kwargs, self._places)
        if selected is not None:
            name, args, result = selected
        else:
            args, kwargs, result = _run(func, args, kwargs, self._values)
            self._values.follow(func, args, kwargs, result)
            if self._places is not None:
                self.counted.see(func, args, result, self._places)
        if not self._quiet:
            self._see(func, args, kwargs, result, name)
        elif self._places is not None:
            self._places.current()
        return result

    def _see(
        self, func: Any, args: Any, kwargs: dict[str, Any], result: Any, name: str | None
    ) -> None:
        results = [leaf for leaf in _leaves(result) if isinstance(leaf, torch.Tensor)]
        fresh = any(self._is_new(leaf) for leaf in results)
        if not fresh and (not func._schema.is_mutable or torch.Tag.inplace_view in func.tags):
            self._places.current()  # type: ignore[union-attr]  # for the node that a view makes
            if results and not on_device(results[0]):
                self._read_by_host(args)
            return  # a view: the same memory under another name
        if not fresh and not any(on_device(leaf) for leaf in _tensors(args, kwargs)):
            return
        attention = attention_call(func, args, kwargs, result)
        if attention is not None:
            return self.call(*attention)
        in_place = self._in_place_name(func, args)
        if in_place is not None:
            self._watch(results[0], self.number(args[0]))
        self.call(in_place or name or str(func), list(args), kwargs, results)

    def _ran_for_real(self, result: Any) -> None:
        """On the host."""

    def _read_by_host(self, args: Any) -> None:
        for tensor in _tensors(args, {}):
            self.host_reads[self.number(tensor)] = self.position

    def _in_place_name(self, func: Any, args: Any) -> str | None:
        """Torch's formulas for gradients write into what they just made, except where they see
        tensors like ours. Told is what a GPU does."""
        name = _IN_PLACE.get(func)
        last = self.events[-1] if self.events else None
        if name is None or not isinstance(last, Call):
            return None
        node = torch._C._current_autograd_node()
        if node is None or not isinstance(args[0], FakeTensor):
            return None
        if func in _OF_BCE and node.name() != "BinaryCrossEntropyWithLogitsBackward0":
            return None
        made = [result.storage for result in last.results]
        return name if made == [self.number(args[0])] else None

    def _runs_for_real(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether this is arithmetic of the host on tensors small enough to have."""
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != "cpu":
            return False
        largest = -1
        for tensor in _tensors(args, kwargs):
            if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu":
                return False
            largest = max(largest, tensor.numel())
        if largest >= 0:
            return largest <= _SMALL_INPUT or func.is_view
        return _factory_size(args) <= self.small

    # Storages and layouts.

    @property
    def position(self) -> int:
        """Events so far, other than frees."""
        return len(self.events) - self._frees

    def has(self, dtype: str) -> bool:
        """Whether something of this type has been on the device."""
        return any(layout.dtype == dtype for layout in self.layouts)

    def number(self, tensor: torch.Tensor) -> int:
        """Of the storage that this lies in; 0 if it was not seen before, or is not on the device,
        or has no bytes."""
        watch = self._live.get(tensor.untyped_storage()._cdata)
        return watch.number if watch is not None else 0

    def new_number(self) -> int:
        """For a storage that no tensor here has."""
        self._made += 1
        return self._made

    def alive(self) -> set[int]:
        """The numbers of the storages that are there."""
        return {watch.number for watch in self._live.values()}

    def _is_new(self, tensor: torch.Tensor) -> bool:
        """Whether this is memory of the device that was not seen before."""
        if not on_device(tensor):
            return False
        storage = tensor.untyped_storage()
        return storage._cdata not in self._live and storage.nbytes() > 0

    def _watch(self, tensor: torch.Tensor, number: int | None = None) -> int:
        """Gives a storage its number: a new one, or that of the memory that it stands for."""
        storage = tensor.untyped_storage()
        if number is None:
            number = self.new_number()
        watch = _Watch(storage, self._freed)
        watch.number = number
        watch.address = storage._cdata
        self._live[watch.address] = watch
        self._holders[number] = self._holders.get(number, 0) + 1
        return number

    def _freed(self, watch: _Watch) -> None:
        if self._live.get(watch.address) is not watch:
            return
        del self._live[watch.address]
        self._holders[watch.number] -= 1
        if not self._holders[watch.number]:
            del self._holders[watch.number]
            self._variables.died(watch.number)
            self.gradient_uses.freed(watch.number)
            self.events.append(Free(watch.number))
            self._frees += 1

    def _layout(self, tensor: torch.Tensor) -> int:
        key = (tensor.dtype, tensor.shape, tensor.stride())
        index = self._layout_index.get(key)
        if index is None:
            index = self._layout_index[key] = len(self.layouts)
            self.layouts.append(Layout(str(key[0])[6:], tuple(key[1]), key[2]))
        return index

    def _tensor(self, tensor: torch.Tensor) -> Tensor:
        flags = (
            (VIEW if tensor._is_view() else 0)
            | (PARAMETER if getattr(tensor, "_is_param", False) else 0)
            | (NEEDS_GRAD if tensor.requires_grad else 0)
        )
        return Tensor(self.number(tensor), self._layout(tensor), flags)

    def described(self, tensor: torch.Tensor | None) -> Tensor | None:
        """What a later call says of a tensor that nothing keeps until then: all but its storage."""
        return None if tensor is None else self._tensor(tensor)._replace(storage=0)

    def _value(self, value: Any) -> Any:
        if isinstance(value, (Tensor, Pieces, Name)):
            return value
        if isinstance(value, torch.Tensor):
            if self._is_new(value):
                self._given(value)
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return [self._value(element) for element in value]
        if value is None or isinstance(value, (bool, int)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        text = str(value)
        return text[6:] if isinstance(value, torch.dtype) else text

    def _given(self, tensor: torch.Tensor) -> None:
        """A tensor that was on the device before the job began: a table that it only reads."""
        self.events.append(Buffer(self._watch(tensor), self._layout(tensor), "given"))


def _run(
    func: Any, args: Any, kwargs: dict[str, Any], values: Values
) -> tuple[Any, dict[str, Any], Any]:
    """Among fake tensors: with what was given as it was used, and with the result."""
    if any(not isinstance(tensor, FakeTensor) for tensor in _tensors(args, kwargs)):
        args = _faked(args, values)
        kwargs = {key: _faked(value, values) for key, value in kwargs.items()}
    # Fused optimizers write into what they are given; torch cannot run each without data.
    fused = func.__name__.startswith("_fused_") and not func._schema.returns
    return args, kwargs, None if fused else _remembered.run(func, args, kwargs)


def on_device(tensor: torch.Tensor) -> bool:
    # FakeTensor.device is a Python property; its field is several times as fast.
    device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
    return bool(device.type == "cuda")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for element in value:
            yield from _leaves(element)
    else:
        yield value


def _tensors(args: Any, kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for element in value:
                if isinstance(element, torch.Tensor):
                    yield element


def _faked(value: Any, values: Values) -> Any:
    """With fake tensors in place of real ones. The mode below would make them itself, but keep the
    values of small ones and work on those, if need be on a real GPU."""
    if isinstance(value, (list, tuple)):
        return type(value)(_faked(element, values) for element in value)
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    mode = torch._guards.detect_fake_mode()
    assert mode is not None
    fake = mode.from_tensor(value)
    fake.constant = None
    values.come(fake, value)
    return fake


def _factory_size(args: Any) -> int:
    """Elements that a function without tensors makes, as far as its arguments tell: randint has its
    bounds before its sizes."""
    for arg in args:
        if isinstance(arg, (list, tuple)):
            return math.prod(int(size) for size in arg)
    return max((abs(int(arg)) for arg in args if isinstance(arg, (int, float))), default=0)
