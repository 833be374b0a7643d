"""Attention and recurrent layers, which stand for kernels that the build may not have."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional

from step_checks import Checked  # noqa: E402

import plimsoll  # noqa: E402
from plimsoll.world import phantom  # noqa: E402


class Attention(nn.Module):
    """Heads of 8, laid out as (batch, sequence, head, width) and seen as (batch, head, ...)."""

    def __init__(self, heads=4, key_heads=4, mask=None, function=F.scaled_dot_product_attention):
        super().__init__()
        self.query = nn.Linear(16, heads * 8)
        self.key = nn.Linear(16, key_heads * 8)
        self.options = {"enable_gqa": True} if heads != key_heads else {}
        self.bias = nn.Parameter(torch.zeros(1, heads, 6, 6)) if mask == "learned" else None
        self.function = [function]

    def forward(self, x):
        query, key = (
            f(x).view(x.shape[0], x.shape[1], -1, 8).transpose(1, 2) for f in (self.query, self.key)
        )
        return self.function[0](query, key, key, attn_mask=self.bias, **self.options)


def attention_calls(model, **options):
    made = plimsoll.capture(
        model,
        None,
        lambda n: torch.randn(n, 6, 16, device="cuda"),
        lambda m, x: m(x).sum(),
        steps=1,
        **options,
    )
    step = Checked(made.document)
    return step, *(
        next(call for name, call in step.calls() if name == f"plimsoll.attention{end}")
        for end in ("", "_backward")
    )


TURNED, DENSE = [192, 8, 32, 1], [192, 48, 8, 1]


@pytest.mark.parametrize(
    "gpu, dtype, options, strides",
    [
        ("H200", None, {}, TURNED),  # memory-efficient
        ("H200", torch.bfloat16, {}, TURNED),  # cuDNN, as the query lies
        ("H200", None, {"key_heads": 2}, DENSE),  # mathematical
        ("H200", torch.float16, {"mask": "learned"}, TURNED),
        ("RTX 3090", torch.float16, {}, TURNED),  # flash
    ],
)
def test_layout_follows_the_kernel(gpu, dtype, options, strides):
    if "key_heads" in options and phantom.release(torch.__version__) < (2, 5):
        pytest.skip("grouped heads came with torch 2.5")
    step, forward, _ = attention_calls(lambda: Attention(**options), gpu=gpu, autocast=dtype)
    output, logsumexp = forward[7]
    name = str(dtype or torch.float32)[6:]
    assert step.layout(output) == [name, [[2, 3], 4, 6, 8], strides]
    assert step.layout(logsumexp)[0] == "float32"
    assert step.layout(forward[5][0])[0] == name, "autocast comes first"
    assert len(forward[8]) == 2


def test_backward_says_what_is_wanted():
    step, _, backward = attention_calls(lambda: Attention(mask="learned"))
    assert backward[5][9] == [True, True, True, True]
    assert len(backward[7]) == 4
    frozen = Attention()
    frozen.query.requires_grad_(False)
    step, _, backward = attention_calls(frozen)
    assert backward[5][9] == [False, True, True, False]
    assert step.strings[backward[2]].endswith("in forward")
    assert "aten.zeros.default" not in step.ops(), "none for the gradient of logsumexp"


def test_whatever_name_it_is_called_by():
    for function in (
        F.scaled_dot_product_attention,
        torch._C._nn.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention,
    ):
        assert attention_calls(functools.partial(Attention, function=function))
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    assert attention_calls(encoder)


def test_the_users_choice_of_kernel():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def mathematical(*args, **kwargs):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(*args, **kwargs)

    step, forward, _ = attention_calls(
        lambda: Attention(function=mathematical), autocast=torch.bfloat16
    )
    assert step.layout(forward[7][0])[2] == DENSE


@pytest.mark.parametrize(
    "kind, dtype",
    [
        ("LSTM", None),
        ("GRU", torch.float16),
        *(
            pytest.param(kind, dtype, marks=pytest.mark.nightly)
            for kind, dtype in [
                ("LSTM", torch.float16),
                ("GRU", None),
                ("RNN", None),
                ("RNN", torch.float16),
            ]
        ),
    ],
)
def test_recurrent_layers(kind, dtype):
    made = plimsoll.capture(
        lambda: getattr(nn, kind)(8, 16, 2, batch_first=True, bidirectional=True),
        lambda p: torch.optim.SGD(p, 0.1),
        lambda n: torch.randn(n, 5, 8),
        lambda m, x: m(x)[0].float().mean(),
        autocast=dtype,
    )
    step = Checked(made.document)
    forward = next(call for name, call in step.calls() if name == "aten._cudnn_rnn.default")
    assert step.layout(forward[7][0])[1:] == [[[2, 3], 5, 32], [32, [64, 96], 1]]
    backward = next(
        call for name, call in step.calls() if name.startswith("aten._cudnn_rnn_backward")
    )
    assert len({told["t"][0] for told in backward[7][-16:]}) == 1, "weight gradients in one piece"
    assert len(step.labelled("gradient")) == (3 if dtype is None else 16 * 3)


class Unrolled(nn.Module):
    """A cell, step by step."""

    def __init__(self, cell, bias=True):
        super().__init__()
        self.cell = getattr(nn, cell)(8, 16, bias=bias)

    def forward(self, x):
        state = None
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return state[0] if isinstance(state, tuple) else state


def cell_calls(cell, bias=True, **settings):
    made = plimsoll.capture(
        lambda: Unrolled(cell, bias),
        lambda p: torch.optim.SGD(p, 0.1),
        lambda n: torch.randn(n, 5, 8),
        lambda m, x: m(x).float().mean(),
        **settings,
    )
    step = Checked(made.document)
    found = [(name, call) for name, call in step.calls() if "_thnn_fused" in name]
    assert len(found) == 2 * 5 * 3
    forward, backward = (
        [call for name, call in found if ("backward" in name) == later] for later in (False, True)
    )
    return [[step.layout(told) for told in calls[0][7]] for calls in (forward, backward)]


@pytest.mark.parametrize("dtype, told", [(None, "float32"), (torch.bfloat16, "bfloat16")])
def test_a_gru_cell_keeps_five_columns_for_each_hidden_value(dtype, told):
    forward, backward = cell_calls("GRUCell", autocast=dtype)
    assert [layout[1] for layout in forward] == [[[2, 3], 16], [[2, 3], 80]]
    gates = [[2, 3], 48]
    assert [layout[1] for layout in backward] == [gates, gates, [[2, 3], 16], [48], [48]]
    assert {layout[0] for layout in (*forward, *backward)} == {told}


@pytest.mark.parametrize("bias", [True, False])
def test_an_lstm_cell_keeps_its_four_gates(bias):
    forward, backward = cell_calls("LSTMCell", bias)
    assert [layout[1] for layout in forward] == [[[2, 3], 16], [[2, 3], 16], [[2, 3], 64]]
    biases = [[64]] if bias else []
    assert [layout[1] for layout in backward] == [[[2, 3], 64], [[2, 3], 16], *biases]


@pytest.mark.parametrize("cell", ["GRUCell", "LSTMCell"])
def test_a_cell_is_differentiated_twice(cell):
    """As a penalty on gradients does."""

    def loss(model, x):
        x.requires_grad_()
        out = model(x).sum()
        (grad,) = torch.autograd.grad(out, x, create_graph=True)
        return out + grad.square().sum()

    made = plimsoll.capture(
        lambda: Unrolled(cell),
        lambda p: torch.optim.SGD(p, 0.1),
        lambda n: torch.randn(n, 2, 8),
        loss,
    )
    names = [name for name, _ in Checked(made.document).calls()]
    assert any(name.startswith("aten._thnn_fused") for name in names)
    assert "aten.sigmoid_backward.default" in names
