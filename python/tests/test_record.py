"""plimsoll.record against a stub of torch's allocator: what is written when, where, and how it is
told. On a GPU it is tried by test_real_gpu.py."""

from __future__ import annotations

import ast
import atexit
import os
import pickle
import sys
import types
from pathlib import Path

import pytest

import plimsoll
from plimsoll.recording import record as memory_history
from plimsoll.recording.hook import plimsoll_history


class Stub(types.SimpleNamespace):
    """A torch with one GPU, of which only what a recording asks is there."""

    def __init__(self, record=None, initialized=True):
        super().__init__(
            __version__="9.9", calls=[], observers=[], allocations=7, queue=[], marks=[]
        )
        self.initialized = initialized
        self.enabled = False
        memory = types.SimpleNamespace(
            _record_memory_history=record or self._record, _snapshot=self._snapshot
        )
        self.cuda = types.SimpleNamespace(
            device_count=lambda: 1,
            _lazy_call=lambda call: call() if self.initialized else self.queue.append(call),
            is_initialized=lambda: self.initialized,
            memory=memory,
            memory_stats=lambda device: {"allocation.all.allocated": self.allocations},
        )
        self._C = types.SimpleNamespace(
            _cuda_init=None,
            _cuda_isHistoryEnabled=lambda: self.enabled,
            _cuda_attach_out_of_memory_observer=self.observers.append,
        )
        self.Tensor = type("Tensor", (), {})
        profiler = types.SimpleNamespace(record_function=self._mark)
        self.autograd = types.SimpleNamespace(profiler=profiler)

    def _record(self, enabled="all", context=None, stacks=None, max_entries=0):
        self.calls.append((enabled, max_entries))
        self.enabled = enabled is not None

    def _snapshot(self):
        return f"after {self.allocations}"

    def _mark(self, name):
        marks = self.marks

        class Mark:
            def __enter__(self):
                marks.append(name)

            def __exit__(self, *args):
                marks.append("end")

        return Mark()

    def initialize(self):
        self.initialized = True
        for call in self.queue:
            call()

    def run_out(self):
        for observer in self.observers:
            observer(0, 1 << 20, 1 << 30, 1 << 10)


