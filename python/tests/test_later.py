"""What a script does after its steps: it is followed there, in seconds and without a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_script import captured  # noqa: E402

from plimsoll.scripts import heaviest  # noqa: E402

#: What a job begins with.
HEAD = """
train = TensorDataset(torch.randn(80, 32), torch.randint(0, 8, (80,)))
held_out = TensorDataset(torch.randn(96, 32), torch.randint(0, 8, (96,)))
loader, validation = DataLoader(train, batch_size=batch), DataLoader(held_out, batch_size=batch)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
"""
JOB = (
    HEAD
    + """\
for epoch in range(3):
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
)
EVALUATION = """
    model.eval()
    outs = []
    with torch.no_grad():
        for x, y in validation:
            outs.append(model(x.cuda()))
    print(torch.cat(outs).argmax(-1).float().mean().item())
    del outs
"""


def parts(document: dict[str, Any]) -> list[Any]:
    return [event[1:] for event in document["variants"][0]["events"] if event[0] == "part"]


def steps(document: dict[str, Any]) -> int:
    return [event[0] for event in document["variants"][0]["events"]].count("step")


def test_steps_alone_are_as_before(tmp_path: Path) -> None:
    told = captured(tmp_path, JOB, "{batch}").document
    assert parts(told) == [] and steps(told) == 3
    assert any("no evaluation was seen" in note for note in told["notes"])


def test_an_evaluation_is_seen_and_its_batches_are_counted(tmp_path: Path) -> None:
    told = captured(tmp_path, JOB + EVALUATION, "{batch}").document
    seen = parts(told)
    # Three batches of 24 and of 12, and what is done with all of them.
    assert seen[:4] == [
        ["evaluation"],
        ["evaluation"],
        ["evaluation", {"times": [22, 10]}],
        ["evaluation", {"batches": [24, 12], "seen": 3}],
    ]
    assert ["step"] in seen, "the next epoch begins"
    assert not any("evaluation" in note for note in told["notes"])
    assert told["epoch"] == [20, 10], "steps that come before"


def test_a_loop_that_ends_by_itself_is_told_as_it_is(tmp_path: Path) -> None:
    counted = JOB.replace("for x, y in loader:", "for x, y in list(loader)[:4]:")
    assert "epoch" not in captured(tmp_path, counted + EVALUATION, "{batch}").document


def test_what_is_saved_can_be_loaded_and_nothing_is_written(tmp_path: Path) -> None:
    left = tmp_path / "metrics.json"
    left.write_text("as it was")
    text = JOB + f"""
state = dict(model=model.state_dict(), optimizer=optimizer.state_dict())
torch.save(state, {str(tmp_path / "last.pt")!r})
del state
open({str(left)!r}, "w").write("changed")
import os
os.remove({str(left)!r})
again = torch.load({str(tmp_path / "last.pt")!r}, map_location="cuda")
model.load_state_dict(again["model"])
optimizer.load_state_dict(again["optimizer"])
"""
    told = captured(tmp_path, text, "{batch}").document
    assert left.read_text() == "as it was"
    assert not (tmp_path / "last.pt").exists()
    events = told["variants"][0]["events"]
    at = events.index(["part", "load"])
    made = [event for event in events[at:] if event[0] == "call" and event[8]]
    # Four parameters, and of each two moments and the count of steps, which map_location moves too.
    assert len(made) == 16


def test_checkpoints_may_be_copied_and_removed_within_the_steps(tmp_path: Path) -> None:
    last, best = str(tmp_path / "last.pt"), str(tmp_path / "best.pt")
    text = (
        JOB
        + f"""
        import os, shutil
        torch.save(model.state_dict(), {last!r})
        shutil.copyfile({last!r}, {best!r})
        os.remove({last!r})
        assert not os.path.exists({last!r})
        model.load_state_dict(torch.load({best!r}))
"""
    )
    assert "lost_at" not in captured(tmp_path, text, "{batch}").document
    assert not (tmp_path / "best.pt").exists()


