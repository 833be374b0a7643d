"""Which variable keeps a tensor: plimsoll_owners against torch itself, on the CPU, where every
tensor counts as the device's."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from plimsoll.recording.hook import plimsoll_begin, plimsoll_install, plimsoll_owners

FOLDER = Path(plimsoll_owners.__file__).parent

# Against a busy machine: what is asked here takes a fraction of it.
PATIENCE = 600.0


def owners():
    return plimsoll_owners.find(torch, seconds=PATIENCE, on_device=lambda tensor: True)


def name_of(tensor, names):
    """Without the function and line at the end."""
    return names.get(tensor.untyped_storage().data_ptr(), "").partition(" in ")[0]


class Thing:
    pass


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.register_buffer("mask", torch.ones(8))

    def forward(self, x):
        for block in self.blocks:
            x = block(x).tanh()
        return x.sum()


def test_attributes_items_and_keys():
    trainer = Thing()
    trainer.callbacks = [None, Thing()]
    trainer.callbacks[1].outputs = {"val": (torch.ones(3), [torch.ones(4)]), 7: torch.ones(5)}
    outputs = trainer.callbacks[1].outputs
    names = owners()
    del outputs
    outputs = trainer.callbacks[1].outputs
    short = {"trainer.callbacks[1].outputs", "outputs"}
    assert name_of(outputs["val"][0], names) in {f"{x}['val'][0]" for x in short}
    assert name_of(outputs["val"][1][0], names) in {f"{x}['val'][1][0]" for x in short}
    assert name_of(outputs[7], names) in {f"{x}[7]" for x in short}


def test_a_local_says_where():
    batch = torch.ones(3)
    found = owners()[batch.untyped_storage().data_ptr()]
    assert found.startswith("batch in test_a_local_says_where (test_owners.py:")


def test_what_lives_longer_gives_the_name():
    def inner(argument):
        return owners()

    kept = torch.ones(3)
    assert name_of(kept, inner(kept)) == "kept"


def test_parameters_have_their_names_in_the_model():
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(2, 8)).backward()
    optimizer.step()
    names = owners()
    weight = net.blocks[1].weight
    assert name_of(weight, names) == "net.blocks[1].weight"
    assert name_of(weight.grad, names) == "net.blocks[1].weight.grad"
    assert name_of(net.mask, names) == "net.mask"
    assert name_of(optimizer.state[weight]["exp_avg"], names) == "optimizer.state[*]['exp_avg']"


def test_a_graph_keeps_what_it_saved():
    losses = [Net()(torch.ones(64, 8)) for _ in range(2)]
    if not hasattr(losses[0].grad_fn.next_functions[0][0], "_raw_saved_result"):
        pytest.skip("this release does not show what a node saved")
    saved = losses[1].grad_fn.next_functions[0][0]._raw_saved_result
    if not hasattr(saved, "data"):
        pytest.skip("this release does not show what a node saved")
    assert name_of(saved.data, owners()) == "the graph of losses[1]"


def test_a_backward_pass_that_is_under_way_is_left_alone():
    """What its nodes saved may go at any moment; what other graphs keep has its name."""
    from torch.utils._python_dispatch import TorchDispatchMode

    if not hasattr(torch._C, "_will_engine_execute_node"):
        pytest.skip("this release does not tell which nodes a backward pass runs")
    found = []

    class Looks(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "tanh_backward" in str(function) and not found:
                found.append(owners())
            return function(*args, **(kwargs or {}))

    older, newer = (Net()(torch.ones(64, 8)) for _ in range(2))
    nodes = [loss.grad_fn.next_functions[0][0] for loss in (older, newer)]
    if not hasattr(nodes[0]._raw_saved_result, "data"):
        pytest.skip("this release does not show what a node saved")
    addresses = [node._raw_saved_result.data.untyped_storage().data_ptr() for node in nodes]
    with Looks():
        newer.backward()
    assert found[0][addresses[0]].startswith("the graph of older in ")
    assert not found[0].get(addresses[1], "").startswith("the graph of")


def test_a_function_of_the_program_in_a_graph():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.extra = x * 3
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    out = Double.apply(torch.ones(5, requires_grad=True))
    extra = out.grad_fn.__dict__["extra"].untyped_storage().data_ptr()
    assert owners()[extra].startswith("the graph of out.extra in ")


def test_saved_tensors_are_not_unpacked():
    def refuse(packed):
        raise AssertionError("it was unpacked")

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), refuse):
        out = torch.ones(5, requires_grad=True).exp()
    assert name_of(out, owners()) == "out"


def test_closures_generators_and_tracebacks():
    def numbers():
        inside = torch.ones(3)
        yield 1
        yield inside

    def failing():
        lost = torch.ones(4)
        raise ValueError(lost.shape)

    def make():
        captured = torch.ones(5)
        return lambda: captured

    generator, closure = numbers(), make()
    next(generator)
    try:
        failing()
    except ValueError as error:
        kept = error
    found = [name.split(" in test_")[0] for name in owners().values()]
    assert callable(closure) and kept is not None
    assert any(name.startswith("generator.<inside in numbers (") for name in found)
    assert any(name.startswith("kept.__traceback__.<lost in failing (") for name in found)
    assert "closure.<captured>" in found


def test_a_cycle_that_no_variable_leads_to():
    def make():
        thing = Thing()
        thing.me = thing
        thing.big = torch.ones(1 << 18)
        return weakref.ref(thing), thing.big.untyped_storage().data_ptr()

    gc.collect()
    gc.disable()
    try:
        alive, address = make()
        assert owners()[address] == "<Thing>.big, to which no variable leads"
        gc.collect()
        assert alive() is None, "it was kept alive"
    finally:
        gc.enable()


def test_nothing_of_the_program_is_called():
    class Hostile:
        def __getattribute__(self, name):
            raise SystemExit(f"{name} was asked for")

        __repr__ = __hash__ = __eq__ = __len__ = __iter__ = __bool__ = __getattribute__

    class Meta(type):
        def __getattribute__(cls, name):
            raise SystemExit(f"{name} was asked for")

        __hash__ = __eq__ = __instancecheck__ = __subclasscheck__ = __getattribute__

    class Asked(dict):
        __dict__ = property(lambda self: sys.exit("__dict__"))

        def items(self):
            raise SystemExit("items")

        __iter__ = __getitem__ = keys = items

    class Wrapped(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            raise SystemExit(f"{function} was called")

    asked = Asked()
    dict.__setitem__(asked, "kept", torch.ones(3))
    wrapped = torch.ones(4).as_subclass(Wrapped)
    met = [Hostile(), object.__new__(Meta("Odd", (), {})), asked, wrapped]
    found = {name.partition(" in ")[0] for name in owners().values()}
    assert {"asked['kept']", "wrapped"} <= found
    del met


def test_it_ends_in_time_and_lets_everything_go():
    kept = [[] for _ in range(300_000)]
    tensor = torch.ones(3)
    alive = weakref.ref(tensor)
    plimsoll_owners.find(torch, seconds=0.0, on_device=lambda tensor: True)
    assert gc.isenabled()
    owners()
    del tensor
    assert alive() is None
    del kept


def test_a_frame_that_was_looked_at_keeps_nothing():
    local = torch.ones(3)
    alive = weakref.ref(local)
    owners()
    del local
    assert alive() is None


def test_the_files_of_a_run_need_no_package(tmp_path, monkeypatch):
    """In a job they lie in a folder that is on no path."""
    run = plimsoll_begin.Run(str(tmp_path), None)
    for name in [path.stem for path in FOLDER.glob("plimsoll_*.py")]:
        monkeypatch.setitem(sys.modules, name, None)  # so that it is put back
    recorder = run.load("plimsoll_recorder")
    history = types.SimpleNamespace(seconds=0.0)
    asked = types.SimpleNamespace(run=run, log=run.log, torch=torch, history=history)
    assert recorder._Recorder.find_owners(asked) == {}, "there is no device here"
    assert not (tmp_path / "log.txt").exists()
    kept = torch.ones(3)
    found = sys.modules["plimsoll_owners"].find(torch, PATIENCE, lambda tensor: True)
    assert name_of(kept, found) == "kept"


def test_every_file_of_the_hook_is_installed():
    installed = set(plimsoll_install._FILES.values()) | {"plimsoll_install.py"}
    assert installed == {path.name for path in FOLDER.glob("plimsoll_*.py")}
    text = (FOLDER.parents[3] / "src/launch/hook_files.cc").read_text()
    assert [name for name in installed if f'"{name}"' not in text] == []
