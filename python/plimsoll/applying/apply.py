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
from ..base.precision import EAGER, PRECISIONS
from .applied import Applied
from .checkpoints import checkpoint_blocks
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
    of the way, from 0. Call it once the optimizer is made, before the first step. Train with what
    is given back: its `.optimizer` may be a new one, micro-batches are cut by `.micro_batches`. Its
    `.done` and `.left_to_you` tell what was set and what was not; print it.
    """
    if not isinstance(model, nn.Module):
        raise PlanError(f"`model` is {type(model).__name__} and no torch.nn.Module")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise PlanError(f"`optimizer` is {type(optimizer).__name__} and no torch.optim.Optimizer")
    chosen = read_way(plan, way)
    applied = Applied(model, optimizer, chosen.batch, chosen.passes, chosen.uses)
    cuts = chosen.passes > 1 and chosen.captured_passes == 1
    # Before anything is changed:
    _check_layers(chosen, model)
    if optimizer is not None and "optimizer" in chosen.levers:
        refuse_state(optimizer)
    for lever, set_lever in _LEVERS.items():
        is_set = chosen.levers.get(lever)
        if is_set is None:
            continue
        try:
            if lever == "accumulation" and chosen.captured_passes > 1:
                raise _LeftToYou(
                    f"in the script, set its batch size to {chosen.batch} and its own "
                    f"accumulation steps to {chosen.passes}"
                )
            told = set_lever(applied, is_set.value)
            (applied.done_in_step if lever == "accumulation" else applied.done).append(told)
        except _LeftToYou as left:
            applied.not_set.append(f"{lever} = {is_set.text}: {left}")
    for lever, is_set in chosen.levers.items():
        if lever not in _LEVERS:
            applied.not_set.append(f"{lever} = {is_set.text}: this release does not know it")
    applied.in_your_loop += _of_the_loop(applied, optimizer, cuts)
    return applied


def _of_the_loop(applied: Applied, given: Optimizer | None, cuts: bool) -> list[str]:
    """What is set only where the loop uses it. `cuts`: it has to cut each batch."""
    told = []
    if applied.optimizer is not given:
        told.append(
            "use applied.optimizer from here on, also in a scheduler; your own is not changed"
        )
    others = _not_stepped(applied.model, given)
    if others:
        told.append(
            f"{others} of the parameters that train are not in the optimizer given: call step() "
            "and zero_grad() of the one that has them, too, behind that of applied.optimizer"
        )
    precision = applied.precision
    placed = [
        text
        for text, is_set in (
            ("in bfloat16", precision.weights is torch.bfloat16),
            ("in channels-last", precision.channels_last),
        )
        if is_set
    ]
    if cuts:
        told.append(
            f"for x, y in applied.micro_batches((x, y)): around forward and backward; it cuts the "
            f"{applied.passes * applied.batch} samples of a step, still on the CPU, into "
            f"{applied.passes} micro-batches of {applied.batch}"
        )
    elif placed:
        told.append(
            f"x, y = applied.place((x, y)) before the forward: batches {' and '.join(placed)}"
        )
    around = [
        text
        for text, is_set in (
            ("autocast", precision.autocast is not None),
            ("offload", applied.offloads_activations),
        )
        if is_set
    ]
    if around:
        told.append(
            f"with applied.forward(): around the forward and its loss: {' and '.join(around)}"
        )
    if cuts or applied.scaler is not None:
        own = ", scaler" if applied.uses.scaled_at and applied.scaler is None else ""
        told.append(f"loss = applied.backward(loss{own}) in place of its backward()")
    if applied.scaler is not None:
        before = "before_step=..." if applied.uses.used_at else ""
        told.append(f"applied.update({before}) in place of optimizer.step() and zero_grad()")
        if before:
            told[-1] += f": `before_step` is a function that does {applied.uses.used_at[0]}"
    return told


def _not_stepped(model: nn.Module, optimizer: Optimizer | None) -> int:
    """Parameters that another optimizer has, or none."""
    if optimizer is None:
        return 0
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return sum(p.requires_grad and id(p) not in stepped for p in model.parameters())


class _LeftToYou(Exception):
    """Why, or how."""


#: The parts of a lever's value, as `plimsoll plan --json` names them (docs/json.md).
_Value = Mapping[str, Any]


# Each sets one lever and says in words what it did.


def _uncompiled(applied: Applied) -> str:
    """A module that is wrapped is called by its wrapper, which is the user's to leave out."""
    if hasattr(applied.model, "_orig_mod"):
        raise _LeftToYou("call the model that torch.compile was given")
    applied.model._compiled_call_impl = None
    return "not compiled"


def _set_precision(applied: Applied, value: _Value) -> str:
    name = value.get("name", "")
    if name == EAGER.name:
        return _uncompiled(applied)
    precision = PRECISIONS.get(name)
    if precision is None:
        raise _LeftToYou("this release does not know it")
    told = []
    if precision.weights is not None:
        told += _cast_weights(applied, precision.weights)
    if precision.channels_last:
        applied.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        told.append("model and batches in channels-last")
    if precision.compiled:
        applied.model.compile()
        told.append("compiled")
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
        applied.not_set.append(
            f"the learning rate of {kind.__name__}: that of {type(given).__name__} was kept"
        )
    told = f"a new optimizer, {kind.__name__}{f' ({form})' if form else ''}, with your groups"
    told += " and settings"
    if form == "host":
        told += "; its state lies on the host, where its step is computed"
    if early:
        told += "; each parameter is stepped in the backward, and its gradient let go"
    return told


