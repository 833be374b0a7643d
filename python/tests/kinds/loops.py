"""Kinds of training loops, in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import plimsoll

from . import (
    STEPS,
    Block,
    Gpt,
    adamw,
    capture,
    classify,
    kind,
    labelled,
    mlp,
    next_token,
    ops,
    rows,
    sgd,
    tokens,
)

Batch = tuple[torch.Tensor, torch.Tensor]


@kind("float16 autocast with a GradScaler made without a GPU", assumes="it is taken to be on")
def scaler_of_the_users() -> plimsoll.Capture:
    scaler = torch.amp.GradScaler("cuda")

    def step(model: Any, optimizer: Any, batch: Batch) -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = classify(model, *batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    off = dict(scaler.__dict__)
    made = capture(mlp, adamw, rows, train_step=step)
    assert ops(made).count("aten._amp_update_scale_.default") == STEPS
    assert scaler.__dict__ == off, "it is the user's again"
    return made


@kind("accumulation, GradScaler and clipping")
def accumulation() -> plimsoll.Capture:
    scaler = torch.amp.GradScaler("cuda")

    def step(model: Any, optimizer: Any, batch: Batch) -> None:
        for x, y in zip(batch[0].chunk(2), batch[1].chunk(2)):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = classify(model, x, y) / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    made = capture(mlp, adamw, rows, train_step=step, batches=(4, 6))
    assert ops(made).count("aten._amp_foreach_non_finite_check_and_unscale_.default") == STEPS
    return made


def compiled(model: Any = mlp, loss: Any = classify) -> plimsoll.Capture:
    made = capture(model, adamw, rows, loss)
    assert "inductor.fused_" in ops(made)
    return made


@kind("torch.compile(model)", nightly=True)  # test_compiled.py has it
def compiled_model() -> plimsoll.Capture:
    return compiled(model=torch.compile(mlp()))


@kind("a compiled submodule", nightly=True)
def compiled_submodule() -> plimsoll.Capture:
    model = mlp()
    model[0] = torch.compile(model[0])
    return compiled(model=model)


@kind("a compiled loss", nightly=True)
def compiled_loss() -> plimsoll.Capture:
    @torch.compile
    def loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, y)

    return compiled(loss=lambda model, x, y: loss(model(x), y))


def checkpointed(reentrant: bool) -> plimsoll.Capture:
    class Checkpointed(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(super().forward, x, use_reentrant=reentrant)

    made = capture(lambda: Gpt(1, Checkpointed), adamw, tokens, next_token)
    assert ops(made).count("plimsoll.attention") == 2 * STEPS, "once more in each backward"
    return made


@kind("activation checkpointing, not reentrant", nightly=True)
def checkpointing() -> plimsoll.Capture:
    return checkpointed(False)


@kind("activation checkpointing, reentrant", nightly=True)
def checkpointing_reentrant() -> plimsoll.Capture:
    return checkpointed(True)


@kind("save_on_cpu(pin_memory=True)")
def saved_on_the_host() -> plimsoll.Capture:
    def loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            return next_token(model, ids)

    return capture(Gpt, adamw, tokens, loss)


class Lora(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


@kind("LoRA", nightly=True)
def lora() -> plimsoll.Capture:
    def build() -> nn.Module:
        model = Gpt().requires_grad_(False)
        for block in model.blocks:
            block.qkv, block.out = Lora(block.qkv), Lora(block.out)
        return model

    def trained(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in parameters if p.requires_grad])

    made = capture(build, trained, tokens, next_token)
    assert labelled(made, "optimizer_state") == 2 * 4
    return made


@kind("a frozen backbone, learning rates by layer", nightly=True)
def frozen() -> plimsoll.Capture:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.Linear(64, 10))
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(
        [{"params": model[2].parameters(), "lr": 1e-5}, {"params": model[3].parameters()}]
    )
    made = capture(model, optimizer, rows, classify)
    assert labelled(made, "optimizer_state") == 2 * 4
    return made


@kind("EMA of the weights")
def averaged() -> plimsoll.Capture:
    class WithAverage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()
            self.ema = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.999))

    def step(model: Any, optimizer: Any, batch: Batch) -> None:
        classify(model.net, *batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.ema.update_parameters(model.net)

    made = capture(
        WithAverage, lambda p: adamw(q for q in p if q.requires_grad), rows, train_step=step
    )
    assert "aten._foreach_lerp_.Scalar" in ops(made)
    return made


@kind("Muon beside AdamW")
def muon() -> plimsoll.Capture:
    if not hasattr(torch.optim, "Muon"):
        import pytest

        pytest.skip("torch.optim.Muon came with torch 2.9")

    def split(parameters: Any) -> list[torch.optim.Optimizer]:
        every = list(parameters)
        matrices = [p for p in every if p.dim() == 2]
        return [torch.optim.Muon(matrices), adamw(p for p in every if p.dim() != 2)]

    made = capture(mlp, split, rows, classify)
    assert labelled(made, "optimizer_state") == 2 + 2 * 2
    return made


@kind("GAN with two optimizers", nightly=True)
def gan() -> plimsoll.Capture:
    class Gan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maker = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64))
            self.judge = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(), nn.Linear(64, 1))

    def step(model: Any, optimizers: list[Any], batch: Batch) -> None:
        real = batch[0]
        fake = model.maker(torch.randn(real.shape[0], 16, device=real.device))
        judge_loss = F.softplus(-model.judge(real)).mean()
        judge_loss = judge_loss + F.softplus(model.judge(fake.detach())).mean()
        judge_loss.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        F.softplus(-model.judge(fake)).mean().backward()
        optimizers[0].step()
        for optimizer in optimizers:
            optimizer.zero_grad()

    model = Gan()
    optimizers = [adamw(model.maker.parameters()), adamw(model.judge.parameters())]
    made = capture(model, optimizers, rows, train_step=step)
    assert labelled(made, "optimizer_state") == 2 * 8
    return made


class Sam(torch.optim.Optimizer):
    """Climbs to where the loss is worse, and steps by the gradient that it finds there."""

    def __init__(self, parameters: Any, base: Any, rho: float = 0.05) -> None:
        super().__init__(parameters, {"rho": rho})
        self.base = base(self.param_groups)

    def step(self, closure: Any) -> None:  # type: ignore[override]
        weights = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in weights]).norm()
        climbed = [p.grad * (0.05 / (norm + 1e-12)) for p in weights]
        with torch.no_grad():
            torch._foreach_add_(weights, climbed)
        self.zero_grad()
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            torch._foreach_sub_(weights, climbed)
        self.base.step()


@kind("SAM with a closure", nightly=True)
def sam() -> plimsoll.Capture:
    def step(model: Any, optimizer: Any, batch: Batch) -> None:
        def closure() -> None:
            classify(model, *batch).backward()

        closure()
        optimizer.step(closure)
        optimizer.zero_grad()

    made = capture(mlp, lambda p: Sam(p, lambda groups: sgd(groups)), rows, train_step=step)
    assert ops(made).count("aten._log_softmax.default") == 2 * STEPS
    return made


@kind("LBFGS", refused="LBFGS decides by values how often it runs")
def lbfgs() -> plimsoll.Capture:
    def step(model: Any, optimizer: Any, batch: Batch) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = classify(model, *batch)
            loss.backward()
            return loss

        optimizer.step(closure)

    return capture(mlp, torch.optim.LBFGS, rows, train_step=step)


@kind("evaluation after a step")
def evaluation() -> plimsoll.Capture:
    def step(model: Any, optimizer: Any, batch: Batch) -> None:
        model.train()
        classify(model, *batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.inference_mode():
            logits = model(batch[0])
            print(f"accuracy {(logits.argmax(-1) == batch[1]).float().mean().item():.3f}")

    return capture(mlp, adamw, rows, train_step=step)


@kind(".numpy() in metrics", assumes="the values of a tensor are read; ones are assumed")
def numpy_metrics() -> plimsoll.Capture:
    seen = []

    def step(model: Any, optimizer: Any, batch: Batch) -> None:
        x, y = batch
        logits = model(x)
        F.cross_entropy(logits, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        guess = logits.detach().argmax(1).cpu().numpy()
        seen.append((guess == y.cpu().numpy()).mean())
        print("right", (logits.argmax(1) == y).sum().item(), logits.detach().cpu().tolist()[0])

    made = capture(mlp, adamw, rows, train_step=step)
    assert seen
    return made


@kind("DataLoader with workers and pin_memory")
def loader_with_workers() -> plimsoll.Capture:
    data = TensorDataset(torch.randn(100, 64), torch.randint(0, 10, (100,)))

    def batch(n: int) -> Batch:
        loader = DataLoader(data, n, shuffle=True, num_workers=2, pin_memory=True)
        return next(iter(loader))

    return capture(mlp, adamw, batch, classify)
