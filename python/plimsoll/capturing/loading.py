"""How a model comes to the device whose weights are brought into 4 bits on the way, and what that
leaves behind: as transformers' from_pretrained, PEFT's prepare_model_for_kbit_training and
get_peft_model do it one after the other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..events.recorder import Recorder
from ..events.repeated import Layers, copies_of
from ..models.adapters import Linear4bit, Lora

_HALF = torch.bfloat16


def is_quantized(model: nn.Module) -> bool:
    return getattr(model, "is_loaded_in_4bit", False) is True and not _is_of_bitsandbytes(model)


def _is_of_bitsandbytes(model: nn.Module) -> bool:
    """Loaded by the library itself, in a script."""
    return any(type(module).__module__.startswith("bitsandbytes.") for module in model.modules())


def tell_loaded(recorder: Recorder, model: nn.Module, layers: Sequence[Layers]) -> None:
    """Tells of every tensor of the model, in the order in which they are made. `layers`: where it
    has few of its layers."""
    loading = _Loading(recorder, model, layers)
    loading.warm_up()
    loading.load()
    loading.widen()
    loading.adapt()


class _Loading:
    def __init__(self, recorder: Recorder, model: nn.Module, layers: Sequence[Layers]) -> None:
        self._recorder = recorder
        self._layers = layers
        self._model = model
        self._4bit = {n: m for n, m in model.named_modules() if isinstance(m, Linear4bit)}
        adapters = [n for n, m in model.named_modules() if isinstance(m, Lora)]
        self._adapted = {n: p for n, p in model.named_parameters() if _is_of(n, adapters)}
        parameters = dict(model.named_parameters())
        self._loaded = {n: p for n, p in parameters.items() if n not in self._adapted}
        #: What comes in 16 bit and becomes float32 afterwards.
        self._halves: dict[str, torch.Tensor] = {}

    def warm_up(self) -> None:
        """transformers asks for all of it in one piece, and gives that back: what follows lies in
        it."""
        count = 0
        for name, parameter in self._loaded.items():
            packed = name.removesuffix(".weight") in self._4bit
            size = parameter.numel() if packed else 2 * parameter.numel()
            count += size * (1 + sum(copies_of(name, layers) for layers in self._layers))
        self._taken((count,), torch.uint8)

    def load(self) -> None:
        """By their names. What goes into 4 bits is whole for a moment."""
        for name in sorted(self._loaded, key=_as_numbers):
            owner = name.removesuffix(".weight")
            layer = self._4bit.get(owner)
            if layer is not None:
                self._quantize(owner, layer)
            elif self._loaded[name].dtype == torch.float32:
                self._halves[name] = self._taken(tuple(self._loaded[name].shape), _HALF)
            else:
                self._recorder.model_tensor("parameter", name, self._loaded[name])
        for name, buffer in self._model.named_buffers():
            self._recorder.model_tensor("buffer", name, buffer)

    def _quantize(self, name: str, layer: Linear4bit) -> None:
        """In the order of bitsandbytes' quantize_4bit: scales come in float32, go without their
        mean, and then into 8 bits."""

        def tell(*parts: str) -> None:
            for part in parts:
                self._recorder.model_tensor("buffer", f"{name}.{part}", layer.get_buffer(part))

        blocks = tuple(layer.get_buffer("absmax").shape)
        whole = self._taken((layer.out_features, layer.in_features), _HALF)
        scales = self._taken(blocks, torch.float32)
        self._recorder.model_tensor("parameter", f"{name}.weight", layer.weight)
        tell("code", "offset")
        without_mean = self._taken(blocks, torch.float32)
        tell("absmax_of_scales", "absmax", "code_of_scales")
        del scales
        del without_mean
        del whole

    def widen(self) -> None:
        for name, parameter in self._loaded.items():
            if name in self._halves:
                self._recorder.model_tensor("parameter", name, parameter)
                del self._halves[name]

    def adapt(self) -> None:
        for name, parameter in self._adapted.items():
            self._recorder.model_tensor("parameter", name, parameter)

    def _taken(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        with self._recorder.quiet():
            made = torch.empty(shape, dtype=dtype, device="cuda")
        self._recorder.call("aten.empty.memory_format", [list(shape)], {}, [made])
        return made


def _is_of(name: str, adapters: list[str]) -> bool:
    return any(name.startswith((f"{one}.lora_A.", f"{one}.lora_B.")) for one in adapters)


def _as_numbers(name: str) -> list[Any]:
    """So that layer 10 comes after layer 9, and layers before words."""
    return [
        (0, int(word), "") if word.isdigit() else (1, 0, word) for word in re.split(r"\.", name)
    ]
