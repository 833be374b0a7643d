"""What libraries save and load past torch.save, and when: nothing is written, and it is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from library_jobs import ACCELERATE, LIGHTNING, TRANSFORMERS  # noqa: E402
from test_later import JOB, parts, steps  # noqa: E402
from test_script import captured  # noqa: E402

#: Of the job's two layers.
WEIGHTS = 4 * (512 * 1024 + 1024 * 8)
LARGEST = 4 * 512 * 1024
LARGE = (
    JOB.replace("32, 64", "512, 1024").replace("(64, 8)", "(1024, 8)").replace(", 32)", ", 512)")
)


def in_folder(folder: Path, text: str) -> str:
    return f"import os\nos.chdir({str(folder)!r})\n" + text


def stages(document: dict[str, Any]) -> list[str]:
    """Each once, in order."""
    return list(dict.fromkeys(part[0] for part in parts(document)))


def made_in(document: dict[str, Any], stage: str) -> int:
    """Results on the device in the first part of a stage."""
    events = document["variants"][0]["events"]
    begin = events.index(["part", stage])
    count = 0
    for event in events[begin + 1 :]:
        if event[0] == "part":
            break
        count += event[0] == "call" and bool(event[8])
    return count


def on_host(document: dict[str, Any], stage: str) -> int:
    """More than in the steps, at the peak of the first part of a stage."""
    index = [part[0] for part in parts(document)].index(stage)
    return int(document["host"]["later"][index][0] - document["host"]["steps"][0])


SAFETENSORS = """
import os, types
def save_file(tensors, filename, metadata=None):
    raise RuntimeError("this would write")
def load_file(filename, device="cpu"):
    raise RuntimeError("this would read")
def safe_open(filename, *args, **kwargs):
    raise RuntimeError("this would read")
def storage_ptr(tensor):
    return tensor.untyped_storage().data_ptr()
def end_ptr(tensor):
    return tensor.view(-1)[-1].data_ptr() + tensor.element_size()
package, module = types.ModuleType("safetensors"), types.ModuleType("safetensors.torch")
package.torch, package.safe_open = module, safe_open
for function in (save_file, load_file):
    setattr(module, function.__name__, function)
# Functions of the library are told by the module that they are of.
for function in (storage_ptr, end_ptr):
    names = {"__name__": "safetensors.torch", "__builtins__": __builtins__}
    setattr(module, function.__name__, types.FunctionType(function.__code__, names))
sys.modules["safetensors"], sys.modules["safetensors.torch"] = package, module
"""


def test_safetensors_are_not_written_and_can_be_loaded(tmp_path: Path) -> None:
    text = SAFETENSORS + LARGE.replace("range(3)", "range(1)") + """
save_file(model.state_dict(), "model.safetensors")
assert os.path.isfile("model.safetensors")
on_gpu = load_file("model.safetensors", device="cuda")
assert on_gpu["0.weight"].shape == (1024, 512) and on_gpu["0.weight"].is_cuda
model.load_state_dict(on_gpu)
with package.safe_open("model.safetensors", framework="pt") as file:
    assert set(file.keys()) == set(on_gpu) and not file.get_tensor("0.weight").is_cuda
    assert file.get_slice("0.weight").get_shape() == [1024, 512]
print("the end")
"""
    told = captured(tmp_path, in_folder(tmp_path, text), "{batch}").document
    assert not any("not be followed" in note for note in told["notes"])
    assert stages(told) == ["save", "load"] and made_in(told, "load") == 4
    # All tensors are on the host at once, where torch.save has one after the other.
    assert WEIGHTS <= on_host(told, "save") <= WEIGHTS + 8192
    assert not (tmp_path / "model.safetensors").exists()


def test_tensors_that_share_memory_are_found(tmp_path: Path) -> None:
    text = SAFETENSORS + JOB.replace("range(3)", "range(1)") + """
first, other = model[0].weight, model[2].weight
assert module.storage_ptr(first) == module.storage_ptr(first.detach().view(-1))
assert 0 != module.storage_ptr(first) != module.storage_ptr(other)
assert module.end_ptr(first) == module.storage_ptr(first) + 4 * first.numel()
torch.save(1, "here.pt")
"""
    told = captured(tmp_path, in_folder(tmp_path, text), "{batch}").document
    assert stages(told) == ["save"], told["notes"]


DISTRIBUTED = """
import os
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict)
from torch.distributed.fsdp import fully_shard
class State:
    def state_dict(self):
        parts = get_state_dict(model, optimizer)
        return dict(zip(("model", "optimizer"), parts))
    def load_state_dict(self, state):
        set_state_dict(model, optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])
"""
SHARDED = LARGE.replace("optimizer =", "fully_shard(model)\noptimizer =", 1)
SHARDED = DISTRIBUTED + SHARDED.replace("range(3)", "range(1)")


def test_a_sharded_checkpoint_goes_through_the_host(tmp_path: Path) -> None:
    text = SHARDED + """
