"""Lines that read or change gradients between a backward and the optimizer's step."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import plimsoll  # noqa: E402


def uses(step: Any, **options: Any) -> list[str]:
    """The functions that use gradients, of a capture whose steps are these."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    captured = plimsoll.capture(
        model,
        options.pop("optimizer", lambda parameters: torch.optim.AdamW(parameters)),
        lambda batch: torch.randn(batch, 8),
        train_step=step,
        **options,
    )
    lines = captured.document["variants"][0]["gradients_used"]
    return [line.split(" in ")[1] for line in lines]


def trained(use: Any, after: Any = lambda model: None, set_to_none: bool = True) -> list[str]:
    def step(model: Any, optimizer: Any, batch: Any) -> None:
        optimizer.zero_grad(set_to_none=set_to_none)
        model(batch).mean().backward()
        use(model)
        optimizer.step()
        after(model)

    return uses(step)


def clips(model: Any) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def clips_values(model: Any) -> None:
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)


def logs_norms(model: Any) -> None:
    [float(p.grad.norm()) for p in model.parameters()]


def copies_to_host(model: Any) -> None:
    [p.grad.cpu() for p in model.parameters()]


def averages(model: Any) -> None:
    for p in model.parameters():
        p.grad /= 2


def replaces(model: Any) -> None:
    for p in model.parameters():
        p.grad = p.grad.clamp(-1, 1)


def steps_itself(model: Any) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.grad, alpha=-0.1)


@pytest.mark.parametrize(
    "use",
    [clips, clips_values, logs_norms, copies_to_host, averages, replaces, steps_itself],
)
def test_what_uses_gradients_is_named(use: Any) -> None:
    name = "<listcomp>" if use in (logs_norms, copies_to_host) else use.__name__
    assert set(trained(use)) <= {name, use.__name__} and trained(use)


def nothing(model: Any) -> None:
    pass


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_plain_loop_uses_none(set_to_none: bool) -> None:
    assert trained(nothing, set_to_none=set_to_none) == []


def test_what_reads_them_after_the_step_needs_them_too() -> None:
    assert trained(nothing, after=clips) == ["clips"]


def test_hooks_of_the_backward_see_gradients_as_before() -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> None:
        for p in model.parameters():
            p.register_hook(lambda gradient: gradient * 2)
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert uses(step) == []


def test_own_zeroing_is_no_use() -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> None:
        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()
        model(batch).mean().backward()
        optimizer.step()

    assert uses(step) == []


def test_two_optimizers() -> None:
    def step(model: Any, optimizers: Any, batch: Any) -> None:
        model(batch).mean().backward()
        optimizers[0].step()
        clips(model[1])
        optimizers[1].step()
        for optimizer in optimizers:
            optimizer.zero_grad()

    def make(parameters: Any) -> Any:
        weights = list(parameters)
        return [torch.optim.SGD(weights[:2], lr=0.1), torch.optim.SGD(weights[2:], lr=0.1)]

    assert uses(step, optimizer=make) == ["clips"]


def test_a_gradient_scaler() -> None:
    captured = plimsoll.capture(
        torch.nn.Linear(8, 2),
        lambda parameters: torch.optim.AdamW(parameters),
        lambda batch: torch.randn(batch, 8),
        lambda model, batch: model(batch).mean(),
        precisions=["amp_fp16"],
    )
    plain, scaled = captured.document["variants"]
    assert plain["gradients_used"] == []
    assert scaled["gradients_used"] == ["the training loop"]
