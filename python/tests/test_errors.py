"""What happened, in which line of the user's code, and what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import torch.optim.optimizer as optimizer  # noqa: E402

import plimsoll  # noqa: E402
from plimsoll.base.notes import Notes  # noqa: E402
from plimsoll.capturing.torch_errors import clear_errors  # noqa: E402
from plimsoll.world import phantom  # noqa: E402

HERE = Path(__file__).parent


class Reads(nn.Module):
    def __init__(self, reads):
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.reads = reads

    def forward(self, x):
        return self.reads(self.layer(x))


def capture(reads=lambda y: y, **options):
    settings = dict(
        model=lambda: Reads(reads),
        optimizer=lambda p: torch.optim.SGD(p, 0.1),
        make_batch=lambda n: torch.randn(n, 8, device="cuda"),
        loss=lambda m, x: m(x).sum(),
    )
    return plimsoll.capture(**{**settings, **options})


def reads_a_number(y):
    return y * 2 if y.sum().item() > 0 else y  # this line


def reads_a_count(y):
    return y[: int((y > 0).sum())]


def repeats(y):
    return y.repeat_interleave((y[:, 0] > 0).long(), dim=0)


@pytest.mark.parametrize(
    "reads, what",
    [
        (reads_a_number, "reads the value of a tensor"),
        (reads_a_count, "reads the value of a tensor"),
        (repeats, "as many as the values of `repeats` add up to"),
    ],
)
def test_values_that_a_model_reads(reads, what):
    with pytest.raises(plimsoll.CaptureError, match=what) as caught:
        capture(reads)
    line = reads.__code__.co_firstlineno + 1
    assert caught.value.where == f"test_errors.py:{line} in {reads.__name__}"
    assert caught.value.hint


def test_a_truth_is_taken_to_be_true():
    made = capture(lambda y: y * 2 if (y > 0).all() else y)
    assert any("True is assumed" in note for note in made.notes)


def test_an_operator_that_nobody_told_of():
    library = torch.library.Library("plimsoll_test", "DEF")
    library.define("strange(Tensor x) -> Tensor")
    library.impl("strange", lambda x: x.clone(), "CUDA")
    with pytest.raises(plimsoll.CaptureError, match="plimsoll_test.strange") as caught:
        capture(lambda y: torch.ops.plimsoll_test.strange(y))
    assert "register_fake" in str(caught.value)
    assert caught.value.where.startswith("test_errors.py:")
    library._destroy()


@pytest.mark.parametrize(
    "kind, words",
    [("SparseTensorImpl", "a sparse tensor"), ("TensorWrapper", "torch.func's transforms")],
)
def test_tensors_without_a_storage_are_named(kind, words):
    with pytest.raises(plimsoll.CaptureError, match=words) as caught, clear_errors(Notes()):
        raise NotImplementedError(f"Cannot access storage of {kind}")
    assert caught.value.where.startswith("test_errors.py:")
    assert "register_fake" not in str(caught.value)


def test_a_step_that_depends_on_the_batch():
    with pytest.raises(plimsoll.CaptureError, match="batch 2 and at batch 3.*aten.tanh") as caught:
        capture(lambda y: y.tanh() if y.shape[0] > 2 else y.exp())
    assert caught.value.where.startswith("test_errors.py:")


def test_an_error_of_the_users_passes_through():
    def fails(y):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        capture(fails)
    if sys.version_info >= (3, 11):
        assert "in fails" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "options, what",
    [
        ({"model": 3}, "`model` is int"),
        ({"model": lambda: 3}, "gave no torch.nn.Module"),
        ({"model": lambda: nn.LazyLinear(3)}, "shape from the first batch"),
        ({"optimizer": 3}, "`optimizer` is int"),
        ({"optimizer": torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)}, "model does not have"),
        ({"make_batch": 3}, "`make_batch` is no function"),
        ({"loss": None}, "either `loss` or `train_step`"),
        ({"batches": (3, 3)}, "`batches`"),
        ({"steps": 0}, "1 or more"),
        ({"precisions": ["fp7"]}, "fp7"),
        ({"precisions": "fp32"}, "`precisions`"),
        ({"precisions": ["fp32+nhwc"]}, "`precisions`"),
        ({"precisions": ["fp32+channels_last"], "channels_last": True}, "fp32.channels_last"),
        ({"loss": lambda m, x: 3.0}, "`loss` gave"),
    ],
)
def test_bad_input(options, what):
    with pytest.raises(plimsoll.CaptureError, match=what):
        capture(**options)


def state():
    cuda = torch.cuda
    return (
        cuda.is_available,
        cuda.device_count,
        cuda.device,
        cuda._initialized,
        nn.Module._apply,
        torch.autograd.backward,
        nn.init.normal_,
        optimizer._foreach_supported_types,
        nn.modules.module._global_forward_hooks.copy(),
        torch.amp.GradScaler.get_scale,
        torch.autograd.is_multithreading_enabled(),
        torch.is_grad_enabled(),
        torch._C._dispatch_has_kernel_for_dispatch_key(
            "aten::scaled_dot_product_attention", "AutogradCUDA"
        ),
    )


def test_everything_is_put_back():
    before = state()
    capture()
    assert state() == before
    with pytest.raises(plimsoll.CaptureError):
        capture(repeats)
    assert state() == before
    x = torch.randn(3, requires_grad=True)
    x.pow(2).sum().backward()
    assert torch.equal(x.grad, 2 * x.detach())


def run(code, **environment):
    import os

    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=HERE.parent,
        env={**os.environ, "PYTHONPATH": str(HERE.parent), **environment},
    )


JOB = """
made = plimsoll.capture(lambda: torch.nn.Linear(2, 2), None, lambda n: torch.randn(n, 2),
                        lambda m, x: m(x).sum(), steps=1)
print(len(made.events) > 10, torch.cuda.is_available())
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "start",
    [
        "import plimsoll, torch",
        "import torch, plimsoll",
        "import torch, plimsoll; torch.ones(2, requires_grad=True).sum().backward()",
    ],
)
def test_whatever_was_imported_first(start):
    done = run(start + JOB)
    assert done.stdout.split() == ["True", str(torch.cuda.is_available())], done.stderr


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import plimsoll
try:
    plimsoll.capture
except plimsoll.CaptureError as error:
    print(error)
"""


def test_without_torch():
    done = run(WITHOUT_TORCH)
    assert "torch is not installed" in done.stdout and "pip install torch" in done.stdout, (
        done.stderr
    )


def test_a_torch_too_old(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.3.1+cpu")
    with pytest.raises(plimsoll.CaptureError, match="2.3.1.* too old.*2.4 or newer"):
        phantom.require_torch()
    assert phantom.release("2.13.0a0+git12") == (2, 13)


@pytest.fixture
def never_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(phantom, "_library", None)
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))


def test_no_compiler(never_compiled, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CXX", "")
    with pytest.raises(plimsoll.CaptureError, match=r"no C\+\+ compiler.*apt install g\+\+"):
        phantom.load()


def test_a_compiler_that_fails(never_compiled, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(plimsoll.CaptureError, match="does not compile"):
        phantom.load()
