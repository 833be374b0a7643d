"""Lists and dictionaries that modules are given, which change while a step runs: a plan is told of
them, and a checkpoint repeats a module with what it was given."""

from __future__ import annotations

import copy
import gzip
import json
import subprocess
from pathlib import Path
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from fresh_process import fresh
from program_here import needs_program

import plimsoll
from plimsoll.answers.program import find
from plimsoll.applying.checkpoints import as_they_are, checkpoint_blocks
from plimsoll.base.lists import GivenLists, ListsOfModules
from plimsoll.events.repeated import Layers, in_all_layers
from plimsoll.scripts.command import main


class Layer(nn.Module):
    """Of all that was made before it, as torchvision's _DenseLayer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(channels), nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, before: list[torch.Tensor]) -> torch.Tensor:
        return self.conv(self.norm(torch.cat(before, 1)).relu())


class Dense(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({f"layer{i}": Layer(4 + 4 * i) for i in range(layers)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for layer in self.layers.values():
            features.append(layer(features))
        return torch.cat(features, 1)


class AppendingLayer(Layer):
    def forward(self, before: list[torch.Tensor]) -> None:
        before.append(super().forward(before))


class AppendingDense(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({f"layer{i}": AppendingLayer(4 + 4 * i) for i in range(3)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for layer in self.layers.values():
            layer(features)
        return torch.cat(features, 1)


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, *, data: dict[str, Any]) -> None:
        data["x"] = data["x"] + self.linear(data["x"]).tanh()
        data["seen"][0].append(data["x"].sum())


class Steps(nn.Module):
    """Each puts its result where it found what it works on."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(Step() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        data = {"x": x, "seen": ([],)}
        for step in self.steps:
            step(data=data)
        return data["x"] * torch.stack(data["seen"][0]).mean()


LAYERS = ["layers.layer0", "layers.layer1", "layers.layer2"]
STEPS = ["steps.0", "steps.1", "steps.2"]
IMAGES = (2, 4, 5, 5)


def trained(model: nn.Module, sizes: tuple[int, ...]) -> list[torch.Tensor]:
    """The gradients of two batches, and the buffers."""
    torch.manual_seed(1)
    for _ in range(2):
        model(torch.randn(sizes)).square().sum().backward()
    return [*(p.grad for p in model.parameters()), *model.buffers()]  # type: ignore[misc]


@pytest.mark.parametrize(
    "model, names, keep, sizes",
    [
        (Dense, LAYERS, ["", "", ""], IMAGES),
        (Dense, LAYERS, ["convolution", "", "relu"], IMAGES),
        (AppendingDense, LAYERS, ["", "", ""], IMAGES),
        (Steps, STEPS, ["", "", ""], (3, 8)),
        (Steps, STEPS, ["addmm", "", "tanh"], (3, 8)),
    ],
)
def test_a_checkpoint_repeats_a_module_with_what_it_was_given(model, names, keep, sizes):
    plain = model()
    checkpointed = copy.deepcopy(plain)
    checkpoint_blocks(checkpointed, names, keep)
    expected, found = trained(plain, sizes), trained(checkpointed, sizes)
    assert len(expected) == len(found)
    assert all(torch.equal(a, b) for a, b in zip(expected, found))


