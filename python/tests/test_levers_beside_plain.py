"""Each lever that plimsoll.apply sets, beside the plain loop: ten steps of small jobs on the CPU.

What a plan calls "same" is the same to the bit, what it calls "rounding" differs by 1e-5 in fp32
and by 2e-2 in bf16; what would break a loop is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional

import plimsoll  # noqa: E402

STEPS, BATCH = 10, 8


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.one, self.two = nn.Linear(16, 32), nn.Linear(32, 16)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        return x + self.drop(self.two(F.gelu(self.one(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(3))
        self.head = nn.Linear(16, 32)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, bias=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
                nn.Dropout(0.1),
            )
            for _ in range(3)
        )
        self.head = nn.Linear(8, 32)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


def frozen() -> Net:
    model = Net()
    for part in (model.embed, model.blocks[0]):
        part.requires_grad_(False)
    return model


def adamw(model: Any) -> list[Any]:
    trained = [p for p in model.parameters() if p.requires_grad]
    return [torch.optim.AdamW(trained, 1e-3, weight_decay=0.1, eps=1e-4)]


def two(model: Any) -> list[Any]:
    rest = [p for name, p in model.named_parameters() if not name.startswith("embed")]
    return [
        torch.optim.AdamW(rest, 1e-3, eps=1e-4),
        torch.optim.SGD(model.embed.parameters(), lr=0.05, momentum=0.9),
    ]


class Job(NamedTuple):
    model: Callable[[], Any] = Net
    optimizers: Callable[[Any], list[Any]] = adamw
    clip: float | None = None
    schedule: bool = False
    #: Micro-batches of its own.
    accumulates: int = 1
    batch_norm: bool = False


JOBS = {
    "clipping": Job(clip=0.5),
    "a scheduler": Job(schedule=True),
    "own accumulation": Job(accumulates=2),
    "two optimizers": Job(optimizers=two),
    "frozen parts": Job(model=frozen),
    "batch norm and dropout": Job(model=Images, batch_norm=True),
    "dropout": Job(model=lambda: Net(0.1)),
}


def of_optimizer(form: str, in_backward: bool = False, name: str = "adamw") -> dict[str, Any]:
    return {"optimizer": {"name": name, "form": form, "in_backward": in_backward}}


ALL = ["blocks.0", "blocks.1", "blocks.2"]

#: With what a plan calls their results.
LEVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "tf32": ("same", {"tf32": {"on": False}}),
    "checkpointing": ("same", {"checkpointing": {"modules": ALL}}),
    "checkpointing in part": ("same", {"checkpointing": {"modules": ALL[:1]}}),
    "blocks offloaded": (
        "same",
        {"checkpointing": {"modules": ALL[:1], "keep": ["host:blocks.2"]}},
    ),
    "offload": ("same", {"offload": {"what": ["activations"]}}),
    "accumulation": ("same", {"accumulation": {"passes": 2}}),
    "fused": ("rounding", of_optimizer("fused")),
    "foreach": ("rounding", of_optimizer("foreach")),
    "on the host": ("rounding", of_optimizer("host")),
    "in the backward": ("rounding", of_optimizer("for", True)),
    "fused in the backward": ("rounding", of_optimizer("fused", True)),
    "loss in chunks": ("rounding", {"loss": {"chunks": 4, "layers": ["head"]}}),
    "channels last": ("rounding", {"precision": {"name": "fp32+channels_last"}}),
    "autocast": ("bf16", {"precision": {"name": "amp_bf16"}}),
    "autocast with a scaler": ("bf16", {"precision": {"name": "amp_fp16"}}),
    "several": (
        "rounding",
        {
            "checkpointing": {"modules": ALL},
            **of_optimizer("fused"),
            "offload": {"what": ["activations"]},
        },
    ),
}

#: Gradients have to be whole after the backward.
REFUSED = {
    ("clipping", "in the backward"), ("clipping", "fused in the backward"),
    ("own accumulation", "in the backward"), ("own accumulation", "fused in the backward"),
}  # fmt: skip

#: A dropout of images in another memory format draws its mask in another order. `plan` calls this
#: other results.
OTHER = {("batch norm and dropout", "channels last")}


class Trained(NamedTuple):
    losses: list[float]
    #: Of the last step.
    gradients: dict[str, Any]
    weights: dict[str, Any]


def batches(job: Job) -> Iterator[tuple[Any, Any]]:
    torch.manual_seed(2)
    for _ in range(STEPS):
        if job.batch_norm:
            yield torch.randn(BATCH, 3, 8, 8), torch.randint(0, 32, (BATCH,))
        else:
            yield torch.randint(0, 32, (BATCH, 6)), torch.randint(0, 32, (BATCH, 6))


def loss(model: Any, x: Any, y: Any) -> Any:
    return F.cross_entropy(model(x).flatten(0, -2), y.flatten())


def gradients_of(model: Any) -> dict[str, Any]:
    named = model.named_parameters()
    return {name_of(n): p.grad.clone() for n, p in named if p.grad is not None}


def name_of(name: str) -> str:
    """A module that is checkpointed lies in another one."""
    return name.replace("_checkpoint_wrapped_module.", "")


def plan_of(job: Job, levers: dict[str, Any]) -> dict[str, Any]:
    passes = levers.get("accumulation", {}).get("passes", 1)
    told = [{"lever": name, "set_to": "", "value": value} for name, value in levers.items()]
    way = {"batch": BATCH // passes, "passes": passes, "levers": told}
    return {"schema": "plimsoll.plan/1", "ways": [way]}


def trained(job: Job, levers: dict[str, Any] | None = None, micro_batches: int = 1) -> Trained:
    """The loop as it is written, with what a plan sets in it. `micro_batches`: instead of one."""
    torch.manual_seed(1)
    model = job.model()
    optimizers = job.optimizers(model)
    applied = None
    if levers is not None:
        applied = plimsoll.apply(plan_of(job, levers), model, optimizers[0])
        optimizers[0] = applied.optimizer
    schedule = None
    if job.schedule:
        schedule = torch.optim.lr_scheduler.StepLR(optimizers[0], 3, gamma=0.5)
    count = job.accumulates * (applied.passes if applied else micro_batches)
    scaler = applied.scaler if applied else None
    losses, gradients = [], {}
    data = list(batches(job))
    torch.manual_seed(3)
    for batch in data:
        losses.append(0.0)
        for i in range(count):
            cut = slice(i * BATCH // count, (i + 1) * BATCH // count)
            part = tuple(tensor[cut] for tensor in batch)
            with applied.forward() if applied else contextlib.nullcontext():
                value = loss(model, *(applied.place(part) if applied else part)) / count
            (value if scaler is None else scaler.scale(value)).backward()
            losses[-1] += value.item()
        if scaler is not None:
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
        if job.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        gradients = gradients_of(model)
        for optimizer in optimizers:
            optimizer.step() if scaler is None else scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        if schedule is not None:
            schedule.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return Trained(losses, gradients, weights)


def by_step(job: Job, levers: dict[str, Any]) -> Trained:
    """The loop that applied.step makes."""
    torch.manual_seed(1)
    model = job.model()
    applied = plimsoll.apply(plan_of(job, levers), model, job.optimizers(model)[0])
    losses = []
    data = list(batches(job))
    torch.manual_seed(3)
    for batch in data:
        losses.append(applied.step(batch, loss, clip_norm=job.clip).item())
    return Trained(losses, {}, dict(model.state_dict()))


def off(one: dict[str, Any], other: dict[str, Any]) -> float:
    """By how much of their length they differ, all tensors together."""
    names = one.keys() & other.keys()
    first = torch.cat([one[n].double().flatten() for n in sorted(names)] or [torch.zeros(1)])
    second = torch.cat([other[n].double().flatten() for n in sorted(names)] or [torch.zeros(1)])
    return float((first - second).norm() / second.norm().clamp(min=1e-12))


def check(found: Trained, plain: Trained, results: str) -> None:
    if results == "same":
        assert found.losses == plain.losses
        assert found.gradients.keys() == plain.gradients.keys()
        for name, gradient in plain.gradients.items():
            assert torch.equal(found.gradients[name], gradient), name
        for name, weight in plain.weights.items():
            assert torch.equal(found.weights[name], weight), name
        return
    most = {"rounding": 1e-5, "bf16": 2e-2}[results]
    assert found.losses == pytest.approx(plain.losses, rel=most)
    assert off(found.weights, plain.weights) <= most
    # An optimizer in the backward leaves none.
    if found.gradients:
        assert off(found.gradients, plain.gradients) <= 10 * most


IN_DAY = {
    ("clipping", "in the backward"), ("clipping", "accumulation"),
    ("a scheduler", "fused in the backward"), ("own accumulation", "fused"),
    ("own accumulation", "in the backward"), ("two optimizers", "on the host"),
    ("frozen parts", "in the backward"), ("batch norm and dropout", "checkpointing"),
}  # fmt: skip

PAIRS = [
    pytest.param(job, lever, marks=[] if (job, lever) in IN_DAY else pytest.mark.nightly)
    for job in JOBS
    for lever in LEVERS
    if (job, lever) not in OTHER
]


@pytest.mark.parametrize("name, lever", PAIRS)
def test_a_lever_beside_the_plain_loop(name: str, lever: str) -> None:
    job, (results, levers) = JOBS[name], LEVERS[lever]
    if (name, lever) in REFUSED:
        with pytest.raises(plimsoll.PlanError):
            trained(job, levers)
        return
    passes = levers.get("accumulation", {}).get("passes", 1)
    plain = trained(job, micro_batches=passes)
    check(trained(job, micro_batches=passes), plain, "same")
    check(trained(job, levers), plain, results)


@pytest.mark.parametrize("name", ["clipping", "frozen parts", "dropout"])
def test_the_step_of_an_applied_plan(name: str) -> None:
    """Cut into micro-batches, it is the loop over those."""
    job, levers = JOBS[name], LEVERS["accumulation"][1]
    found, plain = by_step(job, levers), trained(job, micro_batches=2)
    assert found.losses == pytest.approx(plain.losses, rel=1e-6)
    assert all(torch.equal(found.weights[n], weight) for n, weight in plain.weights.items())


@pytest.mark.parametrize("name", ["clipping", "frozen parts"])
def test_accumulation_beside_the_whole_batch(name: str) -> None:
    job = JOBS[name]
    check(trained(job, LEVERS["accumulation"][1]), trained(job), "rounding")
