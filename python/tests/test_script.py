"""`plimsoll.script`: training scripts as people write them, on a machine without a GPU."""

from __future__ import annotations

import gzip
import json
import socket
import textwrap
from pathlib import Path
from typing import Any, TypeVar

import pytest

torch = pytest.importorskip("torch")

from fresh_process import fresh  # noqa: E402
from step_checks import Checked  # noqa: E402

import plimsoll  # noqa: E402
from plimsoll.base.errors import CaptureError  # noqa: E402
from plimsoll.events.event import (  # noqa: E402
    Call,
    Free,
    Label,
    Parameter,
    Phase,
    StepBegin,
)
from plimsoll.scripts.command import _environment, main, run_each  # noqa: E402
from plimsoll.scripts.launchers import at_point, ranks_of, words_of_script  # noqa: E402
from plimsoll.scripts.run import Run, RunResult  # noqa: E402

Kind = TypeVar("Kind")

HEAD = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
batch = int(sys.argv[1]) if len(sys.argv) > 1 else 5
"""


def script(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(HEAD + textwrap.dedent(text))
    return str(path)


def captured(folder: Path, text: str, *words: str) -> Checked:
    out = folder / "job.step.json.gz"
    arguments = ["-o", str(out), "--", "python", script(folder, text), *words]
    assert fresh(main, arguments).value == 0
    with gzip.open(out) as file:
        return Checked(json.load(file))


def once(folder: Path, text: str, batch: int = 4) -> RunResult:
    run = Run([script(folder, text), str(batch)], None, "H200")
    runs: list[RunResult] = fresh(run_each, [run]).value
    return runs[0]


def of(kind: type[Kind], run: RunResult) -> list[Kind]:
    return [event for event in run.recorded.events if isinstance(event, kind)]


def calls(run: RunResult) -> list[str]:
    return [call.op for call in of(Call, run)]


def parameters(run: RunResult) -> list[str]:
    return [parameter.name for parameter in of(Parameter, run)]


def phases(run: RunResult) -> list[str]:
    return [
        event.name if isinstance(event, Phase) else "step"
        for event in run.recorded.events
        if isinstance(event, (Phase, StepBegin))
    ]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python train.py --lr 1", "train.py --lr 1"),
        ("/usr/bin/python3.11 -u -W ignore train.py", "train.py"),
        ("python -m pkg.train -b 3", "-m pkg.train -b 3"),
        ("torchrun --standalone --nproc-per-node 4 train.py a", "train.py a"),
        ("torchrun --nproc_per_node=4 -m pkg.train a", "-m pkg.train a"),
        ("python -m torch.distributed.run --nnodes=2 train.py", "train.py"),
        ("accelerate launch --multi_gpu --num_processes 4 train.py", "train.py"),
        ("./train.py", "./train.py"),
        ("jupyter nbconvert --to notebook --execute train.ipynb", "train.ipynb"),
        ("ipython train.ipynb", "train.ipynb"),
        ("python", ""),
    ],
)
def test_the_script_behind_python_and_launchers(command: str, words: str) -> None:
    assert words_of_script(command.split()) == words.split()


def test_batch_stands_anywhere() -> None:
    assert at_point(["--a={batch}", "x", "{batch}"], {"batch": 8}) == ["--a=8", "x", "8"]


PLAIN = """
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100):
    x, y = torch.randn(batch, 32).cuda(), torch.randint(0, 8, (batch,)).cuda()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_plain_loop_is_as_captured(tmp_path: Path) -> None:
    told = captured(tmp_path, PLAIN, "{batch}")
    capture = plimsoll.capture(
        lambda: torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
        ),
        lambda parameters: torch.optim.AdamW(parameters),
        lambda n: (torch.randn(n, 32), torch.randint(0, 8, (n,))),
        lambda model, x, y: torch.nn.functional.cross_entropy(model(x), y),
        batches=(4, 8),
    )
    assert happenings(told.document) == happenings(capture.document)
    assert labels(told.document) == labels(capture.document)
    assert told.document["model"] == "Sequential"


def happenings(document: dict[str, Any]) -> list[Any]:
    """Everything that decides about memory: without lines, and without the phase after a step."""
    strings = document["strings"]
    found: list[Any] = []
    for event in document["variants"][0]["events"]:
        if event[0] == "call":
            found.append([strings[event[1]], event[4], [new[:3] for new in event[8]]])
        elif event[0] in ("parameter", "buffer"):
            found.append([event[0], event[1], document["layouts"][event[2]], strings[event[3]]])
        elif event[0] != "label" and event != ["phase", "other"]:
            found.append(event)
    return found


