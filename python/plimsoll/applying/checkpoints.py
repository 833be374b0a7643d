"""Blocks that are computed again in the backward, as a whole or but for what is kept of them."""

from __future__ import annotations

import collections
import contextlib
import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Callable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from ..base.errors import PlanError
from .waiting_blocks import wait_on_host

_HOST = "host:"
_Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]

#: What F.scaled_dot_product_attention becomes; in its mathematical form it is not one operator.
_ATTENTION = [
    f"aten._scaled_dot_product_{kernel}_attention.default"
    for kernel in ("flash", "efficient", "cudnn")
]


def checkpoint_blocks(model: nn.Module, names: list[str], keep: list[str]) -> None:
    """Puts a checkpoint around each of these modules. `keep` says for each what is kept of it, as a
    plan writes it: "addmm+mm@1+attention", the second call of mm; "" for nothing;
    "host:NAME" for a module that is not computed again: its results wait on the host for that
    one."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointWrapper,
        checkpoint_wrapper,
    )

    wrappers = {}
    waiting = {}
    for name, kept in zip(names, keep):
        if kept.startswith(_HOST):
            waiting[name] = kept[len(_HOST) :]
            continue
        block = model.get_submodule(name)
        if isinstance(block, CheckpointWrapper):
            continue
        wrappers[id(block)] = checkpoint_wrapper(
            block, checkpoint_fn=_checkpointed, contexts=_contexts(block, kept)
        )
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # a shared one is in several places
            if id(child) in wrappers:
                setattr(parent, name, wrappers[id(child)])
    if waiting:
        wait_on_host(model, waiting)


def _checkpointed(block: nn.Module, *args: Any, contexts: _Contexts, **kwargs: Any) -> Any:
    """A list that is appended to after the block has run, or while it does, is another one by the
    backward. So the block is given the list itself, and its repetition a copy of what that was."""
    first = [(args, kwargs)]

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = first.pop() if first else as_they_are((args, kwargs))
        return block(*args, **kwargs)

    args, kwargs = as_they_are((args, kwargs))
    return checkpoint(run, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def as_they_are(value: Any) -> Any:
    """With copies of lists and dictionaries, whatever they are in, of the same tensors."""
    return _copied(value, {})


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    """What is in several places stays one."""
    if type(value) is tuple:
        return tuple(_copied(each, copies) for each in value)
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(_copied(each, copies) for each in value)
    if not isinstance(value, (list, dict)):
        return value
    if id(value) not in copies:
        again = copies[id(value)] = copy.copy(value)
        for key, each in again.items() if isinstance(again, dict) else enumerate(again):
            again[key] = _copied(each, copies)
    return copies[id(value)]


def _contexts(block: nn.Module, kept: str) -> _Contexts:
    """What a checkpoint's forward and repetition run in."""
    norms = [m for m in block.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    names = _asked(kept)
    if not names and not norms:
        return noop_context_fn

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        first: AbstractContextManager[Any] = contextlib.nullcontext()
        again: AbstractContextManager[Any] = contextlib.nullcontext()
        if names:
            first, again = _keeping(names)
        return first, _both(again, _statistics_stay(norms))

    return contexts


def _asked(kept: str) -> set[str]:
    """As PyTorch names the operators: "aten.addmm.default", with "@1" for one of its calls."""
    names: set[str] = set()
    for one in kept.split("+") if kept else []:
        op, _, nth = one.partition("@")
        full = f"aten.{op}" if "." in op else f"aten.{op}.default"
        ops = _ATTENTION if op == "attention" else [full]
        if not op or (nth and not nth.isdecimal()):
            raise PlanError(f"the plan's checkpointing keeps '{one}', which is no call", hint=_ANEW)
        names.update(f"{each}@{int(nth)}" if nth else each for each in ops)
    return names


_ANEW = "Make the plan anew"


def _keeping(
    names: set[str],
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Calls are counted anew in each forward of a block, and in its repetition."""
    try:
        from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
    except ImportError as error:
        raise PlanError(
            f"the plan keeps results inside checkpoints, which torch {torch.__version__} cannot",
            hint="It takes torch 2.4 or newer",
        ) from error
    seen: collections.Counter[tuple[Any, bool]] = collections.Counter()

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        nth = seen[op, ctx.is_recompute]
        seen[op, ctx.is_recompute] += 1
        text = str(op)
        if text in names or f"{text}@{nth}" in names:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    first, again = create_selective_checkpoint_contexts(policy)
    return first, again


@contextlib.contextmanager
def _both(one: AbstractContextManager[Any], other: AbstractContextManager[Any]) -> Iterator[None]:
    with one, other:
        yield


@contextlib.contextmanager
def _statistics_stay(norms: list[nn.modules.batchnorm._BatchNorm]) -> Iterator[None]:
    """A batch that is seen again is no other batch: running statistics have it already."""
    before = [(norm.momentum, norm._buffers.get("num_batches_tracked")) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
        if "num_batches_tracked" in norm._buffers:
            norm._buffers["num_batches_tracked"] = None
    try:
        yield
    finally:
        for norm, (momentum, tracked) in zip(norms, before):
            norm.momentum = momentum  # type: ignore[assignment]
            if "num_batches_tracked" in norm._buffers:
                norm._buffers["num_batches_tracked"] = tracked
