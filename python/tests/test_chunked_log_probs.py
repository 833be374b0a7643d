"""Log-probabilities and entropies in chunks are those of the whole logits."""

from __future__ import annotations

import copy

import pytest
from program_here import needs_program

torch = pytest.importorskip("torch")
F = torch.nn.functional

import plimsoll
from plimsoll.applying.deferred_logits import DeferredLogits

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


class Policy(torch.nn.Module):
    """Large enough for the logits to be what a step takes most for."""

    def __init__(self, bias):
        super().__init__()
        self.embedding = torch.nn.Embedding(16384, 64)
        self.norm = torch.nn.LayerNorm(64)
        self.head = torch.nn.Linear(64, 16384, bias=bias)

    def states(self, ids):
        return self.norm(self.embedding(ids))

    def forward(self, ids):
        return self.head(self.states(ids))


def of_log_softmax(logits, labels):
    return F.log_softmax(logits, -1).gather(-1, labels[..., None])[..., 0]


def of_logsumexp(logits, labels):
    rows = torch.stack([torch.logsumexp(row, -1) for row in logits])
    return logits.gather(-1, labels[..., None])[..., 0] - rows


def row_by_row(logits, labels):
    return torch.stack([of_log_softmax(*row) for row in zip(logits, labels)])


def clipped(own, spread=None):
    """A loss of reinforcement learning."""
    ratio = torch.exp(own - own.detach())
    loss = -torch.minimum(ratio, ratio.clamp(0.8, 1.2)).mean()
    return loss if spread is None else loss - 0.01 * spread.mean()


