"""Where a step's backward and its optimizers' turns begin and end, told to the recorder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Callable

import torch
import torch.optim.optimizer as optim
from torch.optim import Optimizer

from ..base.patching import Patch, patched
from ..events.recorder import Recorder
from .optimizers import refuse_unpredictable

OptimizerHook = Callable[[Optimizer, Any, Any], None]


@contextlib.contextmanager
def mark_phases(
    recorder: Recorder,
    parameters: Callable[[], Iterable[torch.Tensor]],
    before_optimizer: OptimizerHook,
    after_optimizer: OptimizerHook,
) -> Iterator[None]:
    """`parameters` is asked for those that have gradients, after each backward."""
    backward = torch.autograd.backward

    def marked_backward(*args: Any, **kwargs: Any) -> Any:
        if torch._C._current_autograd_node() is not None:
            return backward(*args, **kwargs)  # a checkpoint's own, inside another
        recorder.phase("backward")
        try:
            return backward(*args, **kwargs)
        finally:
            recorder.gradients(p.grad for p in parameters() if p.grad is not None)
            recorder.phase("optimizer")

    def step_begins(*hooked: Any) -> None:
        recorder.gradient_uses.step_begins()

    def step_ends(*hooked: Any) -> None:
        recorder.gradient_uses.step_ends()

    hooks = [
        optim.register_optimizer_step_pre_hook(refuse_unpredictable),
        optim.register_optimizer_step_pre_hook(before_optimizer),
        optim.register_optimizer_step_pre_hook(step_begins),
        optim.register_optimizer_step_post_hook(step_ends),
        optim.register_optimizer_step_post_hook(after_optimizer),
    ]
    try:
        with patched([Patch(torch.autograd, "backward", marked_backward)]):
            yield
    finally:
        for hook in hooks:
            hook.remove()