def test_a_small_file_that_is_written_behind_the_steps_can_be_read(tmp_path: Path) -> None:
    path = str(tmp_path / "metrics.csv")
    text = (
        JOB
        + f"""
with open({path!r}, "wb") as file:
    file.write(b"loss,accuracy")
with open({path!r}, "ab") as file:
    file.write(b",step")
assert open({path!r}).read() == "loss,accuracy,step"
with open({path!r}, "wb") as file:
    for _ in range(5):
        file.write(bytes(20 << 20))
import os
assert os.path.getsize({path!r}) <= 64 << 20
"""
    )
    assert "lost_at" not in captured(tmp_path, text, "{batch}").document


def test_an_error_there_is_told_and_the_steps_count(tmp_path: Path) -> None:
    told = captured(tmp_path, JOB + "\nraise RuntimeError('no report')\n", "{batch}").document
    assert steps(told) == 3
    assert any("no report" in note for note in told["notes"])


def test_a_loop_without_an_end_is_ended(tmp_path: Path) -> None:
    endless = JOB.replace("for epoch in range(3):", "while True:")
    told = captured(tmp_path, endless, "{batch}").document
    assert parts(told) == [] and steps(told) == 3
    assert any("followed to its end" in note for note in told["notes"])


def test_weights_that_are_gathered_are_part_of_the_save(tmp_path: Path) -> None:
    text = JOB + """
    whole = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.save(whole, "last.pt")
    del whole
"""
    told = captured(tmp_path, text, "{batch}").document
    assert parts(told)[:4] == [["save"], ["step"], ["save"], ["step"]]
    events, strings = told["variants"][0]["events"], told["strings"]
    stage, gathered = "", []
    for event in events:
        stage = event[1] if event[0] == "part" else stage
        if event[0] == "call" and strings[event[1]] == "aten.cat.default":
            gathered.append(stage)
    assert set(gathered) == {"save"}


GENERATOR = """
critic, generator = nn.Linear(32, 1).cuda(), nn.Linear(16, 32).cuda()
first, second = (torch.optim.Adam(m.parameters()) for m in (critic, generator))
loader = DataLoader(TensorDataset(torch.randn(400, 32)), batch_size=batch)
for step, (x,) in enumerate(loader):
    with torch.no_grad():
        made = generator(torch.randn(batch, 16, device="cuda"))
    loss = critic(made).mean() - critic(x.cuda()).mean()
    first.zero_grad(); loss.backward(); first.step()
    if step % 5 == 4:
        loss = -critic(generator(torch.randn(batch, 16, device="cuda"))).mean()
        second.zero_grad(); loss.backward(); second.step()
"""


def test_an_optimizer_that_has_its_turn_later_is_waited_for(tmp_path: Path) -> None:
    told = captured(tmp_path, GENERATOR, "{batch}").document
    assert not any("had no turn" in note for note in told["notes"])
    # What the generator makes for its critic, without autograd, is no evaluation.
    assert parts(told) == [["step"]]


def test_a_teacher_that_comes_later_is_counted(tmp_path: Path) -> None:
    text = JOB.replace("range(3)", "range(1)") + """
teacher = nn.Sequential(nn.Linear(32, 4096), nn.Linear(4096, 8)).cuda().eval()
for x, y in loader:
    with torch.no_grad():
        target = teacher(x.cuda())
    loss = (model(x.cuda()) - target).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
    told = captured(tmp_path, text, "{batch}").document
    assert parts(told) == [["step"]]


LENGTHS = """
class Texts(torch.utils.data.Dataset):
    def __len__(self): return 200
    def __getitem__(self, i): return torch.randn(90 if i == 150 else 5 + i % 3, 32)