def a_capture(path, loss, dtype=torch.float32, bias=False, change=lambda model: None):
    model = Policy(bias).to(dtype)
    change(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plimsoll.capture(model, optimizer, lambda n: torch.randint(0, 16384, (n, 129)), loss, path=path)
    return str(path)


def as_predicted(path, **flags):
    document = plimsoll.predict(path, batch=32, gpu="H200", **flags).document
    return document["allocated"], document["gpu_busy_us"]


IN_CHUNKS = {"loss": "chunked:8"}
FORMS = [
    (of_log_softmax, {"temperature": 0.7}),
    pytest.param(of_logsumexp, {"autocast": True}, marks=pytest.mark.nightly),
    pytest.param(row_by_row, {"dtype": torch.bfloat16}, marks=pytest.mark.nightly),
    (of_log_softmax, {"dtype": torch.bfloat16, "entropy": True, "bias": True}),
]


@needs_program
@pytest.mark.parametrize(("form", "how"), FORMS)
def test_the_lever_is_what_a_capture_of_the_function_is(tmp_path, form, how):
    temperature, entropy = how.get("temperature", 1.0), how.get("entropy", False)
    bias, dtype = how.get("bias", False), how.get("dtype", torch.float32)

    def autocast():
        return torch.autocast("cuda", torch.bfloat16, enabled=how.get("autocast", False))

    def plain(model, ids):
        with autocast():
            logits = model(ids)[:, :-1].float() if entropy else model(ids)[:, :-1]
            if temperature != 1:
                logits = logits / temperature
            spread = None
            if entropy:
                logs = F.log_softmax(logits, -1)
                spread = -(logs.exp() * logs).sum(-1)
            return clipped(form(logits, ids[:, 1:]), spread)

    def called(model, ids):
        with autocast():
            hidden, head = model.states(ids)[:, :-1], model.head
            how = {"temperature": temperature, "entropy": entropy}
            own = plimsoll.chunked_log_probs(hidden, head.weight, ids[:, 1:], head.bias, **how)
            return clipped(*own) if entropy else clipped(own)

    plainly = a_capture(tmp_path / "plain.step.json.gz", plain, dtype, bias)
    by_hand = a_capture(tmp_path / "called.step.json.gz", called, dtype, bias)
    lever, busy = as_predicted(plainly, set=IN_CHUNKS)
    function, busy_of_function = as_predicted(by_hand)
    assert lever == pytest.approx(function, rel=0.001)
    assert busy == pytest.approx(busy_of_function, rel=0.02)
    assert lever < as_predicted(plainly)[0] / 2


class Preferences(torch.nn.Module):
    """A policy beside a reference that is not trained."""

    def __init__(self):
        super().__init__()
        self.policy, self.reference = Policy(False), Policy(False).requires_grad_(False)


def of_preferences(log_probs):
    def loss(model, better, worse):
        def sums(part):
            return [log_probs(part, ids).sum(-1) for ids in (better, worse)]

        policy = sums(model.policy)
        with torch.no_grad():
            reference = sums(model.reference)
        margin = (policy[0] - reference[0]) - (policy[1] - reference[1])
        return -F.logsigmoid(0.1 * margin).mean()

    return loss


def written_plainly(model, ids):
    return of_log_softmax(model(ids)[:, :-1], ids[:, 1:])


def in_chunks(model, ids):
    return plimsoll.chunked_log_probs(model.states(ids)[:, :-1], model.head.weight, ids[:, 1:])


def pairs(n):
    return torch.randint(0, 16384, (n, 129)), torch.randint(0, 16384, (n, 129))


@needs_program
def test_a_policy_beside_its_reference(tmp_path):
    def captured(name, log_probs):
        model, path = Preferences(), tmp_path / f"{name}.step.json.gz"
        optimizer = torch.optim.SGD(model.policy.parameters(), lr=0.1)
        plimsoll.capture(model, optimizer, pairs, of_preferences(log_probs), path=path)
        return str(path)

    plainly = captured("plain", written_plainly)
    lever, busy = as_predicted(plainly, set=IN_CHUNKS)
    function, busy_of_function = as_predicted(captured("called", in_chunks))
    assert lever == pytest.approx(function, rel=0.001)
    assert busy == pytest.approx(busy_of_function, rel=0.02)
    assert lever < as_predicted(plainly)[0] / 2
    found = plimsoll.plan(plainly, gpu="H200", global_batch=64, budget="250MiB").document
    (loss,) = [lever for lever in found["ways"][0]["levers"] if lever["lever"] == "loss"]
    assert loss["value"] == {
        "chunks": 8,
        "layers": ["policy.head", "reference.head"],
        "kinds": ["log_probs"],
        "by_hand": False,
        "without_gradient": True,
    }
    assert "plimsoll.chunked_log_probs(" in " ".join(loss["code"])
    model = Preferences()
    applied = plimsoll.apply({**found, "ways": [{**found["ways"][0], "levers": [loss]}]}, model)
    assert "`policy.head` and `reference.head`" in applied.done[0]
    theirs = Preferences()
    theirs.load_state_dict(model.state_dict())
    batch = pairs(2)
    values = [of_preferences(written_plainly)(each, *batch) for each in (model, theirs)]
    torch.testing.assert_close(*values)
    for value in values:
        value.backward()
    for mine, other in zip(model.policy.parameters(), theirs.policy.parameters()):
        torch.testing.assert_close(mine.grad, other.grad)
    assert all(p.grad is None for p in model.reference.parameters())


def plan_with(**value):
    lever = {"lever": "loss", "set_to": "chunked:4", "value": {"chunks": 4, **value}}
    return {
        "schema": "plimsoll.plan/1",
        "ways": [{"batch": 8, "passes": 1, "levers": [lever]}],
    }


@pytest.mark.parametrize("autocast", [False, True])
def test_a_loss_as_it_is_written_takes_them_in_chunks(monkeypatch, autocast):
    torch.manual_seed(3)
    model, ids = Policy(True), torch.randint(0, 16384, (2, 9))
    chunked = copy.deepcopy(model)
    plimsoll.apply(plan_with(layers=["head"], kinds=["log_probs"]), chunked)
    monkeypatch.setattr(DeferredLogits, "whole", None)  # nobody asks for all of them

    def own(model):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(ids)
        logs = (logits[:, :-1].to(torch.float32) / 0.7).log_softmax(dim=-1)  # outside of it
        return torch.gather(logs, 2, ids[:, 1:].unsqueeze(2)).squeeze(2)

    mine, theirs = own(chunked), own(model)
    close = {"rtol": 0.05, "atol": 0.05} if autocast else {}
    torch.testing.assert_close(mine, theirs, **close)
    clipped(mine).backward()
    clipped(theirs).backward()
    torch.testing.assert_close(chunked.head.weight.grad, model.head.weight.grad, **close)


def test_logits_that_were_changed_in_place_are_read_as_they_are():
    torch.manual_seed(3)
    model, ids = Policy(False), torch.randint(0, 16384, (2, 9))
    chunked = copy.deepcopy(model)
    plimsoll.apply(plan_with(layers=["head"], kinds=["log_probs"]), chunked)
    found = []
    for each in (chunked, model):
        logits = each(ids)
        logits.div_(0.5)
        found.append(of_log_softmax(logits[:, :-1], ids[:, 1:]))
    torch.testing.assert_close(*found)


def test_what_apply_leaves_to_the_user():
    model = Policy(False)
    left = plimsoll.apply(plan_with(layers=["head"], kinds=["log_probs"], by_hand=True), model)
    assert "plimsoll.chunked_log_probs(" in left.left_to_you[0] and not left.done
    assert type(model.head) is torch.nn.Linear
