"""The loss in chunks is that of F.cross_entropy, and whoever else reads the logits gets them."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional

import plimsoll
from plimsoll.applying.deferred_logits import ChunkedHead, DeferredLogits, defer

WIDTH, CLASSES = 16, 50


def tensors(dtype=torch.float32, bias=False):
    torch.manual_seed(1)
    hidden = torch.randn(3, 7, WIDTH, dtype=dtype, requires_grad=True)
    weight = torch.randn(CLASSES, WIDTH, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, CLASSES, (3, 7))
    labels[0, :3] = -100
    return hidden, weight, labels, torch.randn(CLASSES, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("chunks", [1, 4, 100])
def test_same_loss_and_gradients(chunks, reduction, bias):
    hidden, weight, labels, b = tensors(torch.float64)
    inputs = [hidden, weight, *([b] if bias else [])]
    b = b if bias else None
    plain = F.cross_entropy(
        F.linear(hidden, weight, b).flatten(0, 1), labels.flatten(), reduction=reduction
    )
    ours = plimsoll.chunked_cross_entropy(
        hidden, weight, labels, b, chunks=chunks, reduction=reduction
    )
    torch.testing.assert_close(ours, plain)
    for mine, theirs in zip(
        torch.autograd.grad(3 * ours, inputs), torch.autograd.grad(3 * plain, inputs)
    ):
        torch.testing.assert_close(mine, theirs)


def test_frozen_weights_want_no_gradient():
    hidden, weight, labels, _ = tensors()
    weight = weight.detach()
    plimsoll.chunked_cross_entropy(hidden, weight, labels).backward()
    assert hidden.grad is not None and weight.grad is None


def test_gradients_are_handed_out_once():
    hidden, weight, labels, _ = tensors()
    loss = plimsoll.chunked_cross_entropy(hidden, weight, labels)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="handed out"):
        loss.backward()


def test_shapes_that_do_not_go_together():
    hidden, weight, labels, _ = tensors()
    with pytest.raises(ValueError, match="do not go with"):
        plimsoll.chunked_cross_entropy(hidden, weight, labels[:, 1:])


class Tied(nn.Module):
    """As in GPT-2: the head's weight is that of the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.body(self.embedding(ids)).tanh())


def shifted_loss(model, ids):
    """As older models of transformers have it."""
    logits = model(ids).float()[..., :-1, :].contiguous()
    return F.cross_entropy(logits.view(-1, logits.size(-1)), ids[..., 1:].reshape(-1))


def gradients(model, loss, ids):
    value = loss(model, ids)
    value.backward()
    return value.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("autocast", [False, True])
def test_a_models_own_loss_takes_it_in_chunks(monkeypatch, autocast):
    torch.manual_seed(2)
    model, ids = Tied(), torch.randint(0, CLASSES, (4, 9))
    chunked = copy.deepcopy(model)
    assert defer(chunked, 4) == "head"
    assert chunked.head.weight is chunked.embedding.weight
    assert chunked.state_dict().keys() == model.state_dict().keys()
    monkeypatch.setattr(DeferredLogits, "whole", None)  # nobody asks for all of them
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        mine, ours = gradients(chunked, shifted_loss, ids)
        theirs_loss, theirs = gradients(model, shifted_loss, ids)
    close = {"rtol": 0.05, "atol": 0.01} if autocast else {}
    torch.testing.assert_close(mine, theirs_loss, **close)
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name], grad, **close)


def test_flattened_logits_stay_in_chunks(monkeypatch):
    torch.manual_seed(2)
    model, ids = Tied(), torch.randint(0, CLASSES, (4, 9))
    theirs = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    defer(model, 4)
    assert model(ids).flatten().shape == (4 * 9 * CLASSES,)  # rows and classes in one
    monkeypatch.setattr(DeferredLogits, "whole", None)
    for logits in (model(ids).flatten(0, 1), torch.flatten(model(ids), end_dim=-2)):
        torch.testing.assert_close(F.cross_entropy(logits, ids.flatten()), theirs)


def test_whoever_else_reads_the_logits_gets_them():
    torch.manual_seed(2)
    model, ids = Tied(), torch.randint(0, CLASSES, (4, 9))
    whole = model(ids)
    defer(model, 4)
    logits = model(ids)
    assert isinstance(logits, DeferredLogits) and logits.shape == whole.shape
    torch.testing.assert_close(logits.argmax(-1), whole.argmax(-1))
    torch.testing.assert_close(logits.softmax(-1) * 2, whole.softmax(-1) * 2)
    torch.testing.assert_close(logits[..., :7], whole[..., :7])
    torch.testing.assert_close(logits.transpose(1, 2), whole.transpose(1, 2))
    smooth = F.cross_entropy(logits.view(-1, CLASSES), ids.view(-1), label_smoothing=0.1)
    torch.testing.assert_close(
        smooth, F.cross_entropy(whole.view(-1, CLASSES), ids.view(-1), label_smoothing=0.1)
    )
    with torch.no_grad():
        assert not isinstance(model(ids), DeferredLogits)


def test_apply_says_what_it_did_and_what_it_could_not():
    lever = {"lever": "loss", "set_to": "chunked:4", "value": {"chunks": 4}}
    way = {"batch": 8, "passes": 1, "levers": [lever]}
    document = {"schema": "plimsoll.plan/1", "ways": [way]}
    model = Tied()
    applied = plimsoll.apply(document, model)
    assert isinstance(model.head, ChunkedHead) and model.head.chunks == 4
    assert "`head`" in applied.done[0] and not applied.left_to_you
    other = nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 4))  # not the widest, but the named one
    lever["value"] = {"chunks": 4, "layers": ["1"]}
    assert "`1`" in plimsoll.apply(document, other).done[0]
    assert isinstance(other[1], ChunkedHead) and not isinstance(other[0], ChunkedHead)
    lever["value"] = {"chunks": 4}
    unclear = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    left = plimsoll.apply(document, unclear).left_to_you
    assert "plimsoll.chunked_cross_entropy(hidden, head.weight, labels, chunks=4)" in left[0]
