"""The user's optimizers, made anew on the fake parameters."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from ..base.errors import CaptureError
from ..base.notes import Note
from ..base.patching import Patch, patched
from ..base.places import current_line
from ..events.recorder import Recorder
from ..world.device import gpu_is_here
from ..world.model import OnDevice

OptimizerSource = Any  # None | Optimizer | function of parameters | a list of those


def remade(source: OptimizerSource, target: OnDevice) -> list[Optimizer]:
    if source is None:
        return []
    if isinstance(source, (list, tuple)):
        return [optimizer for one in source for optimizer in remade(one, target)]
    if isinstance(source, Optimizer):
        return [_copied(source, target)]
    if callable(source):
        made = source(target.model.parameters())
        if isinstance(made, Optimizer):
            return [made]
        if isinstance(made, (list, tuple)) and all(isinstance(one, Optimizer) for one in made):
            return list(made)
    raise CaptureError(
        f"`optimizer` is {type(source).__name__} and gave no torch.optim.Optimizer",
        hint="Pass an optimizer of the model, a function of its parameters, or a list of those",
    )


def _copied(source: Optimizer, target: OnDevice) -> Optimizer:
    groups = [
        {**_settings(group), "params": [_counterpart(p, target) for p in group["params"]]}
        for group in source.param_groups
    ]
    accepted = inspect.signature(type(source).__init__).parameters
    defaults = {key: value for key, value in source.defaults.items() if key in accepted}
    try:
        return type(source)(groups, **defaults)
    except Exception as error:
        raise CaptureError(
            f"this {type(source).__name__} cannot be made again: {error}",
            hint="Pass a function of the parameters: lambda parameters: "
            f"{type(source).__name__}(parameters, ...)",
        ) from error


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {key: copy.copy(value) for key, value in group.items() if key != "params"}


def _counterpart(parameter: torch.Tensor, target: OnDevice) -> torch.Tensor:
    found = target.tensors.get(id(parameter))
    if found is None:
        raise CaptureError(
            "the optimizer has a parameter that the model does not have",
            hint="Pass an optimizer made for this model, or a function of its parameters",
        )
    return found


def state_tensors(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for state in optimizer.state.values():
        values = state.values() if isinstance(state, dict) else (state,)
        for value in values:
            for element in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(element, torch.Tensor):
                    yield element


def new_scaler(source: Any) -> Any:
    """A gradient scaler of the same settings; its own factor may lie on a real GPU."""
    if not source:
        return None
    settings = {
        name: getattr(source, f"_{name}")
        for name in ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
        # One that was made where there is no GPU has switched itself off, and forgot them.
        if hasattr(source, f"_{name}")
    }
    return torch.amp.GradScaler("cuda", **settings)


@contextlib.contextmanager
def no_overflow() -> Iterator[None]:
    """A scaler reads from the device whether a gradient overflowed. In the long run none does, and
    the optimizer's step runs."""

    def step(self: Any, optimizer: Optimizer, state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    def scale(self: Any) -> float:
        return float(self._init_scale) if self._enabled else 1.0

    scaler = torch.amp.GradScaler
    with patched([Patch(scaler, "_maybe_opt_step", step), Patch(scaler, "get_scale", scale)]):
        yield


@contextlib.contextmanager
def scalers_as_new(recorder: Recorder, note: Note) -> Iterator[None]:
    """Scalers of the user's own begin each run anew. One that was made where there is no GPU has
    switched itself off: where something is float16 it is taken to be on."""
    scaler = torch.amp.GradScaler
    scale_loss = scaler.scale
    as_they_were: dict[int, tuple[Any, dict[str, Any]]] = {}

    def begin(self: Any) -> None:
        as_they_were[id(self)] = self, dict(self.__dict__)
        if self._enabled:
            self._scale = self._growth_tracker = None  # made again with the first loss
            kept = self._per_optimizer_states  # filled in place, and so not for this run
            self._per_optimizer_states = defaultdict(kept.default_factory)
        elif not gpu_is_here() and recorder.has("float16"):
            note(
                f"{current_line()}: the gradient scaler is off, as one is that was made where "
                "there is no GPU; it is taken to be on"
            )
            scaler.__init__(self, "cuda")

    def scale(self: Any, outputs: Any) -> Any:
        if id(self) not in as_they_were:
            begin(self)
        return scale_loss(self, outputs)

    try:
        with patched([Patch(scaler, "scale", scale)]):
            yield
    finally:
        for one, before in as_they_were.values():
            one.__dict__ = before


def refuse_unpredictable(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """LBFGS runs until it likes what it sees, and keeps more each time."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise CaptureError(
            "LBFGS decides by values how often it runs the closure, and keeps more with every run, "
            "but a capture has no values",
            where=current_line(),
            hint="Capture the job with SGD; LBFGS adds up to 2 x history_size times the parameters",
        )