pad = lambda texts: nn.utils.rnn.pad_sequence(texts, batch_first=True)
loader = DataLoader(Texts(), batch_size=batch, collate_fn=pad)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for x in loader:
    loss = model(x.cuda()).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def test_the_heaviest_batch_of_the_data_gets_a_step(tmp_path: Path) -> None:
    told = captured(tmp_path, LENGTHS, "{batch}").document
    assert parts(told) == [["step", {"heaviest": "of_all"}]]
    assert [["float32", [[4, 8], 90, 32]]] == [
        layout[:2] for layout in told["layouts"] if layout[1][1:] == [90, 32]
    ][:1]


def test_data_that_are_slow_to_read_are_not_read_to_their_end() -> None:
    search = heaviest.Heaviest(seconds=-1.0)
    assert search.find(0, lambda: torch.zeros(9)) is None and search.looked == heaviest.OF_FIRST


def test_who_keeps_what_a_step_leaves_is_told(tmp_path: Path) -> None:
    text = JOB.replace("range(3):", "range(3):\n    kept = [[]]", 1)
    text += "        kept[0].append(loss)\n"
    told = captured(tmp_path, text, "{batch}").document
    assert told["kept_by"]["name"] == "kept"
    line = int(told["kept_by"]["where"].rsplit(":", 1)[1])
    assert "append(loss)" in (tmp_path / "train.py").read_text().splitlines()[line - 1]


def test_an_attribute_that_keeps_is_told(tmp_path: Path) -> None:
    text = "class Log:\n    seen = 0\nlog = Log()\nlog.losses = []\n" + JOB
    text += "        log.losses.append(loss)\n"
    told = captured(tmp_path, text, "{batch}").document
    assert told["kept_by"]["name"] == "Log.losses"


def test_what_is_on_the_host_is_counted(tmp_path: Path) -> None:
    text = """
model = nn.Sequential(nn.Linear(512, 2048), nn.Linear(2048, 8))
copies = [p.detach().double() for p in model.parameters()]
del copies
model = model.cuda()
loader = DataLoader(TensorDataset(torch.randn(400, 512)), batch_size=batch)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    model(x.cuda()).sum().backward()
    optimizer.step()
state = model.state_dict()
torch.save(state, "last.pt")
del state
again = torch.load("last.pt", map_location="cpu")
more = torch.zeros(4096, 1024)
model(more[:4, :512].cuda()).sum().backward()
optimizer.step()
"""
    host = captured(tmp_path, text, "{batch}").document["host"]
    # Without the biases: small ones are not counted.
    weights = 4 * (512 * 2048 + 2048 * 8)
    peak, where = host["build"][:2]
    assert 3 * weights <= peak <= 3 * weights + (1 << 20) and where.startswith("train.py:")
    save, load = (row[0] for row in host["later"][:2])
    assert save == host["steps"][0] + 4 * 512 * 2048, "one tensor at a time"
    assert load >= host["steps"][0] + weights and host["later"][-1][0] >= 16 << 20


TRAINER = """
import types
class CallbackHandler:
    def on_step_end(self, args, state, control, **kwargs):
        return control
module = types.ModuleType("transformers.trainer_callback")
module.CallbackHandler = CallbackHandler
sys.modules[module.__name__] = module
args = types.SimpleNamespace(eval_strategy=sys.argv[2])
control = types.SimpleNamespace(should_evaluate=False)
train = TensorDataset(torch.randn(400, 32))
loader = DataLoader(train, batch_size=batch)
validation = DataLoader(TensorDataset(torch.randn(96, 32)), batch_size=batch)
model = nn.Linear(32, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    model(x.cuda()).sum().backward()
    optimizer.step()
    control = CallbackHandler().on_step_end(args, None, control)
    if control.should_evaluate:
        control.should_evaluate = False
        with torch.no_grad():
            for (x,) in validation:
                model(x.cuda())
"""


