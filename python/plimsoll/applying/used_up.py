"""Refuses what needs gradients that an optimizer inside the backward has used up: clipping and
gradient scalers would see none, and say nothing."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterable
from typing import Any, Callable

import torch
from torch.nn.utils import clip_grad
from torch.optim import Optimizer

from ..base.errors import PlanError

#: By id: the parameters that are stepped inside the backward.
_stepped: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()

#: What clip_grad_norm_ and clip_grad_value_ call once they have looked for gradients: also a loop
#: that imported them before is seen.
_CALLED_BY_CLIPPING = (
    "_get_total_norm",
    "_clip_grads_with_norm_",
    "_group_tensors_by_device_and_dtype",
)


def guard(parameters: Iterable[torch.Tensor]) -> None:
    """From now on whoever clips or unscales the gradients of these is refused."""
    _stepped.update({id(parameter): parameter for parameter in parameters})
    for name in _CALLED_BY_CLIPPING:
        if hasattr(clip_grad, name):
            _wrap(clip_grad, name, _check_clipping)
    _wrap(torch.amp.GradScaler, "_unscale_grads_", _check_scaler)


def _wrap(owner: Any, name: str, check: Callable[..., None]) -> None:
    function = getattr(owner, name)
    if hasattr(function, "is_guarded"):
        return

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        check(*args)
        return function(*args, **kwargs)

    guarded.is_guarded = True  # type: ignore[attr-defined]
    setattr(owner, name, guarded)


def _check_clipping(*args: Any) -> None:
    caller = sys._getframe(2)  # of what was wrapped
    if not caller.f_code.co_name.startswith("clip_grad"):
        return
    given = caller.f_locals.get("parameters")
    # A generator has been used up; torch does not take what it then finds.
    if not isinstance(given, (list, tuple)):
        given = [] if caller.f_locals.get("grads") else list(_stepped.values())
    refuse(given, f"{caller.f_code.co_name} sees no gradients")


def _check_scaler(scaler: Any, optimizer: Optimizer, *args: Any) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    refuse(parameters, "the gradient scaler sees no gradients")


def refuse(parameters: Iterable[Any], what: str) -> None:
    """Where one of these has been stepped."""
    if any(p.grad is None and _stepped.get(id(p)) is p for p in parameters):
        raise PlanError(
            f"{what}: the plan's optimizer has used them up in the backward",
            hint="Apply a configuration without an optimizer in the backward",
        )