dcp.save({"state": State()}, checkpoint_id="last")
dcp.load({"state": State()}, checkpoint_id="last")
dcp.async_save({"state": State()}, checkpoint_id="other").result()
"""
    told = captured(tmp_path, in_folder(tmp_path, text), "{batch}").document
    assert not any("not be followed" in note for note in told["notes"])
    assert [part[0] for part in parts(told)] == ["save", "load", "save"]
    # The weights and two moments of each: small ones go together, and later all beside the
    # computation. They are read one by one.
    save, load, later = (row[0] - told["host"]["steps"][0] for row in told["host"]["later"])
    assert 3 * WEIGHTS <= save == later <= 3 * WEIGHTS + 32768 and load == LARGEST
    assert {path.name for path in tmp_path.iterdir()} == {"job.step.json.gz", "train.py"}


def test_a_sharded_checkpoint_may_be_loaded_first(tmp_path: Path) -> None:
    """torch lets the optimizer step for its state: that is no step of the training."""
    load = 'dcp.load({"state": State()}, checkpoint_id="x")\n'
    text = SHARDED.replace("for epoch", load + "for epoch")
    told = captured(tmp_path, text, "{batch}").document
    assert steps(told) == 3 and any("nothing is loaded" in note for note in told["notes"])
    plain = captured(tmp_path, SHARDED, "{batch}").document
    labelled = [[e for e in d["variants"][0]["events"] if e[0] == "label"] for d in (told, plain)]
    assert len(labelled[0]) == len(labelled[1])


OF_MODEL = "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True{}))"
WHOLE = [
    OF_MODEL.format(""),
    OF_MODEL.format(", cpu_offload=True"),
    "{name: p.full_tensor() for name, p in model.state_dict().items()}",
]


@pytest.mark.parametrize("whole", WHOLE)
def test_whole_tensors_of_a_sharded_model_are_made(tmp_path: Path, whole: str) -> None:
    text = SHARDED + f"state = {whole}\ntorch.save(state, 'whole.pt')\n"
    told = captured(tmp_path, text, "{batch}").document
    assert stages(told) == ["save"] and made_in(told, "save") == 4
    # One by one, or all together without small ones.
    assert on_host(told, "save") == LARGEST


def test_only_sharded_tensors_have_a_whole(tmp_path: Path) -> None:
    text = JOB + "assert not hasattr(model[0].weight, 'full_tensor')\ntorch.save(1, 'x.pt')\n"
    assert "save" in stages(captured(tmp_path, text, "{batch}").document)


def test_folders_go_and_settings_can_be_read(tmp_path: Path) -> None:
    text = JOB + """
import json, os, tempfile
from pathlib import Path
os.makedirs("out/checkpoint-3", exist_ok=True)
number, name = tempfile.mkstemp(dir=".")
json.dump({"a": 1}, open("out/checkpoint-3/config.json", "w"))
assert json.load(open("out/checkpoint-3/config.json")) == {"a": 1}
assert Path("out/checkpoint-3/config.json").exists() and os.listdir("out") == ["checkpoint-3"]
torch.save(model.state_dict(), "out/checkpoint-3/model.pt")
os.rename("out/checkpoint-3", "out/last")
assert len(torch.load("out/last/model.pt")) == 4
"""
    told = captured(tmp_path, in_folder(tmp_path, text), "{batch}").document
    assert [note for note in told["notes"] if "not be followed" in note] == []
    assert {path.name for path in tmp_path.iterdir()} == {"job.step.json.gz", "train.py"}


def test_two_runs_beside_each_other_do_not_meet_in_a_folder(tmp_path: Path) -> None:
    """One begins later, and one ends sooner."""
    text = JOB + """
import os, time
time.sleep(0.5 if batch == 8 else 0)
assert not os.path.isdir("out")
os.mkdir("out")
time.sleep(1 if batch == 8 else 0)
assert os.path.isdir("out") and os.listdir("out") == []
os.mkdir("out/more")
assert os.path.exists("out/more")
"""
    told = captured(tmp_path, in_folder(tmp_path, text), "{batch}").document
    assert "lost_at" not in told
    assert {path.name for path in tmp_path.iterdir()} == {"job.step.json.gz", "train.py"}


def test_what_a_loop_saves_after_its_last_step_is_no_part_of_it(tmp_path: Path) -> None:
    text = JOB.replace("range(3):", "range(1):") + """
        torch.save(model.state_dict(), "last.pt")
        open("log.txt", "a").write("x")
"""
    told = captured(tmp_path, in_folder(tmp_path, text), "{batch}").document
    assert parts(told)[0] == ["save"]
    assert not (tmp_path / "log.txt").exists(), "what a script writes stays in its runs"


def test_numbers_of_steps_are_loaded_as_they_were(tmp_path: Path) -> None:
    text = JOB + """
    torch.save(optimizer.state_dict(), "o.pt")
    state = torch.load("o.pt", map_location="cpu")
    assert state["state"][0]["step"].item() == optimizer.state_dict()["state"][0]["step"].item()
    torch.save({"torch": torch.get_rng_state()}, "rng.pt")
    torch.set_rng_state(torch.load("rng.pt")["torch"])
