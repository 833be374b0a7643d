"""torch.compile without a GPU."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fresh_process import fresh  # noqa: E402
from test_script import script  # noqa: E402
from torch import nn  # noqa: E402

import plimsoll  # noqa: E402
from plimsoll.base.gpus import named  # noqa: E402
from plimsoll.base.pieces import Name  # noqa: E402
from plimsoll.base.place import Place  # noqa: E402
from plimsoll.base.written import WrittenCode  # noqa: E402
from plimsoll.events.aligned import NotAligned, aligned  # noqa: E402
from plimsoll.events.event import (  # noqa: E402
    GRAPH,
    KERNEL,
    TIMING,
    Call,
    Event,
    Free,
    Layout,
    NewStorage,
    Phase,
    Recorded,
    StepBegin,
    Tensor,
)
from plimsoll.scripts.command import main  # noqa: E402
from plimsoll.world.compiler import _changed_arguments, _has_several_forms  # noqa: E402
from plimsoll.world.padded_products import Operand, timed  # noqa: E402

MiB = 1 << 20


def calls(document: dict[str, Any], variant: int) -> list[list[Any]]:
    return [event for event in document["variants"][variant]["events"] if event[0] == "call"]


def operators(document: dict[str, Any], variant: int) -> Counter[str]:
    return Counter(document["strings"][call[1]] for call in calls(document, variant))


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 256)
        self.norm = nn.LayerNorm(256)
        self.second = nn.Linear(256, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.norm(nn.functional.gelu(self.first(x)))
        return self.second(hidden)


def captured() -> dict[str, Any]:
    return plimsoll.capture(
        Perceptron,
        lambda parameters: torch.optim.AdamW(parameters),
        lambda n: (torch.randn(n, 64), torch.zeros(n, dtype=torch.long)),
        lambda model, x, y: nn.functional.cross_entropy(model(x), y),
        batches=(512, 768),
        precisions=["compiled"],
    ).document


@pytest.mark.nightly  # the one of a script has most of it
def test_what_a_compiler_writes_is_a_variant_of_the_job() -> None:
    document = fresh(captured).value
    names = [(v["precision"], v.get("compiled")) for v in document["variants"]]
    assert names == [("as_written", None), ("compiled", True)]
    eager, compiled = operators(document, 0), operators(document, 1)
    assert eager["aten.gelu.default"] == 3 and KERNEL not in eager
    # GELU and the norm are one kernel now, in each of three steps, and products go into buffers.
    assert compiled[KERNEL] >= 6 and compiled["aten.addmm.out"] == 6
    assert "aten.gelu.default" not in compiled
    modules = {document["strings"][call[3]] for call in calls(document, 1) if call[3] >= 0}
    assert {"first", "norm", "second"} <= modules
    assert not any("could not be compiled" in note for note in document["notes"])


TRAINS = """
    model = nn.Sequential(nn.Linear(16, 300), nn.ReLU(), nn.Dropout(0.5), nn.Linear(300, 4)).cuda()
    model = torch.compile(model{more})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    n = int(sys.argv[1])
    for _ in range(5):
        x = torch.randn(n, 16, device="cuda")
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def of_script(folder: Path, text: str) -> dict[str, Any]:
    out = folder / "job.step.json.gz"
    words = ["-o", str(out), "--batch", "96", "--", "python", script(folder, text), "{batch}"]
    assert fresh(main, words).value == 0
    document: dict[str, Any] = json.loads(gzip.decompress(out.read_bytes()))
    return document


def graphs(document: dict[str, Any]) -> list[tuple[list[Any], dict[str, Any]]]:
    """Where regions begin that become CUDA graphs: what is copied for them, and which they are."""
    calls = [event for event in document["variants"][0]["events"] if event[0] == "call"]
    return [(call[5], call[6]) for call in calls if document["strings"][call[1]] == GRAPH]


def test_a_script_that_compiles_is_told_compiled_and_in_eager_mode(tmp_path: Path) -> None:
    document = of_script(tmp_path, TRAINS.replace("{more}", ', mode="reduce-overhead"'))
    names = [(v["precision"], v.get("compiled")) for v in document["variants"]]
    assert names == [("as_written", True), ("eager", None)]
    # What the compiler writes is for one batch: the one that is asked about.
    assert document["batches"] == [96, 144]
    assert operators(document, 0)[KERNEL] and not operators(document, 1)[KERNEL]
    # Kernels are timed once, in the first step.
    events = document["variants"][0]["events"]
    steps = [i for i, event in enumerate(events) if event[0] == "step"]
    timed = [
        i
        for i, event in enumerate(events)
        if event[0] == "call" and document["strings"][event[1]] == TIMING
    ]
    assert timed and steps[0] < timed[0] and timed[-1] < steps[1]
    assert [facts for _, facts in graphs(document)] == 3 * [
        {"graph": 1, "forward": True},
        {"graph": 2, "backward": True},
    ]
    # The batch is copied for a recording, and what the loss gives the backward; no parameter is.
    assert [len(moving) for moving, _ in graphs(document)] == 6 * [1]
    assert not any("torch.compile is left out" in note for note in document["notes"])


@pytest.mark.nightly
def test_what_cannot_be_compiled_is_told_in_eager_mode(tmp_path: Path) -> None:
    broken = """
    import torch._inductor.graph
    def fails(*args, **kwargs):
        raise RuntimeError("no such code")
    torch._inductor.graph.GraphLowering.run = fails
    """
    document = of_script(tmp_path, broken + TRAINS.replace("{more}", ""))
    assert not operators(document, 0)[KERNEL]
    assert any("could not be compiled" in note for note in document["notes"])


