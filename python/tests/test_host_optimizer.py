"""Steps on the host give what steps on the device give."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import plimsoll
from plimsoll.applying.host_optimizer import HostOptimizer


def net(dtype=torch.float32):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).to(dtype)


def train(model, optimizer, steps=4, schedule=None):
    torch.manual_seed(2)
    for _ in range(steps):
        x = torch.randn(16, 8, dtype=next(model.parameters()).dtype)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, 0.01, betas=(0.8, 0.9), weight_decay=0.1),
        lambda p: torch.optim.Adam(p, 0.01),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        lambda p: torch.optim.RMSprop(p, 0.01),
    ],
)
def test_same_weights(make):
    plain, ours = net(), net()
    theirs = train(plain, make(plain.parameters()))
    mine = train(ours, HostOptimizer(make(ours.parameters())))
    for a, b in zip(mine, theirs):
        torch.testing.assert_close(a, b)


def test_weights_in_bf16_are_stepped_in_fp32():
    model = net(torch.bfloat16)
    optimizer = HostOptimizer(torch.optim.AdamW(model.parameters(), 1e-4))
    before = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, 50)
    masters = [p for group in optimizer.inner.param_groups for p in group["params"]]
    for now, master in zip(model.parameters(), masters):
        assert master.dtype is torch.float32
        assert torch.equal(now, master.to(torch.bfloat16))
    # Steps of 1e-4 would be lost one by one beside weights of 0.3.
    assert any(not torch.equal(old, now) for old, now in zip(before, model.parameters()))


def test_schedulers_and_checkpoints():
    plain, ours = net(), net()
    for_plain = torch.optim.AdamW(plain.parameters(), 0.01)
    for_ours = HostOptimizer(torch.optim.AdamW(ours.parameters(), 0.01))
    train(plain, for_plain, 3, torch.optim.lr_scheduler.ExponentialLR(for_plain, 0.5))
    train(ours, for_ours, 3, torch.optim.lr_scheduler.ExponentialLR(for_ours, 0.5))
    # Either loads what the other saved.
    resumed = net()
    resumed.load_state_dict(ours.state_dict())
    optimizer = HostOptimizer(torch.optim.AdamW(resumed.parameters(), 0.01))
    optimizer.load_state_dict(copy.deepcopy(for_plain.state_dict()))
    assert optimizer.param_groups[0]["lr"] == for_plain.param_groups[0]["lr"]
    for a, b in zip(train(resumed, optimizer), train(plain, for_plain)):
        torch.testing.assert_close(a, b)


def test_weights_that_somebody_loads_are_taken_over():
    model, other = net(), net()
    optimizer = HostOptimizer(torch.optim.SGD(model.parameters(), 0.1))
    train(model, optimizer, 1)
    model.load_state_dict(other.state_dict())
    mine = train(model, optimizer, 1)
    theirs = train(other, torch.optim.SGD(other.parameters(), 0.1), 1)
    for a, b in zip(mine, theirs):
        torch.testing.assert_close(a, b)


def test_apply():
    value = {"name": "adamw", "form": "host", "in_backward": False}
    lever = {"lever": "optimizer", "set_to": "adamw:host", "value": value}
    way = {"batch": 8, "passes": 1, "levers": [lever]}
    model = net()
    applied = plimsoll.apply(
        {"schema": "plimsoll.plan/1", "ways": [way]},
        model,
        torch.optim.AdamW(model.parameters(), 0.01, weight_decay=0.3),
    )
    assert isinstance(applied.optimizer, HostOptimizer) and not applied.not_set
    assert "AdamW (host)" in applied.done[0] and "on the host" in applied.done[0]
    assert applied.optimizer.param_groups[0]["weight_decay"] == 0.3
