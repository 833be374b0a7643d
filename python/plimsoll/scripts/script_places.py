"""Finds the models of a script, and tells of them before their first forward."""

from __future__ import annotations

import gc
from typing import Callable

from torch import nn

from ..base.places import Places
from ..events.recorder import on_device


class ScriptPlaces(Places):
    """A model is what is called outside any other module, and has parameters."""

    def __init__(self) -> None:
        super().__init__()
        self._at_model: list[Callable[[nn.Module], None]] = []
        self._found = False

    def call_at_model(self, function: Callable[[nn.Module], None]) -> None:
        """`function` is called with each model, before its first forward: in the order in which
        functions were given."""
        self._at_model.append(function)

    def before_region(self) -> None:
        if not self._found:
            for module in _models():
                self.before_module(module)

    def before_module(self, module: nn.Module) -> None:
        if not self.in_model() and not self.knows(module) and _has_tensors(module):
            self._found = True
            for function in self._at_model:
                function(module)


def _has_tensors(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _models() -> list[nn.Module]:
    """Those with parameters on the device that are in no other."""
    found = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    found = [one for one in found if any(on_device(p) for p in one.parameters())]
    inner = {id(part) for one in found for part in one.modules() if part is not one}
    return [one for one in found if id(one) not in inner]
