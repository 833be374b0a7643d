"""An optimizer whose state lies on the host, where its step is computed too."""

from __future__ import annotations

import inspect
from typing import Any, Callable

import torch
from torch.optim import Optimizer


class HostOptimizer(Optimizer):
    """Steps parameters on the host: gradients are copied there, the parameters back. The device
    holds parameters and gradients, nothing else.

    Made of an optimizer without state, whose class, groups and settings it takes. Parameters in 16
    bit are stepped in fp32. A state_dict is one of that class, so that either can load the other's;
    it has no masters: after a load these are the parameters.
    """

    def __init__(self, given: Optimizer) -> None:
        defaults = dict(given.defaults)
        super().__init__([dict(group) for group in given.param_groups], defaults)
        accepted = inspect.signature(type(given).__init__).parameters
        settings = {key: value for key, value in defaults.items() if key in accepted}
        own = _fastest_on_cpu(accepted)
        groups = [
            {**group, **own, "params": [_master(p) for p in group["params"]]}
            for group in self.param_groups
        ]
        #: What steps, on the host.
        self.inner = type(given)(groups, **{**settings, **own})
        self._own_settings = set(own)
        self._copies: dict[torch.Tensor, _Copy] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        copies = []
        for group, host in zip(self.param_groups, self.inner.param_groups):
            for key, value in group.items():
                if key != "params" and key not in self._own_settings:
                    host[key] = value  # a scheduler may have changed it
            for parameter, master in zip(group["params"], host["params"]):
                master.grad = None
                if parameter.grad is not None:
                    copies.append(self._copy(parameter, master))
        for copy in copies:
            copy.fetch()
        for device in {copy.parameter.device for copy in copies}:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        for copy in copies:
            copy.hand_over()
        self.inner.step()
        for copy in copies:
            copy.put_back()
        return loss

    def _copy(self, parameter: torch.Tensor, master: torch.Tensor) -> _Copy:
        found = self._copies.get(parameter)
        if found is None:
            found = self._copies[parameter] = _Copy(parameter, master)
        return found

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)
        for group, host in zip(self.param_groups, self.inner.param_groups):
            host.update(_fastest_on_cpu(self._own_settings))
            group.update({k: v for k, v in host.items() if k not in ("params", "fused", "foreach")})
        self._copies.clear()


class _Copy:
    """One parameter and what of it lies on the host."""

    def __init__(self, parameter: torch.Tensor, master: torch.Tensor) -> None:
        self.parameter = parameter
        self.master = master
        #: In the parameter's type, for the way there and, where that is narrower, the way back.
        pinned = parameter.device.type == "cuda"
        self.staging = torch.empty(
            parameter.shape, dtype=parameter.dtype, device="cpu", pin_memory=pinned
        )
        self.version = -1

    def fetch(self) -> None:
        if self.parameter._version != self.version:  # somebody else wrote to it
            self.master.copy_(self.parameter)
        assert self.parameter.grad is not None
        self.staging.copy_(self.parameter.grad, non_blocking=True)

    def hand_over(self) -> None:
        self.master.grad = self.staging.to(self.master.dtype)

    def put_back(self) -> None:
        back = self.master
        if back.dtype is not self.staging.dtype:
            back = self.staging.copy_(self.master)
        self.parameter.copy_(back, non_blocking=True)
        self.version = self.parameter._version


def _master(parameter: torch.Tensor) -> torch.Tensor:
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    made = torch.empty(parameter.shape, dtype=dtype, pin_memory=torch.cuda.is_available())
    return made.copy_(parameter.detach()).requires_grad_(parameter.requires_grad)


def _fastest_on_cpu(accepted: Any) -> dict[str, Any]:
    """One pass over memory in place of many, where the class has it."""
    found: dict[str, Any] = {}
    if "fused" in accepted:
        found["fused"] = True
    if "foreach" in accepted:
        found["foreach"] = None if "fused" in accepted else False
    return found
