"""LSTM, GRU and plain recurrent layers, told as the cuDNN call that they are on a GPU.

A build of torch for the CPU alone cannot get that far: it looks for cuDNN's code behind the layer,
and no build knows the backward's results without data. What is told is `aten._cudnn_rnn` and its
backward, with their own arguments and results. The layers' weights lie in one piece of memory on a
GPU, unless they are bfloat16, and their gradients too. They get there by way of memory of their own
(FlatWeights).
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..events.event import Buffer, Call, Event, Free, Parameter
from ..events.recorder import Recorder

_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_LSTM = 2
# What cuDNN keeps for the backward, in elements for each element of the output; measured for the
# last two (research/operators.md 14).
_KEPT = {0: 1, 1: 1, 2: 5, 3: 6}


def flat_layers(model: torch.nn.Module) -> list[list[torch.nn.Parameter]]:
    """The weights of each recurrent layer that has them in one piece, in their order."""
    found = (list(m.parameters()) for m in model.modules() if isinstance(m, torch.nn.RNNBase))
    return [layer for layer in found if all(w.dtype is not torch.bfloat16 for w in layer)]


def layers_of(model: torch.nn.Module, recorder: Recorder) -> list[tuple[int, ...]]:
    """Their storages, where all of them are on the device."""
    layers = (tuple(map(recorder.number, layer)) for layer in flat_layers(model))
    return [layer for layer in layers if all(layer) and len(set(layer)) == len(layer)]


class FlatWeights:
    """When a layer comes to the device, each of its weights does; then all are copied into one
    piece, and the first copies go."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        #: By storage: those of the same layer, in the order in which they come.
        self._layer_of: dict[int, tuple[int, ...]] = {}
        self._told: dict[tuple[int, ...], list[Parameter | Buffer]] = {}
        self._copies: dict[tuple[int, ...], list[int]] = {}

    def together(self, layer: tuple[int, ...]) -> None:
        self._layer_of.update({number: layer for number in layer})

    def events(self, made: Call, tensor: Parameter | Buffer) -> list[Event]:
        """For the call that made a tensor of the model."""
        layer = self._layer_of.get(tensor.storage)
        if layer is None:
            return [tensor]
        copy = self._recorder.new_number()
        told = self._told.setdefault(layer, [])
        copies = self._copies.setdefault(layer, [])
        told.append(tensor)
        copies.append(copy)
        results = [result._replace(storage=copy) for result in made.results]
        new = [one._replace(storage=copy) for one in made.made]
        first = Call(made.op, made.place, made.args, made.kwargs, results, new)
        if len(told) < len(layer):
            return [first]
        piece = len(self._told)
        for one in told:
            if isinstance(one, Parameter):
                one.piece = piece
        return [first, *told, *map(Free, copies)]


@contextlib.contextmanager
def recurrent_as_one_call(recorder: Recorder) -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, mode in _MODES.items():
                kernel = functools.partial(_run, recorder, mode)
                library.impl(f"{name}.input", kernel, "AutogradCUDA")
                packed = functools.partial(_run_packed, recorder, mode)
                library.impl(f"{name}.data", packed, "AutogradCUDA")
        yield
    finally:
        library._destroy()


@dataclass(frozen=True)
class _Layer:
    recorder: Recorder
    mode: int
    hidden: int
    projected: int
    layers: int
    batch_first: bool
    dropout: float
    train: bool
    directions: int
    weights_per_layer: int
    #: Of packed sequences: how many there are. cuDNN gets that number for each step.
    packed: tuple[int, ...]


