"""The plugin in a pytest of its own, where there is no GPU: jobs are predicted."""

from __future__ import annotations

import contextlib
import io
import json
import os

import pytest
from fresh_process import fresh
from program_here import needs_program

from plimsoll.measuring.memory_gate import Baseline, Checked, Figure, checked, table, write_report

JOB = """
import pytest

def job(gpu_memory, width=64, batch=4):
    import torch

    return gpu_memory.job(
        lambda: torch.nn.Linear(width, width),
        lambda p: torch.optim.AdamW(p),
        lambda n: torch.randn(n, width),
        lambda m, x: m(x).sum(),
        batch=batch,
    )
"""


def _run_pytest(folder, flags):
    os.chdir(folder)
    os.environ.update(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", CUDA_VISIBLE_DEVICES="")
    said = io.StringIO()
    plain = ["-p", "plimsoll.pytest_plugin", "-p", "no:cacheprovider", "-rs", "--rootdir", folder]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = pytest.main([*plain, *flags])
    return int(code), said.getvalue()


def pytest_of(folder, tests, *flags):
    (folder / "test_job.py").write_text(tests)
    return fresh(_run_pytest, str(folder), flags).value


@needs_program
def test_jobs_are_held_against_their_limits_and_a_baseline(tmp_path):
    tests = (
        JOB
        + """
@pytest.mark.gpu_memory("1 GiB")
def test_fits(gpu_memory):
    assert job(gpu_memory).how == "predicted"

@pytest.mark.gpu_memory("1 MiB")
def test_is_too_large(gpu_memory):
    job(gpu_memory)

@pytest.mark.gpu_memory("1 GiB")
def test_gives_no_job(gpu_memory):
    pass

@pytest.mark.gpu_memory("1 GiB")
def test_cannot_be_predicted():
    raise AssertionError("was run")
"""
    )
    code, text = pytest_of(
        tmp_path, tests, "--gpu-memory-gpu", "L4", "--gpu-memory-report", "out/memory.json"
    )
    assert code == 1 and "2 failed, 1 passed, 1 skipped" in text, text
    assert "predicted for L4 is more than the limit of 1.00 MiB" in text
    assert "gave no job to the fixture" in text
    report = json.loads((tmp_path / "out" / "memory.json").read_text())
    fits, large = report["tests"]
    assert fits["test"] == "test_job.py::test_fits" and fits["gpu"] == "L4"
    assert fits["failure"] is None and large["limit"] == 1 << 20
    assert "**too much**" in (tmp_path / "out" / "memory.md").read_text()

    # Half as much was kept: it grew.
    fits["reserved"] //= 2
    (tmp_path / "kept.json").write_text(json.dumps(report))
    only = ("-k", "fits", "--gpu-memory-gpu", "L4", "--gpu-memory-baseline", "kept.json")
    code, text = pytest_of(tmp_path, tests, *only)
    assert code == 1 and "% more than the baseline of" in text and "5 % are allowed" in text
    code, text = pytest_of(tmp_path, tests, *only, "--gpu-memory-fail-above", "150%")
    assert code == 0 and "+100.0 %" in text, text


def test_without_a_gpu_and_a_name_it_is_skipped_aloud(tmp_path):
    tests = (
        JOB
        + """
@pytest.mark.gpu_memory("1 GiB")
def test_marked(gpu_memory):
    raise AssertionError("was run")

def test_not_marked(gpu_memory):
    raise AssertionError("was run")

def test_other():
    pass
"""
    )
    code, text = pytest_of(tmp_path, tests)
    assert code == 0 and "1 passed, 2 skipped" in text and "no GPU is here" in text, text


def test_what_cannot_be_used_is_told(tmp_path):
    (tmp_path / "kept.json").write_text("[]")
    code, text = pytest_of(tmp_path, "", "--gpu-memory-baseline", "kept.json")
    assert code == 4 and "kept.json is no report of GPU memory" in text
    code, text = pytest_of(tmp_path, "", "--gpu-memory-fail-above", "five")
    assert code == 4 and "'five' is no share" in text


def test_a_baseline_is_of_the_same_card_and_way(tmp_path):
    figure = Figure(200, "L4", "predicted")
    was = checked("a::b", Figure(100, "L4", "predicted"), None, None, 0.05)
    files = write_report(tmp_path / "kept.json", [was])
    assert [path.name for path in files] == ["kept.json", "kept.md"]
    kept = Baseline(tmp_path / "kept.json")
    assert kept.of("a::b", figure) == 100
    assert kept.of("a::b", Figure(200, "T4", "predicted")) is None
    assert kept.of("a::b", Figure(200, "L4", "measured")) is None
    assert checked("a::b", Figure(105, "L4", "predicted"), None, 100, 0.05).failure is None
    assert checked("a::b", Figure(106, "L4", "predicted"), None, 100, 0.05).failure is not None


def test_a_name_does_not_break_the_table():
    one = Checked("a.py::test[x|y]", 1, "L4", "predicted", None, None, None)
    row = table([one]).splitlines()[2]
    assert row.replace("\\|", "").count("|") == 8


def test_a_limit_that_is_none(tmp_path):
    tests = """
@pytest.mark.gpu_memory("6")
def test_a(gpu_memory): pass

@pytest.mark.gpu_memory("six")
def test_b(gpu_memory): pass
"""
    _, text = pytest_of(tmp_path, JOB + tests, "--gpu-memory-gpu", "L4")
    assert "'6' is no size: write 6GiB" in text and "'six' is no size" in text
