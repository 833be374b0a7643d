"""On a GPU: a job that runs out is recorded, a batch confirmed, a test measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from program_here import needs_program

torch = pytest.importorskip("torch")

import plimsoll

if not torch.cuda.is_available():
    pytest.skip("no GPU is here", allow_module_level=True)

RUNS_OUT = """
import torch, plimsoll
recording = plimsoll.record(explain=True)
assert not torch.cuda.is_initialized()
torch.cuda.set_per_process_memory_fraction(2**30 / torch.cuda.get_device_properties(0).total_memory)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in recording.steps(range(8)):
    loss = model(torch.randn(4096 << step, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

JOB = (
    lambda: torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]),
    lambda p: torch.optim.AdamW(p),
    lambda n: torch.randn(n, 1024),
    lambda m, x: m(x).square().mean(),
)


def run(folder, *command, **variables):
    path = str(Path(plimsoll.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )
    return done.returncode, done.stdout + done.stderr


@needs_program
def test_a_job_that_runs_out_leaves_a_snapshot(tmp_path):
    code, text = run(tmp_path, "-c", RUNS_OUT, RANK="2")
    assert code == 1 and "OutOfMemoryError" in text
    assert "wrote snapshot.rank2.pickle (out of memory)" in text, text
    assert "could not be allocated in" in text  # the explanation
    found = plimsoll.explain(tmp_path / "snapshot.rank2.pickle")
    assert found.out_of_memory and found.rank["rank"] == 2
    assert found.rank["complete_steps"] >= 1
    assert b"plimsoll.step#1" in (tmp_path / "snapshot.rank2.pickle").read_bytes()


@needs_program
def test_a_batch_is_confirmed_by_a_run():
    found = plimsoll.fit_batch(*JOB, budget="1GiB")
    print(found)
    assert found.confirmed, found.known
    predicted = found.prediction.reserved.best
    assert found.measured.reserved == pytest.approx(predicted, rel=0.02)
    assert torch.cuda.memory_reserved() < 64 << 20


def test_a_module_and_its_optimizer_are_left_alone():
    from plimsoll.measuring.gpu_run import job_of, measure

    model = JOB[0]()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters())
    found = measure(model, job_of(optimizer, *JOB[2:], autocast=torch.bfloat16), 32)
    assert found.reserved >= found.allocated > 0 and not optimizer.state
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


@needs_program
def test_a_test_is_measured(tmp_path):
    (tmp_path / "test_body.py").write_text(
        "import pytest, torch\n"
        '@pytest.mark.gpu_memory("200 MiB")\n'
        'def test_small(): torch.empty(100 << 20, dtype=torch.uint8, device="cuda")\n'
        '@pytest.mark.gpu_memory("50 MiB")\n'
        'def test_large(): torch.empty(100 << 20, dtype=torch.uint8, device="cuda")\n'
    )
    flags = ("-p", "plimsoll.pytest_plugin", "-p", "no:cacheprovider")
    code, text = run(tmp_path, "-m", "pytest", *flags, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert code == 1 and "1 failed, 1 passed" in text, text
    assert "100.00 MiB reserved on" in text and "is more than the limit of 50.00 MiB" in text
    assert "plimsoll explain" in text