def labels(document: dict[str, Any]) -> set[tuple[str, int]]:
    events = document["variants"][0]["events"]
    return {(e[1], number) for e in events if e[0] == "label" for number in e[2]}


def test_what_scripts_do_besides_training(tmp_path: Path) -> None:
    saved = tmp_path / "model.pt"
    run = once(
        tmp_path,
        f"""
        import numpy
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        torch.cuda.manual_seed_all(1)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        data = TensorDataset(torch.randn(5000, 3, 8, 8), torch.randint(0, 4, (5000,)))
        loader = DataLoader(data, batch_size=batch, shuffle=True, num_workers=4, pin_memory=True,
                            persistent_workers=True, prefetch_factor=2)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(),
                              nn.Linear(144, 4)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        scaler = torch.amp.GradScaler("cuda")
        event = torch.cuda.Event(enable_timing=True)
        right, predictions = 0, []
        try:
            for x, y in loader:
                x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
                with torch.autocast("cuda", dtype=torch.float16):
                    out = model(x)
                    loss = nn.functional.cross_entropy(out, y)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                schedule.step()
                event.record()
                torch.cuda.synchronize()
                right += (out.argmax(1) == y).sum().item()
                predictions.append(out.argmax(1).cpu().numpy())
                print(f"{{loss:.3f}} {{loss.item()}} {{out.float().mean().tolist()}}")
                numpy.concatenate(predictions)
                torch.save(model.state_dict(), {str(saved)!r})
        except BaseException:
            open({str(saved)!r}, "w")
        """,
    )
    assert not saved.exists(), "neither by torch.save nor by a handler"
    assert calls(run).count("aten._amp_update_scale_.default") == 3
    assert phases(run).count("step") == 3
    assert any("nothing is saved" in note for note in run.notes)
    assert any("torch.int64" in note and "gets 1" in note for note in run.notes)


def test_an_optimizer_made_before_the_model_moves(tmp_path: Path) -> None:
    run = once(
        tmp_path,
        """
        model = nn.Linear(16, 16)
        optimizer = torch.optim.AdamW(model.parameters())
        model.cuda()
        for _ in range(5):
            model(torch.randn(batch, 16, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    )
    told = [label.category for label in of(Label, run)]
    assert "optimizer_state" in told
    assert parameters(run) == ["weight", "bias"]


def test_two_optimizers_share_a_step(tmp_path: Path) -> None:
    run = once(
        tmp_path,
        """
        one, two = nn.Linear(16, 16).cuda(), nn.Linear(16, 16).cuda()
        first = torch.optim.Adam(one.parameters())
        second = torch.optim.SGD(two.parameters(), 0.1)
        for _ in range(9):
            one(torch.randn(batch, 16).cuda()).sum().backward()
            first.step()
            first.zero_grad()
            two(torch.randn(batch, 16).cuda()).sum().backward()
            second.step()
            second.zero_grad()
        """,
    )
    half = ["inputs", "forward", "backward", "optimizer"]
    assert phases(run) == ["step", *half, *half] * 3
    names = parameters(run)
    assert names == ["weight", "bias", "Linear.weight", "Linear.bias"]


def test_accumulation_and_evaluation(tmp_path: Path) -> None:
    run = once(
        tmp_path,
        """
        model = nn.Linear(16, 16).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for i in range(8):
            model(torch.randn(batch, 16, device="cuda")).sum().backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    model(torch.randn(batch, 16, device="cuda"))
        """,
    )
    told = phases(run)
    assert told.count("step") == 3
    assert told[:9] == ["step"] + ["inputs", "forward", "backward", "optimizer"] * 2


def test_one_rank_of_a_job(tmp_path: Path) -> None:
    run = once(
        tmp_path,
        """
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank())
        model = DDP(torch.compile(nn.Linear(16, 16).cuda()), device_ids=[0])
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            loss = model(torch.randn(batch, 16, device="cuda")).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(loss.detach())
            dist.barrier()
        dist.destroy_process_group()
        """,
    )
    assert run.model == "Linear"
    assert parameters(run) == ["weight", "bias"]
    assert any("the model inside DistributedDataParallel is captured" in note for note in run.notes)
    assert run.settings["backend"] == "nccl"


@pytest.mark.parametrize(
    ("arguments", "backend"),
    [
        pytest.param('"gloo"', "gloo", marks=pytest.mark.nightly),
        pytest.param("backend=dist.Backend.GLOO", "gloo", marks=pytest.mark.nightly),
        ('backend="cpu:gloo,cuda:nccl"', "nccl"),
        pytest.param('"cuda:gloo"', "gloo", marks=pytest.mark.nightly),
        ('init_method="env://"', "nccl"),
    ],
)
def test_by_what_gpus_would_exchange_is_told(tmp_path: Path, arguments: str, backend: str) -> None:
    begin = f"import torch.distributed as dist\ndist.init_process_group({arguments})"
    run = once(tmp_path, begin + PLAIN)
    assert run.settings["backend"] == backend


def test_a_job_without_ranks_tells_nothing_of_them(tmp_path: Path) -> None:
    assert not {"backend", "data_parallel", "sharded"} & once(tmp_path, PLAIN).settings.keys()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param("", None, marks=pytest.mark.nightly),
        ("gradient_as_bucket_view=True, bucket_cap_mb=100", ":views:bucket100"),
        pytest.param("device_ids=[0], bucket_cap_mb=40.5", ":bucket40", marks=pytest.mark.nightly),
    ],
)
def test_what_ddp_is_told(tmp_path: Path, arguments: str, told: str | None) -> None:
    wrapped = f".cuda()\nmodel = nn.parallel.DistributedDataParallel(model, {arguments})\n"
    run = once(tmp_path, PLAIN.replace(".cuda()\n", wrapped, 1))
    assert run.settings.get("data_parallel") == told


def test_what_is_sharded(tmp_path: Path) -> None:
    shard = """
