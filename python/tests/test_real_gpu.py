"""With a GPU in the machine: it is not touched, and works as before."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import plimsoll  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("no GPU is here", allow_module_level=True)


def train(model):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        x = torch.randn(4, 3, 16, 16, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 4)
    )


def test_a_gpu_is_left_alone():
    model = network().cuda()
    train(model)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    made = plimsoll.capture(
        model,
        torch.optim.AdamW(model.parameters()),
        lambda n: torch.randn(n, 3, 16, 16, device="cuda"),
        lambda m, x: m(x).sum(),
        autocast=torch.bfloat16,
        scaler=True,
    )
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert len(made.events) > 100
    train(model)
    query = torch.randn(2, 4, 8, 16, device="cuda", requires_grad=True)
    nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()
    assert query.grad is not None