LOADING = """
data = TensorDataset(torch.randn(100, 3000))
loader = DataLoader(data, batch_size=batch, num_workers=2, pin_memory=True, prefetch_factor=3)
model = nn.Linear(3000, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x,) in enumerate(loader):
    assert x.is_pinned() and loader.num_workers == 2
    loss = model(x.cuda(non_blocking=True)).sum()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def test_pinned_batches_and_workers_are_counted(tmp_path: Path) -> None:
    told = captured(tmp_path, LOADING, "{batch}").document
    build, steps = told["host"]["build"][2], told["host"]["steps"][2]
    first, second = told["batches"]
    size = [12000 * first, 12000 * second]
    # Three of each worker, of which the first is given.
    assert build["pinned"] == [*[size] * 6, -1, size] and build["workers"] == 2
    assert steps["shared"] == [2 * size[0], 2 * size[1]]
    # A number that is read; the batch for the one that was given; the next one.
    assert steps["pinned"][:5] == [4, -8, size, -2, size]


def test_what_comes_to_the_host_beside_the_computation_is_pinned(tmp_path: Path) -> None:
    keep = LOADING.replace(", pin_memory=True", "").replace("x.is_pinned()", "not x.is_pinned()")
    keep = keep.replace("print", 'kept = model.weight.to("cpu", non_blocking=True); print')
    told = captured(tmp_path, keep, "{batch}").document
    assert told["host"]["build"][2].get("pinned", []) == []
    # The second is there before the first is let go.
    assert told["host"]["steps"][2]["pinned"][:5] == [96000, 4, -2, 96000, -1]


def test_workers_collate_elsewhere_and_may_stay(tmp_path: Path) -> None:
    kept = LOADING.replace(", pin_memory=True", ", persistent_workers=True")
    kept = kept.replace("assert x.is_pinned() and", "assert")
    host = captured(tmp_path, kept + EVALUATION_OF_LOADING, "{batch}").document["host"]
    assert host["steps"][0] == 100 * 3000 * 4, "the data; batches are those of the workers"
    assert host["steps"][2]["workers"] == 2
    assert [part[2]["workers"] for part in host["later"][:3]] == [3, 3, 3]


EVALUATION_OF_LOADING = """
held_out = DataLoader(TensorDataset(torch.randn(100, 3000)), batch_size=20, num_workers=1)
model.eval()
with torch.no_grad():
    for (x,) in held_out:
        model(x.cuda())
"""


def test_large_bounds_of_random_numbers_are_no_sizes(tmp_path: Path) -> None:
    text = """