def _run_packed(
    recorder: Recorder,
    mode: int,
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    hx: Any,
    params: list[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> Any:
    batch = (hx[0] if mode == _LSTM else hx).shape[1]
    both = bidirectional
    return _run(
        recorder, mode, data, hx, params, has_biases, layers, dropout, train, both, False, (batch,)
    )


def _run(
    recorder: Recorder,
    mode: int,
    data: torch.Tensor,
    hx: Any,
    params: list[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    packed: tuple[int, ...] = (),
) -> Any:
    states = list(hx) if mode == _LSTM else [hx]
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        data, *states = (tensor.to(dtype) for tensor in (data, *states))
        params = [tensor.to(dtype) for tensor in params]
    hidden = params[1].shape[0] // {0: 1, 1: 1, 2: 4, 3: 3}[mode]
    out = states[0].shape[-1]
    per_layer = (4 if has_biases else 2) + (out != hidden)
    layer = _Layer(
        recorder,
        mode,
        hidden,
        out if out != hidden else 0,
        layers,
        batch_first,
        dropout,
        train,
        2 if bidirectional else 1,
        per_layer,
        packed,
    )
    cell = states[1] if mode == _LSTM else None
    with torch.autocast("cuda", enabled=False):
        made = _Recurrent.apply(layer, data, states[0], cell, *params)
    return made[:3] if mode == _LSTM else made[:2]


def _settings(layer: _Layer) -> list[Any]:
    return [
        layer.mode,
        layer.hidden,
        layer.projected,
        layer.layers,
        layer.batch_first,
        layer.dropout,
        layer.train,
        layer.directions == 2,
        list(layer.packed),
        None,
    ]


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        layer: _Layer,
        data: torch.Tensor,
        hx: torch.Tensor,
        cx: torch.Tensor | None,
        *weights: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        flat = data.dtype is not torch.bfloat16
        with layer.recorder.quiet():
            output = _output(layer, data, hx)
            hy = torch.empty_like(hx)
            cy = torch.empty_like(cx) if cx is not None else torch.empty(0, device="cuda")
            reserve = torch.empty(_reserve(layer, output), dtype=torch.uint8, device="cuda")
            size = sum(weight.numel() for weight in weights)
            packed = weights[0] if flat else torch.empty(size, dtype=data.dtype, device="cuda")
        layer.recorder.call(
            "aten._cudnn_rnn.default",
            [
                data,
                list(weights),
                layer.weights_per_layer,
                packed if flat else None,
                hx,
                cx,
                *_settings(layer),
            ],
            {},
            [output, hy, *([cy] if cx is not None else []), reserve, *([] if flat else [packed])],
        )
        ctx.layer = layer
        ctx.save_for_backward(cx, hx, data, *weights, output, reserve, packed)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(reserve, *([] if cx is not None else [cy]))
        return output, hy, cy, reserve

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad: torch.Tensor | None, grad_hy: Any, grad_cy: Any, _: Any
    ) -> tuple[torch.Tensor | None, ...]:
        layer: _Layer = ctx.layer
        cx, hx, data, *weights, output, reserve, packed = ctx.saved_tensors
        with layer.recorder.quiet():
            grads = [torch.empty_like(data), torch.empty_like(hx)]
            grads += [torch.empty_like(cx)] if cx is not None else []
            whole = torch.empty(
                sum(weight.numel() for weight in weights), dtype=data.dtype, device="cuda"
            )
            parts = whole.split([weight.numel() for weight in weights])
            pieces = [part.view(weight.shape) for part, weight in zip(parts, weights)]
        wanted = [
            ctx.needs_input_grad[1],
            ctx.needs_input_grad[2],
            ctx.needs_input_grad[3],
            any(ctx.needs_input_grad[4:]),
        ]
        layer.recorder.call(
            "aten._cudnn_rnn_backward.default",
            [
                data,
                list(weights),
                layer.weights_per_layer,
                packed,
                hx,
                cx,
                output,
                grad,
                grad_hy,
                grad_cy,
                *_settings(layer),
                reserve,
                wanted,
            ],
            {},
            [*grads, *pieces],
        )
        state_grads = (grads[1], grads[2] if cx is not None else None)
        made = (None, grads[0], *state_grads, *pieces)
        return tuple(g if want else None for g, want in zip(made, ctx.needs_input_grad))


def _output(layer: _Layer, data: torch.Tensor, hx: torch.Tensor) -> torch.Tensor:
    width = hx.shape[-1] * layer.directions
    if layer.packed:
        return torch.empty((data.shape[0], width), dtype=data.dtype, device="cuda")
    a, b = data.shape[:2]
    if not layer.batch_first:
        return torch.empty((a, b, width), dtype=data.dtype, device="cuda")
    # cuDNN works time first; what it gives back is turned, not copied.
    return torch.empty_strided(
        (a, b, width), (width, a * width, 1), dtype=data.dtype, device="cuda"
    )


def _reserve(layer: _Layer, output: torch.Tensor) -> int:
    cells = output.numel() // (output.shape[-1] // layer.hidden or 1) // layer.hidden * layer.hidden
    both = layer.directions
    kept = (
        cells
        * output.element_size()
        * (_KEPT[layer.mode] * layer.layers * both + both * (layer.layers - 1))
        + 256
    )
    if layer.dropout and layer.train:
        kept += cells * both // 4 * (layer.layers - 1)
    return kept if layer.train else 0