# Runs for which other code was written.

HERE = Place("train.py:3 in forward", "layer", 0)
LAYOUTS = [Layout("float32", (8, 4), (4, 1)), Layout("float32", (2,), (1,))]


def makes(storage: int, layout: int = 0, size: int = 128) -> Call:
    made = [NewStorage(storage, size, 0)]
    return Call("aten.empty_strided.default", HERE, [], {}, [Tensor(storage, layout, 0)], made)


def kernel(*storages: int) -> Call:
    tensors: list[Any] = [Tensor(storage, 0, 0) for storage in storages]
    return Call(KERNEL, HERE, tensors, {"kernel": Name("triton")}, [], [])


def run(*events: Event) -> Recorded:
    return Recorded([StepBegin(), Phase("forward"), *events], LAYOUTS)


def test_a_buffer_of_one_run_alone_is_empty_in_the_other() -> None:
    first = run(makes(1), makes(2, 1, 8), kernel(1, 2), Free(2), Free(1))
    second = run(makes(1, 0, 192), kernel(1), Free(1))
    both = aligned(first, second)
    assert len(both.first.events) == len(both.second.events)
    made = [
        (a.made[0].size, b.made[0].size)
        for a, b in zip(both.first.events, both.second.events)
        if isinstance(a, Call) and isinstance(b, Call) and a.made
    ]
    assert made == [(128, 192), (8, 0)]
    # A kernel of other arguments is one of each run.
    assert both.alone == 3
    frees = [event.storage for event in both.first.events if isinstance(event, Free)]
    assert sorted(frees) == [1, 2]


def test_numbers_of_the_second_run_become_those_of_the_first() -> None:
    first = run(makes(1), kernel(1), Free(1))
    second = run(makes(1, 1, 8), makes(2), kernel(2), Free(1), Free(2))
    both = aligned(first, second)
    last = [event for event in both.second.events if isinstance(event, Call)][-1]
    assert last.args == [Tensor(1, 0, 0)]
    # What only the second has is freed once, under a number of its own.
    assert [e.storage for e in both.second.events if isinstance(e, Free)] == [1, 2]


def test_runs_of_other_phases_are_not_aligned() -> None:
    other = Recorded([StepBegin(), Phase("backward"), makes(1)], LAYOUTS)
    with pytest.raises(NotAligned):
        aligned(run(makes(1)), other)


# What is known of a kernel from its source.


def source(kind: str, hints: str, more: str = "") -> str:
    return f"@triton_heuristics.{kind}(\n    size_hints={hints},{more}\n    filename=__file__,\n)"


@pytest.mark.parametrize(
    ("text", "several"),
    [
        (source("pointwise", "{'x': 8192}"), True),
        (source("pointwise", "{'x': 128}"), False),
        (source("pointwise", "{'y': 64, 'x': 64}", " tile_hint=TileHint.SQUARE,"), False),
        (source("pointwise", "{'y': 64, 'x': 4096}", " tile_hint=TileHint.DEFAULT,"), True),
        (source("reduction", "{'x': 9, 'r0_': 9}", " reduction_hint=ReductionHint.INNER,"), False),
        (source("reduction", "{'x': 9, 'r0_': 9}", " reduction_hint=ReductionHint.DEFAULT,"), True),
        ("def kernel(): pass", False),
    ],
)
def test_kernels_with_several_forms(text: str, several: bool) -> None:
    assert _has_several_forms(text) is several


def test_what_a_kernel_changes() -> None:
    text = "'signature': {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32'}, "
    assert _changed_arguments(text + "'mutated_arg_names': ['in_out_ptr0']") == [0]
    assert _changed_arguments(text) == []


class Node:
    def __init__(self, **meta: Any) -> None:
        self.meta = meta


def test_lines_of_written_code_lead_to_the_users() -> None:
    stack = {"a": ("L['self']", None), "b": ("L['self']._modules['h']._modules['0'].attn", None)}
    trace = '  File "/home/me/train.py", line 12, in forward\n    x = f(x)'
    node = Node(nn_module_stack=stack, stack_trace=trace)
    code = WrittenCode("/tmp/code.py", [(10, Node()), (20, node)])
    assert code.origin(5) is None
    found = code.origin(25)
    assert found is not None and found.module == "h.0.attn"
    assert found.frames == [("/home/me/train.py", 12, "forward")]


@pytest.mark.parametrize(
    "first, second, dtype, pads",
    [
        # A language model's head: its weight's gradient, its input's, its result; as Inductor
        # timed them on an H200.
        ((30522, 4096, False, False), (4096, 768, True, True), torch.bfloat16, False),
        ((4096, 30522, True, True), (30522, 768, True, True), torch.bfloat16, True),
        ((4096, 768, True, True), (768, 30522, False, False), torch.bfloat16, True),
        ((50257, 8192, False, False), (8192, 256, True, True), torch.bfloat16, False),
        ((10003, 8192, False, False), (8192, 2048, True, True), torch.bfloat16, True),
        ((151643, 3001, False, False), (3001, 2048, True, True), torch.float32, True),
        ((512, 384, True, True), (384, 30522, False, False), torch.bfloat16, False),
    ],
)
def test_products_are_padded_where_that_is_faster(first, second, dtype, pads):
    card = named("H200")
    assert card is not None
    times = timed(Operand(*first), Operand(*second), 1, dtype, card)
    assert (times.as_it_is > 1.1 * times.padded) == pads