from torch.distributed.fsdp import fully_shard
fully_shard(model[0], reshard_after_forward=False)
fully_shard([model[1], model[2]])
fully_shard(model)
"""
    run = once(tmp_path, PLAIN.replace(".cuda()\n", ".cuda()\n" + shard, 1))
    assert run.settings["sharded"] == [["0"], ["1", "2"], [""]]
    assert any("--fsdp N:keep shards it" in note for note in run.notes)


def test_a_loaders_own_batch_size_is_varied(tmp_path: Path) -> None:
    told = captured(
        tmp_path,
        """
        model = nn.Linear(16, 16).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for (x,) in DataLoader(TensorDataset(torch.randn(400, 16)), 32):
            model(x.cuda()).sum().backward()
            optimizer.step()
        """,
    )
    assert told.document["batches"] == [4, 8]
    assert any("in place of the loader's 32" in note for note in told.document["notes"])
    assert told.document["own_batch"] == 32


PADDED = """
lengths = [3, 9, 5, 7, 30, 4, 6, 8] * 20
class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return len(lengths)
    def __getitem__(self, i):
        return {"ids": torch.randint(9, (lengths[i],))}
def padded(samples):
    ids = [sample.pop("ids") for sample in samples]
    return nn.utils.rnn.pad_sequence(ids, batch_first=True), torch.tensor([len(i) for i in ids])
model = nn.Embedding(9, 16).cuda()
optimizer = torch.optim.SGD(model.parameters())
for ids, length in DataLoader(Texts(), batch_size=batch, shuffle=True, collate_fn=padded):
    ids, length = ids.cuda(), length.cuda()
    ids = ids[:, : length.max().item()].contiguous()
    model(ids).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


ACCUMULATING = """
model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def get():
    return torch.randn(batch, 8).cuda()
"""


@pytest.mark.parametrize(
    ("loop", "passes"),
    [
        (
            """
for i, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(400, 8)), batch)):
    model(x.cuda()).sum().backward()
    if i % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
""",
            3,
        ),
        (
            """
x = get()
for i in range(20):
    for _ in range(4):
        loss = model(x).sum()
        x = get()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
            4,
        ),
        pytest.param(
            """
for i in range(20):
    for part in get().chunk(2):
        model(part).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
            1,
            marks=pytest.mark.nightly,
        ),
        (
            """
for i in range(20):
    x = get()
    def closure():
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss
    optimizer.step(closure)
""",
            1,
        ),
    ],
)
def test_batches_of_a_step_are_counted(tmp_path: Path, loop: str, passes: int) -> None:
    run = once(tmp_path, ACCUMULATING + loop)
    assert run.passes == passes
    found = phases(run)
    last = found[len(found) - found[::-1].index("step") :]
    # A closure's forward is none of the optimizer's turn.
    assert last[-1] == "optimizer" and last.index("backward") < last.index("optimizer")


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("python train.py", 0),
        ("torchrun train.py --nproc-per-node 3", 1),
        ("torchrun --standalone --nproc_per_node=4 train.py", 4),
        ("torchrun --nnodes 2 --nproc-per-node 8 -m pkg", 16),
        ("python -m torch.distributed.run --nproc-per-node gpu train.py", 1),
    ],
)
def test_how_many_ranks_a_launcher_starts(command: str, ranks: int) -> None:
    assert ranks_of(command.split()) == ranks