@pytest.fixture
def torch(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK", "PMI_RANK", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(memory_history, "_said", set())
    stub = Stub()
    monkeypatch.setitem(sys.modules, "torch", stub)
    ends = []
    monkeypatch.setattr(atexit, "register", ends.append)
    monkeypatch.setattr(atexit, "unregister", lambda one: ends.remove(one))
    stub.exit = lambda: [end() for end in list(ends)]
    return stub


def snapshot(path):
    return pickle.loads(path.read_bytes())


def told(capsys):
    return capsys.readouterr().err.splitlines()


def test_one_line_records_and_writes_at_exit(torch, tmp_path, capsys):
    recording = plimsoll.record()
    assert torch.calls == [("all", 200_000)] and recording.active
    torch.exit()
    assert torch.calls[-1] == (None, 0) and not recording.active
    assert snapshot(tmp_path / "snapshot.pickle") == "after 7"
    assert told(capsys) == [
        "plimsoll: wrote snapshot.pickle (exit); plimsoll explain snapshot.pickle"
    ]


def test_files_have_the_rank_in_their_name(torch, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    recording = plimsoll.record(tmp_path / "runs" / "night.pickle")
    assert recording.write() == tmp_path / "runs" / "night.rank3.pickle"
    assert os.listdir(tmp_path / "runs") == ["night.rank3.pickle"]


def test_what_was_alive_when_memory_ran_out_stays(torch, tmp_path, capsys):
    plimsoll.record()
    torch.run_out()
    assert snapshot(tmp_path / "snapshot.pickle") == "after 7"
    (tmp_path / "snapshot.pickle").write_text("of the failure")
    torch.exit()
    assert (tmp_path / "snapshot.pickle").read_bytes() == b"of the failure"
    first, last = told(capsys)
    assert "(out of memory)" in first and "has what was alive when memory ran out" in last


def test_a_snapshot_on_demand_takes_the_place_of_that_of_the_failure(torch, tmp_path, capsys):
    recording = plimsoll.record()
    torch.run_out()
    recording.write()
    torch.exit()
    assert "what was alive" not in "".join(told(capsys))


def test_a_job_that_went_on_is_written_anew(torch, tmp_path):
    plimsoll.record()
    torch.run_out()
    torch.allocations = 100
    torch.exit()
    assert snapshot(tmp_path / "snapshot.pickle") == "after 100"


def test_a_job_that_survives_many_is_not_held_up(torch, tmp_path, monkeypatch):
    clock = [0.0]
    dumped = []

    def snapshot():
        clock[0] += 1.0
        dumped.append(clock[0])
        return {}

    torch.cuda.memory._snapshot = snapshot
    monkeypatch.setattr(plimsoll_history.time, "monotonic", lambda: clock[0])
    plimsoll.record()
    for _ in range(20):
        torch.run_out()
    assert len(dumped) == 3
    clock[0] = 1000.0
    torch.run_out()
    assert len(dumped) == 4
    torch.exit()
    assert len(dumped) == 4  # only unwound since
    assert (tmp_path / "snapshot.pickle").exists()


def test_it_waits_for_cuda_and_writes_nothing_where_it_is_not_used(torch, tmp_path, capsys):
    torch.initialized = False
    plimsoll.record()
    assert torch.calls == []
    torch.exit()
    assert told(capsys) == [
        "plimsoll: CUDA was not used in this process: there is no snapshot"
    ] and not list(tmp_path.iterdir())
    torch.initialize()  # it is over by then
    assert torch.calls == []
    torch.initialized = False
    torch.queue.clear()
    plimsoll.record()
    torch.initialize()
    assert torch.calls == [("all", 200_000)]


def test_a_history_that_is_there_is_left_as_it_is(torch):
    torch.enabled = True
    with plimsoll.record() as recording:
        pass
    assert torch.calls == [] and torch.enabled and recording.written is not None


@pytest.mark.parametrize("as_decorator", [plimsoll.record, lambda f: plimsoll.record()(f)])
def test_as_a_decorator(torch, tmp_path, as_decorator):
    @as_decorator
    def train(x):
        """Trains."""
        torch.allocations += x
        return x

    assert train(1) == 1 and train.__doc__ == "Trains."
    assert snapshot(tmp_path / "snapshot.pickle") == "after 8" and not torch.enabled
    train(2)
    assert snapshot(tmp_path / "snapshot.pickle") == "after 10"
    assert torch.exit() == []


def test_as_a_context_an_exception_passes_through(torch, capsys):
    with pytest.raises(KeyError), plimsoll.record("a.pickle"):
        raise KeyError
    assert "wrote a.pickle (an exception)" in told(capsys)[0]


def test_steps_are_marked_and_can_end_it(torch, tmp_path):
    recording = plimsoll.record(steps=2)
    seen = list(recording.steps(range(4)))
    assert seen == [0, 1, 2, 3]
    assert torch.marks == ["plimsoll.step#0", "end", "plimsoll.step#1", "end"]
    assert not recording.active and recording.written is not None


def test_newer_releases_record_pinned_memory_too(torch):
    for name in ("record_pinned_host_memory", "record_host"):
        calls = []
        given = {}
        code = f"""def record(enabled="all", context="all", stacks="all", max_entries=1,
                   skip_actions=None, {name}=False):
            calls.append((enabled, skip_actions, {name}))"""
        exec(code, {"calls": calls}, given)
        torch.cuda.memory._record_memory_history = given["record"]
        with plimsoll.record(max_entries=5):
            pass
        assert calls == [("all", ["snapshot"], True), (None, None, False)]


def test_intels_gpus_are_recorded_where_there_is_no_cuda(torch):
    assert plimsoll_history.accelerator(torch) == ("cuda", torch.cuda)
    del torch._C._cuda_init
    assert plimsoll_history.accelerator(torch) == (None, None)
    calls = []
    torch.xpu = types.SimpleNamespace(
        memory=types.SimpleNamespace(
            _record_memory_history=lambda how, **options: calls.append((how, options)),
            _snapshot=lambda: {"device_traces": [[]]},
        )
    )
    torch._C._xpu_init = None
    history = plimsoll_history.History(torch, 7)
    history.begin(lambda may_write: None)
    assert history.kind == "xpu" and history.owner == "plimsoll"
    assert calls[0][0] == "all" and calls[0][1]["max_entries"] == 7


def test_nodes_of_compiled_graphs_are_named_once_each(torch, monkeypatch):
    augmented = []
    utils = types.SimpleNamespace(_augment_frames=augmented.append)
    registry = types.SimpleNamespace(_FX_METADATA_REGISTRY={"fx_generated_0.py": {}})
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    monkeypatch.setitem(sys.modules, "torch.fx.traceback", registry)
    frames, others = [{"name": "a"}], [{"name": "b"}]
    snapshot = {
        "segments": [{"blocks": [{"frames": others}, {"frames": []}]}],
        "device_traces": [[{"frames": frames}, {"frames": frames}, {}]],
    }
    history = plimsoll_history.History(torch, 7)
    history._name_nodes(snapshot)
    assert augmented == [frames, others]
    registry._FX_METADATA_REGISTRY.clear()
    history._name_nodes(snapshot)
    assert len(augmented) == 2


def test_older_releases_have_other_arguments(torch, monkeypatch):
    calls = []

    def record(enabled, trace_alloc_max_entries=1, trace_alloc_record_context=False):
        if enabled is None:
            raise TypeError
        calls.append((enabled, trace_alloc_max_entries))

    torch.cuda.memory._record_memory_history = record
    with plimsoll.record(max_entries=5):
        pass
    assert calls == [(True, 5), (False, 1)]


def test_what_fails_is_a_line(torch, capsys):
    def fails(*args, **kwargs):
        raise RuntimeError("the driver is too old")

    torch.cuda.memory._record_memory_history = fails
    torch.cuda.memory._snapshot = fails
    with plimsoll.record(explain=True):
        pass
    lines = told(capsys)
    assert lines[0] == "plimsoll: nothing is recorded: RuntimeError: the driver is too old"
    assert "snapshot.pickle could not be written" in lines[1] and len(lines) == 2


def test_a_forked_child_writes_nothing(torch, tmp_path, monkeypatch):
    recording = plimsoll.record()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    torch.run_out()
    torch.exit()
    assert recording.write() is None and not list(tmp_path.iterdir())


def test_without_cuda_it_says_so_once(torch, capsys):
    del torch._C._cuda_init
    with plimsoll.record() as recording:
        recording.step()
        assert recording.write() is None
    plimsoll.record()
    assert told(capsys) == ["plimsoll: torch 9.9 is built without CUDA: nothing is recorded"]
    torch._C._cuda_init = None
    torch.cuda.device_count = lambda: 0
    plimsoll.record()
    assert told(capsys) == ["plimsoll: torch 9.9 finds no GPU: nothing is recorded"]


def test_it_can_explain_in_the_end(torch, monkeypatch, capsys):
    import plimsoll.answers.questions as questions

    monkeypatch.setattr(questions, "explain", lambda path: f"why {path}")
    with plimsoll.record(explain=True):
        pass
    assert told(capsys)[-1] == "why snapshot.pickle"
    monkeypatch.setenv("RANK", "1")  # one speaks for all, unless it ran out itself
    with plimsoll.record(explain=True):
        pass
    assert not [line for line in told(capsys) if line.startswith("why")]
    with plimsoll.record(explain=True):
        torch.run_out()
    assert told(capsys)[-1] == "why snapshot.rank1.pickle"


# Callbacks.


def drive(callback, *names, **kwargs):
    for name in names:
        getattr(callback, name)(None, None, None, **kwargs)


def test_the_callback_of_trainer(torch, monkeypatch, tmp_path):
    library = types.ModuleType("transformers")
    library.TrainerCallback = type("TrainerCallback", (), {})
    monkeypatch.setitem(sys.modules, "transformers", library)
    monkeypatch.delitem(vars(plimsoll.callbacks), "TrainerCallback", raising=False)
    callback = plimsoll.callbacks.TrainerCallback("hf.pickle", max_entries=9)
    assert isinstance(callback, library.TrainerCallback) and callback.recording is None
    drive(callback, "on_init_end", "on_train_begin", "on_step_begin", "on_step_begin")
    assert torch.calls == [("all", 9)] and callback.recording.steps_done == 2
    drive(callback, "on_train_end")
    assert (tmp_path / "hf.pickle").exists() and not callback.recording.active
    vars(plimsoll.callbacks).pop("TrainerCallback")


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_the_callback_of_lightning(torch, monkeypatch, tmp_path, name):
    """Against a stub of its interface: Lightning itself is not installed with the tests."""
    for other in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, other, raising=False)
    library = types.ModuleType(name)
    library.Callback = type("Callback", (), {})
    if name.startswith("lightning."):
        monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, name, library)
    monkeypatch.delitem(vars(plimsoll.callbacks), "LightningCallback", raising=False)
    callback = plimsoll.callbacks.LightningCallback("pl.pickle")
    assert isinstance(callback, library.Callback)
    callback.setup(None, None, "validate")
    assert torch.calls == []
    callback.setup(None, None, "fit")
    callback.on_train_batch_start(None, None, None, 0)
    assert callback.recording.steps_done == 1
    callback.on_exception(None, None, RuntimeError())
    assert (tmp_path / "pl.pickle").exists() and not callback.recording.active
    vars(plimsoll.callbacks).pop("LightningCallback")


@pytest.mark.parametrize("rank", ["²", "٣", "x", "", "9" * 5000])
def test_a_rank_that_is_no_number_does_not_count(torch, tmp_path, monkeypatch, rank):
    monkeypatch.setenv("RANK", rank)
    plimsoll.record()
    torch.exit()
    assert (tmp_path / "snapshot.pickle").exists()


def test_a_file_that_cannot_be_written_is_told_at_once(torch, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    plimsoll.record(tmp_path / "folder")
    assert "folder cannot be written: no snapshot will be kept" in told(capsys)[0]


def test_the_hook_is_plain_python():
    """Of any release from 3.7 on, and without this package."""
    for path in Path(plimsoll_history.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 7))
        for node in ast.walk(tree):
            names = [alias.name for alias in getattr(node, "names", [])]
            assert not isinstance(node, ast.ImportFrom) or node.level == 0
            assert not (isinstance(node, ast.Import) and "plimsoll" in names)
