"""Log-probabilities and entropies in chunks are those of the whole logits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import plimsoll

WIDTH, CLASSES = 16, 50


def tensors(dtype=torch.float64, ignored=True):
    torch.manual_seed(1)
    hidden = torch.randn(3, 7, WIDTH, dtype=dtype, requires_grad=True)
    weight = torch.randn(CLASSES, WIDTH, dtype=dtype, requires_grad=True)
    bias = torch.randn(CLASSES, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, CLASSES, (3, 7))
    if ignored:
        labels[0, :3] = -100
    return hidden, weight, labels, bias


def plainly(hidden, weight, labels, bias, temperature=1.0):
    whole = F.log_softmax(F.linear(hidden, weight, bias) / temperature, dim=-1)
    counts = labels != -100
    own = whole.gather(-1, torch.where(counts, labels, 0)[..., None])[..., 0]
    return torch.where(counts, own, 0), torch.where(counts, -(whole.exp() * whole).sum(-1), 0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunks", [1, 4, 100])
def test_same_values_and_gradients(chunks, temperature, bias):
    hidden, weight, labels, b = tensors()
    inputs = [hidden, weight, *([b] if bias else [])]
    b = b if bias else None
    how = {"chunks": chunks, "temperature": temperature}
    plain = plainly(hidden, weight, labels, b, temperature)
    both = plimsoll.chunked_log_probs(hidden, weight, labels, b, entropy=True, **how)
    alone = plimsoll.chunked_log_probs(hidden, weight, labels, b, **how)
    torch.testing.assert_close(both, plain)
    torch.testing.assert_close(alone, plain[0])
    # What a clipped objective does with them, each token with a factor of its own.
    factor = torch.randn(labels.shape, dtype=hidden.dtype)
    losses = [(own * factor).sum() - 0.3 * (spread**2).mean() for own, spread in (both, plain)]
    for mine, theirs in zip(*(torch.autograd.grad(loss, inputs) for loss in losses)):
        torch.testing.assert_close(mine, theirs)
    again = plainly(hidden, weight, labels, b, temperature)[0]
    losses = [(own * factor).sum() for own in (alone, again)]
    for mine, theirs in zip(*(torch.autograd.grad(loss, inputs) for loss in losses)):
        torch.testing.assert_close(mine, theirs)


def test_a_second_backward_and_frozen_weights():
    hidden, weight, labels, _ = tensors()
    own = plimsoll.chunked_log_probs(hidden, weight.detach(), labels)
    own.sum().backward(retain_graph=True)
    once = hidden.grad.clone()
    own.sum().backward()
    torch.testing.assert_close(hidden.grad, 2 * once)
    assert weight.grad is None


def test_classes_that_cannot_come():
    hidden, weight, labels, bias = tensors(ignored=False)
    with torch.no_grad():
        bias[7] = -torch.inf
        labels[labels == 7] = 8
    own, spread = plimsoll.chunked_log_probs(hidden, weight, labels, bias, entropy=True)
    assert own.isfinite().all() and spread.isfinite().all()
    (own.sum() + 5 * spread.sum()).backward()
    assert hidden.grad.isfinite().all() and weight.grad.isfinite().all()
    assert (weight.grad[7] == 0).all()


def test_autocast_makes_the_products_only():
    hidden, weight, labels, _ = tensors(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        own = plimsoll.chunked_log_probs(hidden, weight, labels)
    assert own.dtype is torch.float32
    torch.testing.assert_close(own, plainly(hidden, weight, labels, None)[0], atol=0.2, rtol=0.05)
    own.sum().backward()
    assert hidden.grad.dtype is torch.float32


def test_half_precision_has_gradients_of_its_own_type():
    hidden, weight, labels, _ = tensors(torch.bfloat16)
    plimsoll.chunked_log_probs(hidden, weight, labels).sum().backward()
    assert hidden.grad.dtype is torch.bfloat16 and weight.grad.dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("how", "why"),
    [({"chunks": 0}, "0 chunks"), ({"temperature": 0.0}, "more than 0")],
)
def test_what_cannot_be(how, why):
    hidden, weight, labels, _ = tensors()
    with pytest.raises(ValueError, match=why):
        plimsoll.chunked_log_probs(hidden, weight, labels, **how)
    with pytest.raises(ValueError, match="do not go with"):
        plimsoll.chunked_log_probs(hidden, weight, labels[:, 1:])