def test_a_batch_that_ranks_share(tmp_path: Path) -> None:
    text = """
    import torch.distributed as dist
    dist.init_process_group("nccl")
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        model(torch.randn(batch // dist.get_world_size(), 8).cuda()).sum().backward()
        optimizer.step()
    """
    out = tmp_path / "job.step.json.gz"
    launcher = ["torchrun", "--nproc-per-node", "8"]
    arguments = ["-o", str(out), "--", *launcher, script(tmp_path, text), "{batch}"]
    assert fresh(main, arguments).value == 0
    with gzip.open(out) as file:
        document = json.load(file)
    assert document["batches"] == [32, 64]
    assert any("rank 0 of 8" in note for note in document["notes"])


def test_batches_are_padded_to_the_same_length_at_both_sizes(tmp_path: Path) -> None:
    step = captured(tmp_path, PADDED, "{batch}")
    strings, layouts = step.document["strings"], step.document["layouts"]
    found = [e for e in step.events if e[0] == "call" and strings[e[1]] == "aten.embedding.default"]
    shapes = [layouts[event[7][0]["t"][1]][1] for event in found]
    # The steps, and one more with the heaviest batch of the data.
    assert len(shapes) == 4
    for rows, length, width in shapes:
        # As it is in the data, on the device too, and at either size of the batch.
        assert rows == [4, 8] and length in range(3, 31) and width == 16
    notes = " ".join(step.document["notes"])
    assert "of different sizes" in notes and "gets 1;" not in notes


def test_packed_sequences_are_as_long_as_they_are(tmp_path: Path) -> None:
    text = """
    rnn = nn.utils.rnn
    lengths = torch.tensor([3, 9, 5, 7])
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(8, 16, batch_first=True)
        def forward(self, x, lengths):
            packed = rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
            assert packed.data.shape[0] == lengths.sum().item()
            return rnn.pad_packed_sequence(self.lstm(packed)[0], True)[0]
    model = Tagger().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        n = lengths.repeat(batch // 4)
        model(torch.randn(batch, 9, 8).cuda(), n).sum().backward()
        optimizer.step()
    """
    step = captured(tmp_path, text, "{batch}")
    assert [24, 48] in [layout[1][0] for layout in step.document["layouts"] if layout[1]]
    assert not any("as long as the longest" in note for note in step.document["notes"])


def test_batches_that_are_fetched_ahead_are_of_one_size(tmp_path: Path) -> None:
    text = """
    model = nn.Linear(8, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    def get():
        return torch.randn(batch, 8).cuda(), torch.randn(batch, 4).cuda()
    waiting = [get()]
    for _ in range(5):
        waiting.append(get())
        x, y = waiting.pop(0)
        (model(x) - y).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    document = captured(tmp_path, text, "{batch}").document
    assert document["sizes_change"] is False
    assert not any("different sizes" in note for note in document["notes"])


def test_what_comes_to_the_device_before_the_first_step_is_no_other_size(tmp_path: Path) -> None:
    text = """
    model = nn.Linear(8, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.no_grad():  # as Lightning looks at the validation first
        model.eval()(torch.randn(3 * batch, 8).cuda())
    model.train()
    for _ in range(5):
        model(torch.randn(batch, 8).cuda()).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    assert captured(tmp_path, text, "{batch}").document["sizes_change"] is False


@pytest.mark.parametrize("question", ["mask.all()", "mask.sum() == mask.numel()"])
@pytest.mark.parametrize("padded", [0, 1])
def test_a_mask_with_padding_from_the_host_is_not_true_everywhere(
    tmp_path: Path, question: str, padded: int
) -> None:
    text = f"""
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(5):
        prompt = torch.ones(batch, 4, dtype=torch.long)
        prompt[:{padded}, 0] = 0
        x = torch.randn(batch, 8).cuda()
        answer = (model(x)[:, :4] > 0).long()
        mask = torch.cat([prompt.cuda(), answer], dim=1).to(torch.bool)
        hidden = model(x) if {question} else model(x).erf()
        hidden.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    strings = captured(tmp_path, text, "{batch}").document["strings"]
    assert ("aten.erf.default" in strings) == bool(padded)


def test_sizes_that_data_decide_are_told(tmp_path: Path) -> None:
    text = """
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(5):
        length = torch.randint(3, 99, (batch,)).max().item() + batch % 8
        model(torch.randn(batch, length, 4).cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    notes = captured(tmp_path, text, "{batch}").document["notes"]
    assert any("other sizes than at 4" in note for note in notes), notes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            """
            model = nn.Linear(8, 8).cuda()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            out = model(torch.randn(batch, 8, device="cuda"))
            torch.bincount(out.argmax(1) * 2).sum().backward()
            """,
            "train.py:10 in <module>: torch.bincount gives back",
        ),
        (
            """
            model = nn.Linear(8, 8)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            model(torch.randn(batch, 8)).sum().backward()
            optimizer.step()
            """,
            "no model on the GPU was seen to train",
        ),
        ("print('nothing')", "without a step of an optimizer"),
        ("open('/nowhere/at/all')", "train.py:7 in <module>: FileNotFoundError"),
        pytest.param("sys.exit(3)", "with exit code 3", marks=pytest.mark.nightly),
        ("sys.exit('no data here')", "the script ended itself: no data here"),
    ],
)
def test_what_cannot_work_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(CaptureError) as error:
        once(tmp_path, "\n" + textwrap.dedent(text).strip())
    assert words in str(error.value)


