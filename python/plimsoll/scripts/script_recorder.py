"""The record of a script that is watched: beside the operators on the device, what comes there from
the host, and what is in the host's memory."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..base.places import Places
from ..events.event import Call
from ..events.host import HostMemory
from ..events.recorder import Recorder, on_device
from ..knowledge.values import Values
from ..world.draws import Draws
from .files import tensors_in


class _FromHost(NamedTuple):
    """A call that made memory out of nothing that was on the device: a batch, or a model."""

    event: int
    storages: list[int]


class ScriptRecorder(Recorder):
    """Tells when something comes from the host, and what is there."""

    # Data sets are looked into on the host: permutations, lengths, labels.
    small = 1 << 20

    def __init__(self, places: Places, values: Values) -> None:
        super().__init__(places, values)
        self.before_from_host: Callable[[], None] = lambda: None
        self.from_host: list[_FromHost] = []
        self.host = HostMemory()
        self.draws: Draws | None = None
        #: Called after each operator.
        self.on_call: Callable[[], None] = lambda: None

    def call(
        self, op: str, args: list[Any], kwargs: dict[str, Any], results: list[torch.Tensor]
    ) -> None:
        comes = self._comes_from_host(args, kwargs, results)
        if comes:
            self.before_from_host()
        super().call(op, args, kwargs, results)
        last = self.events[-1]
        if comes and isinstance(last, Call):
            made = [new.storage for new in last.made]
            self.from_host.append(_FromHost(len(self.events) - 1, made))
            if self._phase == "inputs":
                self.label("input", results)
        self.on_call()

    def _see(
        self, func: Any, args: Any, kwargs: dict[str, Any], result: Any, name: str | None
    ) -> None:
        super()._see(func, args, kwargs, result, name)
        for tensor in tensors_in(result):
            if not on_device(tensor):
                self.host.see(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self.draws is not None and isinstance(result, FakeTensor):
            self.draws.operator(func, args, kwargs or {}, result)
        if kwargs and _pins(func, args, kwargs):
            self.host.pin(result)
        elif func is torch.ops.aten._local_scalar_dense.default and on_device(args[0]):
            self.host.pinned.read(args[0].element_size())
        return result

    def _ran_for_real(self, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            self.host.see(result)

    def _comes_from_host(self, args: Any, kwargs: Any, results: list[torch.Tensor]) -> bool:
        assert self._places is not None
        if self._places.in_model() or torch._C._current_autograd_node() is not None:
            return False
        # A single number is a constant of some formula.
        if not any(result.numel() > 1 and self._is_new(result) for result in results):
            return False
        return not any(on_device(tensor) for tensor in tensors_in([args, kwargs]))

    def is_in(self, phase: str) -> bool:
        return self._phase == phase

    def _runs_for_real(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        # The order in which a loader takes a large data set.
        order = func.overloadpacket is torch.ops.aten.randperm
        return order or super()._runs_for_real(func, args, kwargs)


def _pins(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the result lies in pinned memory: it is asked for, or the host does not wait for what
    comes from the device."""
    if kwargs.get("pin_memory"):
        return kwargs.get("device") is None or _is_host(kwargs["device"])
    comes = func is torch.ops.aten._to_copy.default and kwargs.get("non_blocking")
    return bool(comes) and on_device(args[0]) and _is_host(kwargs.get("device"))


def _is_host(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cpu"