def _set_accumulation(applied: Applied, value: _Value) -> str:
    if value.get("passes") != applied.passes:
        raise _LeftToYou(f"the configuration itself has {applied.passes} micro-batches")
    return f"{applied.passes} micro-batches of {applied.batch} samples in each step"


def _set_checkpointing(applied: Applied, value: _Value) -> str:
    names = _modules(value)
    keep = _kept(value, len(names))
    checkpoint_blocks(applied.model, names, keep)
    on_host = sum(1 for kept in keep if kept.startswith("host:"))
    in_part = sum(1 for kept in keep if kept) - on_host
    computed = len(names) - on_host
    parts = []
    if computed:
        some = "all" if in_part == computed else str(in_part)
        parts.append(f"checkpointing of {computed} blocks")
        parts[0] += f", {some} of them in part" if in_part else ""
    if on_host:
        parts.append(f"results of {on_host} blocks wait on the host")
    told = "; ".join(parts)
    told += "; the state_dict keeps its names"
    # A cache of keys and values would get those of a block a second time when it is repeated.
    config: Any = getattr(applied.model, "config", None)
    if getattr(config, "use_cache", False):
        config.use_cache = False
        told += "; config.use_cache = False, since a cache would be filled twice"
    return told


def _kept(value: _Value, blocks: int) -> list[str]:
    """What is kept of each block."""
    keep = value.get("keep", [""] * blocks)
    if not isinstance(keep, list) or len(keep) != blocks or not all(
        isinstance(kept, str) for kept in keep
    ):
        raise PlanError("the plan's checkpointing does not say what it keeps", hint=_ANEW)
    return keep


_ANEW = "Make the plan anew"


def _modules(value: _Value) -> list[str]:
    modules = value.get("modules")
    if not isinstance(modules, list) or not all(isinstance(name, str) for name in modules):
        raise PlanError("the plan's checkpointing names no modules", hint="Make the plan anew")
    return modules


def _layers(value: _Value) -> list[str]:
    """Those that make the logits; none in a plan of an older release."""
    layers = value.get("layers", [])
    if not isinstance(layers, list) or not all(isinstance(name, str) for name in layers):
        raise PlanError("the plan's loss names no layers", hint="Make the plan anew")
    return layers


def _check_layers(way: Way, model: nn.Module) -> None:
    """That the model is the one of the plan, as far as the way names parts of it."""
    checkpointing, loss = way.levers.get("checkpointing"), way.levers.get("loss")
    for name in [] if checkpointing is None else _modules(checkpointing.value):
        _check_layer("block", name, way, model)
    if loss is None:
        return
    for name in _layers(loss.value):
        _check_layer("layer", name, way, model)
    if isinstance(model, nn.Linear) and way.model != "Linear":
        raise PlanError("the model is a single nn.Linear and not the one of the plan")


def _check_layer(kind: str, name: str, way: Way, model: nn.Module) -> None:
    try:
        found = model.get_submodule(name)
    except AttributeError:
        found = None
    if found is not None and found is not model:
        return
    close = difflib.get_close_matches(name, [n for n, _ in model.named_modules()], 1)
    of = f", and the plan is for {way.model}" if way.model else ""
    raise PlanError(
        f"the model, {type(model).__name__}, has no {kind} {name!r}{of}",
        hint=f"There is {close[0]!r}" if close else "Pass the model that the plan was made for",
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


def _set_evaluation(applied: Applied, value: _Value) -> str:
    """It is the script's own loop that evaluates."""
    lines = []
    if value.get("no_grad"):
        lines.append("put its loop under torch.no_grad()")
    if value.get("on_host"):
        lines.append("keep its outputs as output.cpu()")
    shares = value.get("shares")
    if isinstance(shares, int) and shares > 1:
        lines.append(f"give it batches of 1/{shares} of the size")
    raise _LeftToYou("; ".join(lines) or "this release does not know it")


def _set_loss(applied: Applied, value: _Value) -> str:
    chunks = value.get("chunks")
    if not isinstance(chunks, int) or chunks < 1:
        raise _LeftToYou("this release does not know it")
    kinds = value.get("kinds") or [_CROSS_ENTROPY]
    by_hand = (
        "it has entropies, or log-probabilities in a way that cannot be replaced from here: "
        f"log_probs = plimsoll.chunked_log_probs(hidden, head.weight, labels, chunks={chunks})"
    )
    if value.get("by_hand"):
        if _CROSS_ENTROPY not in kinds:
            raise _LeftToYou(by_hand)
        applied.not_set.append(f"loss = chunked:{chunks}: {by_hand}")
    layers = _layers(value)
    everywhere = value.get("without_gradient") is True
    named: list[str | None] = [*layers] or [None]
    heads = [defer(applied.model, chunks, layer, everywhere) for layer in named]
    if None in heads:
        raise _LeftToYou(
            "it is not clear which layer makes the logits; in place of it (`head`) and "
            "F.cross_entropy: loss = plimsoll.chunked_cross_entropy(hidden, head.weight, labels, "
            f"chunks={chunks})"
        )
    layer = " and ".join(f"`{head}`" if head else "the model" for head in heads)
    what = " and ".join(_OF_LOGITS[kind] for kind in kinds if kind in _OF_LOGITS)
    return f"{what} of what {layer} gives is computed in {chunks} chunks of rows"


_CROSS_ENTROPY = "cross_entropy"
_OF_LOGITS = {_CROSS_ENTROPY: "F.cross_entropy", "log_probs": "log_softmax(...).gather(...)"}


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
    "evaluation": _set_evaluation,
    "loss": _set_loss,
    "allocator": _set_allocator,
    "parallel": _set_parallel,
}