FEW = """
model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(STEPS):
    optimizer.zero_grad()
    model(torch.randn(batch, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "steps", [*(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 2)), 3, 5]
)
def test_few_steps_hold_what_many_do(tmp_path: Path, steps: int) -> None:
    run = once(tmp_path, FEW.replace("STEPS", str(steps)))
    made = {new.storage for call in of(Call, run) for new in call.made}
    gone = {free.storage for free in of(Free, run)}
    gradients = [label.storages for label in of(Label, run) if label.category == "gradient"]
    assert gradients
    kept = {number for numbers in gradients for number in numbers} & made - gone
    assert len(kept) <= 2, "gradients of one step at most"
    told = any("ended within" in note for note in run.notes)
    assert told == (steps < 3)


def test_an_optimizer_without_a_turn_is_told(tmp_path: Path) -> None:
    more = "\nother = torch.optim.SGD(nn.Linear(8, 8).cuda().parameters(), 0.1)"
    run = once(tmp_path, FEW.replace("STEPS", "5").replace("\nfor", more + "\nfor"))
    assert [note for note in run.notes if "SGD, 2 parameter tensors" in note]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-o x --length 64 -- python TRAIN {batch}", "{length}"),
        ("-o x -- python TRAIN {batch} {a} {b}", "2 words"),
        ("-o x -- python TRAIN 5 {batch}", "the same at batch 4 and at batch 8"),
        ("-o x --batches 8,8 -- python TRAIN {batch}", "two growing sizes"),
        ("-o x -- bash job.sh {batch}", "bash is no Python script"),
    ],
)
def test_a_command_that_cannot_be(tmp_path: Path, words: str, said: str) -> None:
    path = script(tmp_path, PLAIN)
    outcome = fresh(main, [path if word == "TRAIN" else word for word in words.split()])
    assert outcome.value == 2
    assert said in outcome.said


COPIED = """
import copy

def made():
    return nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768))

layer = made()
model = nn.Sequential(FIRST, SECOND).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    x = torch.randn(batch, 16, 768).cuda()
    model(x).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_layers_that_were_copied_are_like_those_made_anew(tmp_path: Path) -> None:
    """nn.TransformerEncoder copies its layer."""
    copied = COPIED.replace("FIRST", "copy.deepcopy(layer)").replace("SECOND", "layer")
    anew = COPIED.replace("FIRST", "made()").replace("SECOND", "layer")
    copied_step, step = (captured(tmp_path, text, "{batch}") for text in (copied, anew))
    assert happenings(copied_step.document) == happenings(step.document)


APPLIED = """
import plimsoll
way = {"batch": 16, "passes": PASSES, "set": {}, "levers": []}
plan = {"schema": "plimsoll.plan/1", "samples": 16 * PASSES, "ways": [way]}
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
applied = plimsoll.apply(plan, model, torch.optim.AdamW(model.parameters()))

def loss(model, x, y):
    return nn.functional.cross_entropy(model(x), y)

for step in range(100):
    x, y = torch.randn(batch, 32).cuda(), torch.randint(0, 8, (batch,)).cuda()
    applied.step((x, y), loss)
"""


