"""`nn.GRUCell` and `nn.LSTMCell`: one kernel behind two products, which torch does not describe
without data.

What the CUDA kernels make is told here (`ATen/native/cuda/RNN.cu`), for every floating type alike;
autograd and autocast do the rest as they do on a GPU. The backward that can be differentiated again
is made of operators that torch knows.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Optional

import torch

_Maybe = Optional[torch.Tensor]
#: Columns that a GRU's kernel keeps for the backward, for each hidden value.
_KEPT_BY_GRU = 5
_GATES_OF_GRU = 3


@contextlib.contextmanager
def cells_without_data() -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, kernel in _KERNELS.items():
                # Some releases describe an LSTM's cell themselves, and allow no other description.
                with contextlib.suppress(RuntimeError):
                    library.impl(name, kernel, "Meta")
        yield
    finally:
        library._destroy()


def _dense(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


def _gru(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: _Maybe = None,
    hidden_bias: _Maybe = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> hy, what the backward needs"""
    return _dense(hx), hx.new_empty((hx.shape[0], hx.shape[1] * _KEPT_BY_GRU))


def _gru_backward(
    grad_hy: torch.Tensor, kept: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, _Maybe, _Maybe]:
    """-> the gradients of both products, of hx, of both biases"""
    rows, columns = kept.shape
    gates = columns // _KEPT_BY_GRU * _GATES_OF_GRU
    of_products = [kept.new_empty((rows, gates)) for _ in range(2)]
    of_biases = [kept.new_empty(gates) if has_bias else None for _ in range(2)]
    return of_products[0], of_products[1], _dense(grad_hy), of_biases[0], of_biases[1]


def _lstm(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: _Maybe = None,
    hidden_bias: _Maybe = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> hy, cy, what the backward needs"""
    return _dense(cx), _dense(cx), _dense(input_gates)


def _lstm_backward(
    grad_hy: _Maybe,
    grad_cy: _Maybe,
    cx: torch.Tensor,
    cy: torch.Tensor,
    kept: torch.Tensor,
    has_bias: bool,
) -> tuple[_Maybe, _Maybe, _Maybe]:
    """-> the gradient of both products, of cx, of both biases"""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    return _dense(kept), _dense(cx), kept.new_empty(kept.shape[1]) if has_bias else None


_KERNELS = {
    "_thnn_fused_gru_cell": _gru,
    "_thnn_fused_gru_cell_backward": _gru_backward,
    "_thnn_fused_lstm_cell": _lstm,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_backward,
}