tokens = torch.zeros(3000000, dtype=torch.long)
model = nn.Embedding(100, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    at = torch.randint(3000000 - 32, (batch,))
    x = torch.stack([tokens[i : i + 32] for i in at]).cuda()
    assert x.shape == (batch, 32)
    model(x).sum().backward()
    optimizer.step()
"""
    assert steps(captured(tmp_path, text, "{batch}").document) == 3


def test_a_loader_that_is_a_batch_ahead_ends_before_its_last_batch(tmp_path: Path) -> None:
    ahead = EVALUATION.replace("in validation:", "in ahead(validation):")
    text = """
def ahead(loader):
    batches = iter(loader)
    current = next(batches)
    for following in batches:
        yield current
        current = following
    yield current
"""
    told = captured(tmp_path, text + JOB + ahead, "{batch}").document
    # The last one is computed after the end, and is not all of them together.
    assert not any("batches" in part[-1] for part in parts(told)[:4] if len(part) > 1)


def test_padding_does_not_end_it(tmp_path: Path) -> None:
    text = """
train = TensorDataset(torch.randn(40, 8, 32), torch.zeros(40, 8, dtype=torch.bool))
loader = DataLoader(train, batch_size=batch)
layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
model = nn.TransformerEncoder(layer, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, padding in loader:
    model(x.cuda(), src_key_padding_mask=padding.cuda()).sum().backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    for x, padding in loader:
        model(x.cuda(), src_key_padding_mask=padding.cuda())
"""
    told = captured(tmp_path, text, "{batch}").document
    assert ["evaluation"] in parts(told) and "lost_at" not in told


def test_where_it_could_not_be_followed_is_told(tmp_path: Path) -> None:
    told = captured(tmp_path, JOB + EVALUATION + "\n    raise ValueError\n", "{batch}").document
    assert told["lost_at"].startswith("train.py:")


def test_without_a_placeholder_loaders_keep_their_ratio(tmp_path: Path) -> None:
    text = JOB + EVALUATION
    text = text.replace("DataLoader(train, batch_size=batch)", "DataLoader(train, 16)")
    text = text.replace("DataLoader(held_out, batch_size=batch)", "DataLoader(held_out, 48)")
    told = captured(tmp_path, text, "1").document
    assert told["own_batch"] == 16 and ["evaluation"] in parts(told)
    # Three times the batch of a step: 12 rows of 32 numbers, and 24.
    sizes = [layout[1] for layout in told["layouts"]]
    assert [[4, 8], 32] in sizes and [[12, 24], 32] in sizes


def test_an_evaluation_of_the_training_data_is_one(tmp_path: Path) -> None:
    told = captured(
        tmp_path, JOB + EVALUATION.replace("validation", "loader"), "{batch}"
    ).document
    assert ["evaluation"] in parts(told)


def test_the_evaluation_of_a_trainer_is_brought_forward(tmp_path: Path) -> None:
    told = captured(tmp_path, TRAINER, "{batch}", "steps").document
    assert parts(told)[2] == ["evaluation", {"times": [22, 10]}]


def test_a_trainer_without_an_evaluation_gets_none(tmp_path: Path) -> None:
    told = captured(tmp_path, TRAINER, "{batch}", "no").document
    assert parts(told) == []


def test_what_is_compiled_and_never_called_is_no_compiling_script(tmp_path: Path) -> None:
    """As libraries do where they are imported."""
    unused = "@torch.compile(dynamic=False)\ndef unused(x): return x\n"
    told = captured(tmp_path, JOB.replace("for epoch", f"{unused}for epoch", 1), "{batch}").document
    assert not any("compile" in note for note in told["notes"])


def test_a_long_evaluation_is_counted_as_far_as_all_runs_went(tmp_path: Path) -> None:
    """A loop that is cut short by time is not as long in each run; nor is this one."""
    text = JOB + """
model.eval()
with torch.no_grad():
    for i in iter(list(range(20 + batch)).pop, 0):
        out = model(torch.randn(512, 32, device="cuda"))
"""
    told = captured(tmp_path, text, "{batch}").document
    assert "evaluation" in [part[0] for part in parts(told)] and "lost_at" not in told
    [note] = [note for note in told["notes"] if "is counted as far as" in note]
    assert "the evaluation that follows the steps" in note and "batch 4 and at batch 8" in note


ASKED = (
    HEAD
    + """\
batches = iter(loader)
model.train()
for step in range(8):
    {asked}
    loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)


@pytest.mark.parametrize(
    "asked",
    [
        "x, y = next(batches)",
        "x, y = (lambda: batches.__next__())()",
        """try:
        x, y = next(batches)
    except StopIteration:
        batches = iter(loader)
        x, y = next(batches)""",
        """x, y = next(batches, (None, None))
    if x is None: break""",
    ],
    ids=["next", "in a function", "caught", "with a value for the end"],
)
def test_a_script_that_asks_for_its_batches_is_followed_to_its_end(
    tmp_path: Path, asked: str
) -> None:
    text = ASKED.replace("{asked}", asked) + EVALUATION.replace("\n    ", "\n")
    told = captured(tmp_path, text, "{batch}").document
    assert "lost_at" not in told and "not_followed" not in told
    assert ["evaluation", {"batches": [24, 12], "seen": 3}] in parts(told)