def test_the_passes_of_a_plan_are_made_of_a_captured_batch(tmp_path: Path) -> None:
    """It has fewer samples than a pass of the plan."""
    run = once(tmp_path, APPLIED.replace("PASSES", "4"), batch=8)
    assert phases(run).count("backward") == 4 * phases(run).count("step")
    with pytest.raises(CaptureError, match="into 4 micro-batches .* one of 4 cannot") as refused:
        once(tmp_path, APPLIED.replace("PASSES", "4"), batch=4)
    assert "--batches 8,16" in refused.value.hint


ROUTED = """
    router, expert = nn.Linear(8, 4).cuda(), nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD([*router.parameters(), *expert.parameters()], 0.1)
    model = nn.ModuleList([router, expert])
    for _ in range(3):
        x = torch.randn(batch * 16, 8, device="cuda")
        chosen = router(x).softmax(-1).topk(1)[1].squeeze(-1)
        y = expert(x[chosen == 0])
        y[y > 0].sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    "assume, tokens, selected, note",
    [
        ("routing=skewed:2", [32, 64], [256, 512], "2 times its share"),
        ("routing=worst,mask=0.25", [64, 128], [128, 256], "25 % of their elements, as --assume"),
    ],
)
def test_what_is_stated_of_values(
    tmp_path: Path, assume: str, tokens: list[int], selected: list[int], note: str
) -> None:
    out = tmp_path / "job.step.json.gz"
    command = ["python", script(tmp_path, ROUTED), "{batch}"]
    assert fresh(main, ["-o", str(out), "--assume", assume, "--", *command]).value == 0
    with gzip.open(out) as file:
        step = Checked(json.load(file))
    selections = [call for name, call in step.calls() if name == "aten.index.Tensor"]
    made = [step.layout(call[7][0])[1] for call in selections]
    assert made[:2] == [[tokens, 8], [selected]]
    assert any(note in said for said in step.document["notes"])


def test_what_cannot_be_stated_of_values(tmp_path: Path, capsys: Any) -> None:
    out = str(tmp_path / "job.step.json")
    assert main(["-o", out, "--assume", "mask=2", "--", "python", "x.py"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("plimsoll: --assume has the mask '2'. Give one or more of these")


def test_two_captures_at_once_have_stores_at_ports_of_their_own():
    with socket.socket() as store:
        store.bind(("127.0.0.1", int(_environment(2)["MASTER_PORT"])))
        assert int(_environment(2)["MASTER_PORT"]) != store.getsockname()[1]


#: What a capture cannot follow, and one sentence of ours in place of PyTorch's own texts.
NOT_FOLLOWED = {
    "nn.CTCLoss()(x.log_softmax(-1)[:, None], torch.ones(1, 2, dtype=torch.long).cuda(), "
    "torch.full((1,), 16), torch.full((1,), 2))": "cannot run without data",
    "torch.cuda.CUDAGraph()": "CUDAGraph needs a GPU",
    "torch.multiprocessing.spawn(print)": "are not followed",
    "nn.LazyLinear(4).cuda()": "lazy modules",
}
FOLLOWED = """
stats = torch.cuda.memory_stats()
print(stats["allocated_bytes.all.peak"], stats.get("num_ooms", 0), torch.cuda.memory_snapshot())
import torch.distributed as dist
dist.init_process_group("nccl")
out = [None]
dist.all_gather_object(out, {"rows": 3})
assert out == [{"rows": 3}]
dist.broadcast_object_list(out, src=0)
"""
BEFORE_STEPS = """
model = nn.Linear(8, 8).cuda(); x = torch.randn(16, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
{}
for _ in range(3):
    loss = model(x).mean(); optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize("line", NOT_FOLLOWED)
def test_what_is_not_followed_is_said_in_one_sentence(tmp_path: Path, line: str) -> None:
    path = script(tmp_path, BEFORE_STEPS.format(line))
    outcome = fresh(main, ["-o", str(tmp_path / "x"), "--", "python", path])
    assert outcome.value == 2
    assert NOT_FOLLOWED[line] in outcome.said and "Traceback" not in outcome.said
    assert len(outcome.said) < 300, outcome.said


def test_figures_of_the_allocator_and_objects_of_other_ranks_are_followed(tmp_path: Path) -> None:
    text = BEFORE_STEPS.replace("{}", FOLLOWED).replace("16, 8", "batch, 8")
    assert captured(tmp_path, text, "{batch}").document["batches"] == [4, 8]