"""
    told = captured(tmp_path, text, "{batch}").document
    assert not any("not be followed" in note for note in told["notes"])


# Schedules, with as much of the libraries as is asked for.

TRAINER = """
import types
class CallbackHandler:
    def on_step_end(self, args, state, control, **kwargs):
        return control
module = types.ModuleType("transformers.trainer_callback")
module.CallbackHandler = CallbackHandler
sys.modules[module.__name__] = module
args = types.SimpleNamespace(eval_strategy="no", save_strategy=sys.argv[2])
control = types.SimpleNamespace(should_save=False, should_training_stop=False)
loader = DataLoader(TensorDataset(torch.randn(400, 32)), batch_size=batch)
model = nn.Linear(32, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while not control.should_training_stop:
    for (x,) in loader:
        model(x.cuda()).sum().backward()
        optimizer.step()
        control = CallbackHandler().on_step_end(args, None, control)
        if control.should_save:
            control.should_save = False
            torch.save(model.state_dict(), "checkpoint.pt")
        if control.should_training_stop:
            break
validation = DataLoader(TensorDataset(torch.randn(96, 32)), batch_size=batch)
with torch.no_grad():
    for (x,) in validation:
        model(x.cuda())
"""


def test_the_save_of_a_trainer_is_brought_forward(tmp_path: Path) -> None:
    told = captured(tmp_path, TRAINER, "{batch}", "steps").document
    # It ends, and what the script does then is seen.
    assert stages(told) == ["save", "step", "evaluation"]


def test_a_trainer_that_does_not_save_does_not(tmp_path: Path) -> None:
    told = captured(tmp_path, TRAINER, "{batch}", "no").document
    assert "save" not in stages(told) and "evaluation" in stages(told)


LIGHTNINGS = """
import types
class _TrainingEpochLoop:
    def _should_check_val_fx(self, fetcher):
        return False
class ModelCheckpoint:
    _every_n_train_steps, _every_n_epochs, _train_time_interval = 1000, 0, None
    def on_train_batch_end(self, step):
        if self._every_n_train_steps and step % self._every_n_train_steps == 0:
            torch.save(model.state_dict(), "checkpoint.ckpt")
for name, one in (("loops.training_epoch_loop", _TrainingEpochLoop),
                  ("callbacks.model_checkpoint", ModelCheckpoint)):
    module = types.ModuleType("lightning.pytorch." + name)
    setattr(module, one.__name__, one)
    sys.modules[module.__name__] = module
loop, checkpoint = _TrainingEpochLoop(), ModelCheckpoint()
loop.trainer = types.SimpleNamespace(enable_validation=True, should_stop=False)
loader = DataLoader(TensorDataset(torch.randn(400, 32)), batch_size=batch)
validation = DataLoader(TensorDataset(torch.randn(96, 32)), batch_size=batch)
model = nn.Linear(32, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
while not loop.trainer.should_stop:
    for (x,) in loader:
        model(x.cuda()).sum().backward()
        optimizer.step()
        step += 1
        checkpoint.on_train_batch_end(step)
        if loop._should_check_val_fx(None):
            with torch.no_grad():
                for (x,) in validation:
                    model(x.cuda())
        if loop.trainer.should_stop:
            break
assert checkpoint._every_n_train_steps == 1000
"""


def test_lightnings_validation_and_checkpoint_are_brought_forward(tmp_path: Path) -> None:
    told = captured(tmp_path, LIGHTNINGS, "{batch}").document
    assert parts(told)[:5] == [
        ["save"],
        ["evaluation"],
        ["evaluation"],
        ["evaluation", {"times": [22, 10]}],
        ["evaluation", {"batches": [24, 12], "seen": 3}],
    ]
    assert not any("not be followed" in note for note in told["notes"])


# The libraries themselves, where they are installed.


@pytest.mark.parametrize(
    ("library", "text", "seen"),
    [
        ("lightning", LIGHTNING, {"evaluation", "save", "step", "load"}),
        ("accelerate", ACCELERATE, {"evaluation", "save", "step", "load"}),
        ("transformers", TRANSFORMERS, {"evaluation", "save", "step", "load"}),
    ],
)
def test_a_job_of_a_library_is_followed_to_its_end(
    tmp_path: Path, library: str, text: str, seen: set[str]
) -> None:
    pytest.importorskip(library)
    told = captured(tmp_path, in_folder(tmp_path, text), "{batch}").document
    assert steps(told) == 3 and set(stages(told)) == seen, told["notes"]
    assert not any("not be followed" in note for note in told["notes"])
    assert ["evaluation", {"times": [22, 10]}] in parts(told)
    left = {path.name for path in tmp_path.rglob("*")} - {"job.step.json.gz", "train.py"}
    assert left <= {"checkpoints"}, "a folder that was made before the steps"
