"""Another optimizer for the same parameters, with the settings that the user chose."""

from __future__ import annotations

import importlib
import inspect
import types
from typing import Any

import torch
from torch.optim import Optimizer

from ..base.errors import PlanError
from .host_optimizer import HostOptimizer
from .used_up import guard

#: By the names that the program has for them: the class, and settings that make it that one.
_CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("torch.optim.SGD", {"momentum": 0}),
    "sgd_momentum": ("torch.optim.SGD", {}),
    "adam": ("torch.optim.Adam", {}),
    "adam_amsgrad": ("torch.optim.Adam", {"amsgrad": True}),
    "adamw": ("torch.optim.AdamW", {}),
    "nadam": ("torch.optim.NAdam", {}),
    "radam": ("torch.optim.RAdam", {}),
    "adamax": ("torch.optim.Adamax", {}),
    "rmsprop": ("torch.optim.RMSprop", {}),
    "adagrad": ("torch.optim.Adagrad", {}),
    "adadelta": ("torch.optim.Adadelta", {}),
    "adafactor": ("torch.optim.Adafactor", {}),
    "adam8bit": ("bitsandbytes.optim.Adam8bit", {}),
    "adamw8bit": ("bitsandbytes.optim.AdamW8bit", {}),
}
_FORMS: dict[str, dict[str, Any]] = {
    "fused": {"fused": True, "foreach": None},
    "foreach": {"fused": None, "foreach": True},
    "for": {"fused": None, "foreach": False},
    "": {},
}
#: Momentum of SGD where the user's optimizer has none.
_MOMENTUM = 0.9


class Unavailable(Exception):
    """This optimizer cannot be made here: why."""


def remade_as(kind: str, form: str, given: Optimizer) -> Optimizer:
    """`kind` is "adamw", "sgd" or the like, `form` "fused", "host" or nothing. What the new class
    has a setting for is kept."""
    if form == "host":
        return HostOptimizer(remade_as(kind, "", given))
    if kind not in _CLASSES or form not in _FORMS:
        raise Unavailable("it is not known here")
    made = _class(_CLASSES[kind][0])
    accepted = inspect.signature(made.__init__).parameters
    forms = {key: value for key, value in _FORMS[form].items() if key in accepted}
    if any(_FORMS[form].values()) and not any(forms.values()):
        raise Unavailable(f"{made.__name__} has no such form")
    own = {**_changed(kind, form, given, made), **forms}
    groups = [
        {"params": group["params"], **_kept(group, accepted), **own} for group in given.param_groups
    ]
    try:
        return made(groups, **{**_kept(given.defaults, accepted), **own})
    except (RuntimeError, TypeError, ValueError) as error:
        raise Unavailable(str(error)) from error


def _class(path: str) -> type[Optimizer]:
    module, _, name = path.rpartition(".")
    try:
        made: type[Optimizer] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Unavailable(f"there is no {path} here ({error})") from error
    return made


def refuse_state(given: Optimizer) -> None:
    if given.state:
        raise PlanError(
            "the optimizer has state already, which another one cannot take over",
            hint="Apply the plan before the first step, or leave this lever alone",
        )


def _kept(settings: dict[str, Any], accepted: Any) -> dict[str, Any]:
    """What the new class has too, of the same kind: Adafactor's `eps` is a pair, Adam's is not."""
    found = {}
    for key, value in settings.items():
        if key in ("params", "fused", "foreach") or key not in accepted:
            continue
        default = accepted[key].default
        if isinstance(value, (tuple, list)) == isinstance(default, (tuple, list)):
            found[key] = value
    return found


def _changed(kind: str, form: str, given: Optimizer, made: type[Optimizer]) -> dict[str, Any]:
    if form and isinstance(given, made):
        return {}  # the form is all that is asked for
    if kind == "sgd_momentum" and not given.defaults.get("momentum"):
        return {"momentum": _MOMENTUM}
    return _CLASSES[kind][1]


def in_backward(given: Optimizer) -> Optimizer:
    """Each parameter is stepped as soon as its gradient is whole, and the gradient let go. What is
    given back is for schedulers and checkpoints: its `step` and `zero_grad` do nothing more."""
    loop = _Loop()
    for group in given.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                _step_when_ready(given, group, parameter, loop)
                guard([parameter])

    def step(self: Optimizer, closure: Any = None) -> None:
        loop.steps()

    given.step = types.MethodType(step, given)  # type: ignore[method-assign]
    return given


class _Loop:
    """Which parameters a backward has stepped since the loop last called `step`, by id."""

    def __init__(self) -> None:
        self._stepped: set[int] = set()

    def steps(self) -> None:
        self._stepped.clear()

    def is_ready(self, parameter: torch.Tensor) -> None:
        if id(parameter) in self._stepped:
            raise PlanError(
                "a second backward before optimizer.step(): an optimizer in the backward cannot "
                "wait for gradients that this loop accumulates",
                hint="Apply a configuration without it; a loop that does not accumulate keeps its "
                "optimizer.step()",
            )
        self._stepped.add(id(parameter))


def _step_when_ready(
    given: Optimizer, group: dict[str, Any], parameter: torch.nn.Parameter, loop: _Loop
) -> None:
    accepted = inspect.signature(type(given).__init__).parameters
    settings = {key: value for key, value in given.defaults.items() if key in accepted}
    own = type(given)([{**group, "params": [parameter]}], **settings)
    # One state for all, so that the whole optimizer can be saved.
    own.state = given.state

    def ready(parameter: torch.Tensor) -> None:
        loop.is_ready(parameter)
        for key, value in group.items():
            if key != "params":
                own.param_groups[0][key] = value  # a scheduler may have changed it
        own.step()
        parameter.grad = None

    parameter.register_post_accumulate_grad_hook(ready)