def test_a_graph_is_gone_through_twice():
    """The first repetition appends to what it is given, too."""
    plain = Steps()
    checkpointed = copy.deepcopy(plain)
    checkpoint_blocks(checkpointed, STEPS, ["", "", ""])
    for model in (plain, checkpointed):
        torch.manual_seed(1)
        loss = model(torch.randn(3, 8)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    for one, other in zip(plain.parameters(), checkpointed.parameters()):
        assert torch.equal(one.grad, other.grad)


def test_lists_are_copied_and_what_is_in_them_is_not():
    class Pair(tuple):
        __slots__ = ()

    tensor, shared = torch.zeros(1), [1]
    shared.append(shared)
    size, pair = torch.Size([2]), Pair((1, 2))
    given = ([tensor], {"a": shared, "b": (shared,)}, size, pair, torch.max(torch.eye(2), 0))
    again = as_they_are(given)
    assert again[0] is not given[0] and again[0][0] is tensor
    assert again[1]["a"] is not shared and again[1]["a"] is again[1]["b"][0] is again[1]["a"][1]
    assert again[2] is size and again[3] is pair
    assert given[4].values is again[4].values


class Doing(nn.Module):
    def __init__(self, what: Callable[..., Any]) -> None:
        super().__init__()
        self.what = what

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.what(*args, **kwargs)


class Around(nn.Module):
    """Calls a module that is given something."""

    def __init__(self, what: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.inner, self.linear = Doing(what), nn.Linear(4, 4)
        self.given = args, kwargs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        args, kwargs = copy.copy(self.given)
        self.inner(*args, **kwargs)
        return self.linear(x)


def captured(model: nn.Module, sizes: tuple[int, ...]) -> plimsoll.Capture:
    return plimsoll.capture(
        lambda: model,
        lambda parameters: torch.optim.SGD(parameters, 0.1),
        lambda size: torch.randn(size, *sizes),
        lambda model, x: model(x).sum(),
    )


def lists_of(model: nn.Module, sizes: tuple[int, ...] = (4,)) -> Any:
    return captured(model, sizes).document.get("lists")


def nothing(*args: Any, **kwargs: Any) -> None:
    pass


@pytest.mark.parametrize(
    "inner, found",
    [
        (Around(nothing, 1, (2, 3), name="x"), None),
        (Around(nothing, [1]), []),
        (Around(nothing, (1, [2])), []),
        (Around(nothing, some={}), []),
        (Around(lambda some: some.append(1), [1]), ["inner"]),
        (Around(lambda some: some[0].clear(), ([1],)), ["inner"]),
        (Around(lambda some: some.update(a=3), some={"a": 1}), ["inner"]),
        (Around(lambda some: some["a"].pop(), some={"a": [1] * 9}), ["inner"]),
    ],
)
def test_a_capture_tells_who_is_given_lists_and_who_changes_them(inner, found):
    told = found if found is None else {"given_to": ["inner"], "changed_by": found}
    assert lists_of(inner) == told


def test_whose_list_grows_later_does_not_change_it():
    told = lists_of(Dense(), IMAGES[1:])
    assert told == {"given_to": LAYERS, "changed_by": []}
    told = lists_of(AppendingDense(), IMAGES[1:])
    assert told == {"given_to": LAYERS, "changed_by": LAYERS}


def planned(model: nn.Module, job: Path) -> Any:
    """What is checkpointed within less than it takes as it is."""
    captured(model, (4, 64, 64)).write(job)
    asked = [find(), "plan", str(job), "--gpu", "H200", "--global-batch", "1024"]
    asked += ["--budget", "1800MiB", "--keep-numerics", "--json"]
    ways = json.loads(subprocess.run(asked, capture_output=True, check=True).stdout)["ways"]
    levers = [lever for way in ways for lever in way["levers"]]
    return next((lever for lever in levers if lever["lever"] == "checkpointing"), None)


@needs_program
def test_a_plan_is_carried_out_by_hand(tmp_path: Path) -> None:
    lever = planned(Dense(), tmp_path / "job.step.json.gz")
    assert set(lever["value"]["modules"]) & set(LAYERS)
    plain = Dense()
    by_hand = copy.deepcopy(plain)
    exec("\n".join(lever["code"]), {"model": by_hand})
    parameters = len(list(plain.parameters()))
    # What are no gradients is statistics, which are updated twice.
    expected, found = trained(plain, IMAGES)[:parameters], trained(by_hand, IMAGES)[:parameters]
    assert all(torch.equal(a, b) for a, b in zip(expected, found))


@needs_program
def test_who_changes_a_list_is_not_checkpointed(tmp_path: Path) -> None:
    lever = planned(AppendingDense(), tmp_path / "job.step.json.gz")
    assert lever is None or not set(lever["value"]["modules"]) & set(LAYERS)


def test_a_list_that_is_in_itself():
    lists = ListsOfModules()
    some: list[Any] = []
    some.append(some)
    lists.begin("a", [some])
    lists.begin(None, [some])
    lists.end()
    lists.end()
    lists.end()
    assert lists.found == GivenLists(frozenset({"a"}))


def test_layers_that_are_not_captured_are_as_those_that_are():
    found = GivenLists(frozenset({"h.1.mlp", "h.0", "head"}), frozenset({"h.0"}))
    told = in_all_layers(found, [Layers("h", 2, 3), Layers("he", 2, 3)])
    assert told.to == {"h.0", "h.1", "h.2", "h.0.mlp", "h.1.mlp", "h.2.mlp", "head"}
    assert told.changed_by == {"h.0", "h.1", "h.2"}


SCRIPT = """
import sys
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, before, last):
        made = self.linear(sum(before))
        if last:
            before.append(made)
        return made

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = Layer(), Layer()
    def forward(self, x):
        before = [x]
        before.append(self.one(before, last=False))
        self.two(before, last=True)
        return before[-1]

model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.randn(int(sys.argv[1]), 8, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_script_tells_too(tmp_path: Path) -> None:
    script, out = tmp_path / "train.py", tmp_path / "job.step.json.gz"
    script.write_text(SCRIPT)
    assert fresh(main, ["-o", str(out), "--", "python", str(script), "{batch}"]).value == 0
    told = json.loads(gzip.decompress(out.read_bytes()))["lists"]
    assert told == {"given_to": ["one", "two"], "changed_by": ["two"]}
