"""plimsoll.apply: one way of a plan, set in a PyTorch model and its optimizer."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any, Callable

import torch
from torch import nn
from torch.optim import Optimizer

from ..base.errors import PlanError
from ..base.precision import PRECISIONS
from .applied import Applied
from .deferred_logits import defer
from .host_optimizer import HostOptimizer
from .new_optimizer import Unavailable, in_backward, refuse_state, remade_as
from .plan_file import PlanSource, Way, read_way


def apply(
    plan: PlanSource,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    way: int | Mapping[str, Any] = 0,
) -> Applied:
    """Sets what one way of a plan says, in the model itself, and says what it did.

    `plan` is the file, the text or the document that `plimsoll plan --json` gives, `way` the number
    of the way, from 0. Best called before the model is moved to the GPU, and before the first step.
    Of what is given back `.done` and `.left_to_you` tell what was set and what was not; print it.
    """
    if not isinstance(model, nn.Module):
        raise PlanError(f"`model` is {type(model).__name__} and no torch.nn.Module")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise PlanError(f"`optimizer` is {type(optimizer).__name__} and no torch.optim.Optimizer")
    chosen = read_way(plan, way)
    applied = Applied(model, optimizer, chosen.batch, chosen.passes)
    # Before anything is changed:
    _check_blocks(chosen, model)
    if optimizer is not None and "optimizer" in chosen.levers:
        refuse_state(optimizer)
    for lever, set_lever in _LEVERS.items():
        is_set = chosen.levers.get(lever)
        if is_set is None:
            continue
        try:
            applied.done.append(set_lever(applied, is_set.value))
        except _LeftToYou as left:
            applied.left_to_you.append(f"{lever} = {is_set.text}: {left}")
    for lever, is_set in chosen.levers.items():
        if lever not in _LEVERS:
            applied.left_to_you.append(f"{lever} = {is_set.text}: this release does not know it")
    return applied


class _LeftToYou(Exception):
    """Why, or how."""


#: The parts of a lever's value, as `plimsoll plan --json` names them (docs/json.md).
_Value = Mapping[str, Any]


# Each sets one lever and says in words what it did.


def _set_precision(applied: Applied, value: _Value) -> str:
    precision = PRECISIONS.get(value.get("name", ""))
    if precision is None:
        raise _LeftToYou("this release does not know it")
    told = []
    if precision.weights is not None:
        told += _cast_weights(applied, precision.weights)
    if precision.channels_last:
        applied.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        told.append("model and batches in channels-last")
    if precision.autocast is not None:
        told.append(f"autocast to {_name(precision.autocast)}")
    if precision.scaled:
        applied.scaler = torch.amp.GradScaler(_accelerator(applied))
        told.append("a gradient scaler")
    applied.precision = precision
    return "; ".join(told) or "precision as written"


def _cast_weights(applied: Applied, dtype: torch.dtype) -> list[str]:
    floating = [p for p in applied.model.parameters() if p.is_floating_point()]
    if all(p.dtype is dtype for p in floating):
        return []
    if applied.optimizer is not None and applied.optimizer.state:
        raise PlanError(
            "the optimizer has state in another type than the weights are to have",
            hint="Apply the plan before the first step, or leave this lever alone",
        )
    applied.model.to(dtype)
    return [
        f"weights{', and floating-point batches,' if dtype is torch.bfloat16 else ''} "
        f"in {_name(dtype)}"
    ]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def _accelerator(applied: Applied) -> str:
    """A model is often built on the CPU and moved later."""
    return "cuda" if torch.cuda.is_available() else applied.device.type


def _set_tf32(applied: Applied, value: _Value) -> str:
    on = value.get("on")
    if not isinstance(on, bool):
        raise _LeftToYou("it is on or off")
    torch.backends.cuda.matmul.allow_tf32 = on
    return f"torch.backends.cuda.matmul.allow_tf32 = {on}"


def _set_optimizer(applied: Applied, value: _Value) -> str:
    given = applied.optimizer
    if given is None:
        raise _LeftToYou("no optimizer was passed to apply")
    name, form, early = value.get("name", ""), value.get("form", ""), value.get("in_backward")
    if early and (applied.passes > 1 or applied.scaler is not None):
        raise _LeftToYou("with several passes or a gradient scaler a gradient is not whole in time")
    try:
        made = remade_as(name, form, given)
    except Unavailable as error:
        raise _LeftToYou(str(error)) from error
    applied.optimizer = in_backward(made) if early else made
    applied.steps_in_backward = bool(early)
    kind = type(made.inner if isinstance(made, HostOptimizer) else made)
    if not isinstance(given, kind):
        applied.left_to_you.append(
            f"the learning rate of {kind.__name__}: that of {type(given).__name__} was kept"
        )
    told = f"a new optimizer, {kind.__name__}{f' ({form})' if form else ''}, with your groups"
    told += " and settings; give `.optimizer` to a scheduler that holds the old one"
    if form == "host":
        told += "; its state lies on the host, where its step is computed"
    if early:
        told += "; each parameter is stepped in the backward, and its gradient let go"
    return told


def _set_accumulation(applied: Applied, value: _Value) -> str:
    if value.get("passes") != applied.passes:
        raise _LeftToYou(f"the way itself has {applied.passes} passes")
    return f"`.step` makes {applied.passes} passes of {applied.batch} samples"


def _set_checkpointing(applied: Applied, value: _Value) -> str:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointImpl,
        CheckpointWrapper,
        checkpoint_wrapper,
    )

    names = _modules(value)
    blocks = [applied.model.get_submodule(name) for name in names]
    wrappers = {
        id(block): checkpoint_wrapper(block, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
        for block in blocks
        if not isinstance(block, CheckpointWrapper)
    }
    for parent in list(applied.model.modules()):
        for name, child in list(parent._modules.items()):  # a shared one is in several places
            if id(child) in wrappers:
                setattr(parent, name, wrappers[id(child)])
    told = f"checkpointing of {len(names)} blocks; the state_dict keeps its names"
    modules = (module for block in blocks for module in block.modules())
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in modules):
        told += "; running statistics of batch norm in them move twice a pass"
    return told


def _modules(value: _Value) -> list[str]:
    modules = value.get("modules")
    if not isinstance(modules, list) or not all(isinstance(name, str) for name in modules):
        raise PlanError("the plan's checkpointing names no modules", hint="Make the plan anew")
    return modules


def _check_blocks(way: Way, model: nn.Module) -> None:
    lever = way.levers.get("checkpointing")
    for name in [] if lever is None else _modules(lever.value):
        try:
            found = model.get_submodule(name)
        except AttributeError:
            found = None
        if found is None or found is model:
            close = difflib.get_close_matches(name, [n for n, _ in model.named_modules()], 1)
            raise PlanError(
                f"the model has no block {name!r}",
                hint=f"There is {close[0]!r}" if close else "Is it the model of the capture?",
            )


def _set_allocator(applied: Applied, value: _Value) -> str:
    conf = str(value.get("conf", ""))
    line = f"export PYTORCH_CUDA_ALLOC_CONF={conf}"
    if _allocator_has(conf):
        return f"PYTORCH_CUDA_ALLOC_CONF has {conf}"
    if not torch.cuda.is_available():
        raise _LeftToYou(f"there is no GPU here; before the job starts: {line}")
    if torch.cuda.memory_reserved() > 0:
        raise _LeftToYou(f"there is memory on the GPU already; before the job starts: {line}")
    _allocator_settings()(",".join(text for text in (_environment(), conf) if text))
    return f"the allocator's settings: {conf}"


def _allocator_settings() -> Callable[[str], None]:
    names = (
        "_accelerator_setAllocatorSettings",
        "_cuda_cudaCachingAllocator_set_allocator_settings",
    )
    found: list[Callable[[str], None]] = [
        getattr(torch._C, name) for name in names if hasattr(torch._C, name)
    ]
    return found[0]


def _environment() -> str:
    return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""


def _allocator_has(conf: str) -> bool:
    there = {text.strip() for text in _environment().split(",")}
    return all(text.strip() in there for text in conf.split(","))


def _set_offload(applied: Applied, value: _Value) -> str:
    rest = [what for what in value.get("what", []) if what != "activations"]
    if rest:
        raise _LeftToYou(f"{', '.join(rest)} cannot be moved to the host from here")
    applied.offloads_activations = True
    return "what the backward needs is kept on the host (`.forward` does it)"


def _set_loss(applied: Applied, value: _Value) -> str:
    chunks = value.get("chunks")
    if not isinstance(chunks, int) or chunks < 1:
        raise _LeftToYou("this release does not know it")
    head = defer(applied.model, chunks)
    if head is None:
        raise _LeftToYou(
            "it is not clear which layer makes the logits; in place of it (`head`) and "
            "F.cross_entropy: loss = plimsoll.chunked_cross_entropy(hidden, head.weight, labels, "
            f"chunks={chunks})"
        )
    return (
        f"`{head}` and F.cross_entropy of what it gives run in {chunks} chunks of rows; whatever "
        "else reads its output gets all of it"
    )


def _set_parallel(applied: Applied, value: _Value) -> str:
    kind, ranks = value.get("kind", ""), value.get("ranks")
    how = {
        "ddp": "model = torch.nn.parallel.DistributedDataParallel(model)",
        "fsdp": "torch.distributed.fsdp.fully_shard on each block and on the model",
    }.get(kind, "")
    start = f"torchrun --nproc_per_node {ranks} train.py" if ranks else "torchrun"
    raise _LeftToYou(f"start it with {start}{f', and {how}' if how else ''}")


#: In the order in which they are set: an optimizer is made of weights that have their type.
_LEVERS: dict[str, Callable[[Applied, _Value], str]] = {
    "precision": _set_precision,
    "tf32": _set_tf32,
    "checkpointing": _set_checkpointing,
    "optimizer": _set_optimizer,
    "accumulation": _set_accumulation,
    "offload": _set_offload,
    "loss": _set_loss,
    "allocator": _set_allocator,
    "parallel": _set_parallel,
}
