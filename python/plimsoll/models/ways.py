"""The ways in which a model is fine-tuned: all of it, LoRA, QLoRA. As transformers' Trainer does it
with PEFT and bitsandbytes, step by step; each thing that is chosen is said in a note."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..base.errors import CaptureError
from .adapters import (
    Linear4bit,
    Lora,
    LoraOf4Bit,
    declare_operators,
    goes_into_4_bits,
    is_linear,
    replaced,
)
from .way import ALL_LINEAR, Way

#: Trainer's `max_grad_norm`.
_MOST_OF_A_GRADIENT = 1.0


def tuned(model: nn.Module, way: Way, notes: list[str], times: Callable[[str], int]) -> nn.Module:
    """The model as it comes to Trainer. `times`: for how many a module stands, by its name."""
    if way.adapts:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
    quantized: list[str] = []
    # PEFT finds what to adapt by the classes that there are, and those in 4 bits are linear too.
    targets = _targets(model, way) if way.adapts else []
    if way.name == "qlora":
        declare_operators()
        quantized = _to_quantize(model)
        replaced(model, quantized, Linear4bit)
        _widen(model)
        # As transformers marks it, whether or not it has found any such layer.
        model.is_loaded_in_4bit = True  # type: ignore[assignment]
    if way.adapts:
        replaced(model, targets, lambda layer: _adapted(layer, way))
    if way.checkpointing:
        _checkpoint(model, notes)
    model.train()
    notes += _described(way, sum(map(times, targets)), sum(map(times, quantized)))
    return model


def _adapted(layer: nn.Module, way: Way) -> nn.Module:
    kind = LoraOf4Bit if isinstance(layer, Linear4bit) else Lora
    return kind(layer, way.rank, way.dropout)


def _described(way: Way, targets: int, quantized: int) -> list[str]:
    notes = []
    if way.adapts:
        drop = f", dropout {way.dropout:g}" if way.dropout else ""
        notes.append(
            f"LoRA of rank {way.rank} on {targets} layers ({way.targets}){drop}, its weights in "
            "float32, as PEFT makes it"
        )
    if quantized:
        notes.append(
            f"{quantized} layers are in 4 bits (nf4, double_quant) as bitsandbytes keeps them, and "
            "what is not is cast to float32 (prepare_model_for_kbit_training)"
        )
    checkpoints = "with" if way.checkpointing else "without"
    notes.append(
        f"a step is that of transformers' Trainer, {checkpoints} gradient checkpointing: gradients "
        "clipped to a norm of 1, fused AdamW unless another optimizer is asked for"
    )
    return notes


def _output(model: nn.Module) -> nn.Module | None:
    get = getattr(model, "get_output_embeddings", None)
    found: nn.Module | None = get() if get is not None else None
    return found


def _targets(model: nn.Module, way: Way) -> list[str]:
    linear = [name for name, module in model.named_modules() if is_linear(module)]
    if way.targets == ALL_LINEAR:
        head = _output(model)
        return [name for name in linear if model.get_submodule(name) is not head]
    wanted = [word.strip() for word in way.targets.split(",") if word.strip()]
    found = [
        name
        for name in linear
        if any(name == word or fnmatch.fnmatch(name, f"*.{word}") for word in wanted)
    ]
    if not found:
        ends = sorted({name.rsplit(".", 1)[-1] for name in linear})
        raise CaptureError(
            f"no linear layer of the model ends in {' or '.join(wanted)}",
            hint=f"Its linear layers end in {', '.join(ends)}",
        )
    return found


def _to_quantize(model: nn.Module) -> list[str]:
    """All linear layers but the head, what is tied to others and the last module, as transformers
    has it."""
    kept = {name for name, module in model.named_modules() if module is _output(model)}
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    kept |= {key.removesuffix(".weight") for pair in tied.items() for key in pair}
    kept.add([name for name, _ in model.named_parameters()][-1].removesuffix(".weight"))
    kept |= set(getattr(model, "_keep_in_fp32_modules", None) or [])
    return [
        name
        for name, module in model.named_modules()
        if goes_into_4_bits(module)
        and not any(name == key or name.startswith(f"{key}.") or name.endswith(key) for key in kept)
    ]


def _widen(model: nn.Module) -> None:
    """What is left in 16 bit, to float32: `prepare_model_for_kbit_training`."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or parameter.dtype not in (torch.float16, torch.bfloat16):
                continue
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(parameter.float(), requires_grad=False)
            module._parameters[name] = made[id(parameter)]


def _checkpoint(model: nn.Module, notes: list[str]) -> None:
    if not getattr(model, "supports_gradient_checkpointing", False):
        notes.append("this model has no gradient checkpointing: it is trained without")
        return
    model.gradient_checkpointing_enable(  # type: ignore[operator]
        gradient_checkpointing_kwargs={"use_reentrant": False}
    )


# The step.


def optimizer(parameters: Any, make: Any, settings: dict[str, Any]) -> Any:
    """Trainer puts what is decayed before what is not."""
    trained = [p for p in parameters if p.requires_grad]
    groups = [[p for p in trained if p.dim() >= 2], [p for p in trained if p.dim() < 2]]
    return make([{"params": group} for group in groups if group], **settings)


class Step:
    """One of Trainer's. What is bound to a name until when decides what is freed when."""

    def __init__(self, autocast: torch.dtype | None) -> None:
        self._autocast = autocast

    def __call__(self, model: nn.Module, optimizer: Any, batch: dict[str, Any]) -> None:
        loss = self._loss(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _MOST_OF_A_GRADIENT)
        optimizer.step()
        model.zero_grad()

    def _loss(self, model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
        outputs = self._forward(model, batch)
        loss: torch.Tensor = outputs["loss"]
        return loss

    def _forward(self, model: nn.Module, batch: dict[str, Any]) -> Any:
        if self._autocast is None:
            return model(**batch)
        return _in_float32(self._cast(model, batch))

    def _cast(self, model: nn.Module, batch: dict[str, Any]) -> Any:
        with torch.autocast("cuda", dtype=self._autocast):
            return model(**batch)


def _in_float32(outputs: Any) -> Any:
    """Whatever a model gives back in 16 bit, as accelerate has it under autocast."""
    return type(outputs)({name: _one_in_float32(value) for name, value in outputs.items()})


def _one_in_float32(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_one_in_float32(one) for one in value)
    is_half = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if is_half else value
