"""The program's answers as objects, and what is said where it has none."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from program_here import DATA, GPT2, SNAPSHOT, STEP, needs_program

import plimsoll
from plimsoll.answers import program


def fake_program(folder, document, text="as text\n", code=0, error=""):
    """Answers every question with the same document."""
    (folder / "answer.json").write_text(json.dumps(document))
    path = folder / "plimsoll"
    path.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "here = pathlib.Path(__file__).parent\n"
        f"sys.stderr.write({error!r})\n"
        "wants_json = '--json' in sys.argv\n"
        f"sys.stdout.write((here / 'answer.json').read_text() if wants_json else {text!r})\n"
        "(here / 'asked').open('a').write(repr(sys.argv[1:]) + '\\n')\n"
        f"sys.exit({code})\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_what_cannot_be_read_is_an_error_that_says_what_can():
    for ask in (plimsoll.explain, plimsoll.predict, plimsoll.plan):
        with pytest.raises(TypeError, match="a path, .* or a Capture, not int"):
            ask(5)


# Where the program is.


def test_the_program_is_the_one_that_the_variable_names(tmp_path, monkeypatch):
    named = fake_program(tmp_path, {})
    monkeypatch.setenv("PLIMSOLL", named)
    assert program.find() == named


def test_a_variable_that_names_nothing_is_an_error(monkeypatch):
    monkeypatch.setenv("PLIMSOLL", "/nowhere/plimsoll")
    with pytest.raises(plimsoll.ProgramError, match="PLIMSOLL names /nowhere/plimsoll"):
        program.find()


def test_the_program_beside_this_python_comes_before_the_path(tmp_path, monkeypatch):
    beside, elsewhere = tmp_path / "bin", tmp_path / "path"
    beside.mkdir()
    elsewhere.mkdir()
    monkeypatch.delenv("PLIMSOLL", raising=False)
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    monkeypatch.setattr(program.sysconfig, "get_path", lambda name: str(beside))
    monkeypatch.setenv("PATH", str(elsewhere))
    with pytest.raises(plimsoll.ProgramError, match="nor on the PATH"):
        program.find()
    on_path = fake_program(elsewhere, {})
    assert program.find() == on_path
    assert fake_program(beside, {}) == program.find()


# How it is asked.


def test_flags_are_those_of_the_program():
    flags = {"max_batch": True, "batch": None, "ddp": False, "set": {"tf32": "on", "loss": "x"}}
    assert program.arguments(flags) == ["--max-batch", "--set", "tf32=on", "--set", "loss=x"]
    assert program.arguments({"batches": (8, 16), "html": Path("a.html")}) == [
        "--batches", "8,16", "--html", "a.html",
    ]  # fmt: skip


def test_a_file_that_looks_like_a_flag_is_a_file(tmp_path, monkeypatch):
    document = {"schema": "plimsoll.explain/1", "verdict": "v"}
    monkeypatch.setenv("PLIMSOLL", fake_program(tmp_path, document))
    plimsoll.explain("--json")
    asked = (tmp_path / "asked").read_text()
    assert "'--', '--json']" in asked


def test_what_has_no_document_is_refused():
    with pytest.raises(plimsoll.ProgramError, match="`events` is not for here"):
        plimsoll.predict(STEP, batch=1, events=True)


def test_an_answer_of_another_kind_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PLIMSOLL", fake_program(tmp_path, {"schema": "plimsoll.explain/7"}))
    with pytest.raises(plimsoll.ProgramError, match="plimsoll.explain/7"):
        plimsoll.explain("a.log")


def test_a_program_that_dies_is_an_error(tmp_path, monkeypatch):
    named = fake_program(tmp_path, {}, code=3)
    Path(named).write_text(f"#!{sys.executable}\nimport os; os.kill(os.getpid(), 9)\n")
    monkeypatch.setenv("PLIMSOLL", named)
    with pytest.raises(plimsoll.ProgramError, match="signal 9"):
        plimsoll.explain("a.log")


def test_every_name_is_escaped_in_html(tmp_path, monkeypatch):
    evil = "<script>alert(1)</script>\" onload='x'"
    remedy = dict(change=evil, saves=1, at_most=True, basis=evil, costs=evil, code=[evil])
    rank = {
        "ooms": [],
        "peak_allocated": None,
        "peak_reserved": None,
        "account": [{"what": evil, "bytes": 5}],
        "holders": [dict(where=evil, module=evil, category=evil, bytes=1, count=1)],
    }
    finding = dict(
        id="x", severity=evil, title=evil, evidence=[evil], remedies=[{**remedy, "avoid": False}]
    )
    document = {
        "schema": "plimsoll.explain/1",
        "verdict": evil,
        "ranks": [rank],
        "shown": 0,
        "findings": [finding],
    }
    monkeypatch.setenv("PLIMSOLL", fake_program(tmp_path, document, error=f"plimsoll: {evil}\n"))
    found = plimsoll.explain("a.log")._repr_html_()
    assert "<script" not in found and "onload='" not in found
    assert found.count("&lt;script&gt;") >= 10


# What it answers.


@needs_program
def test_explain_tells_why():
    found = plimsoll.explain(SNAPSHOT)
    assert found.out_of_memory and found.verdict in found.document["verdict"]
    assert found.account["activations"] > 900 << 20
    held = sum(size for what, size in found.account.items() if what != "free")
    assert held == found.document["ranks"][0]["instant"]["reserved"]
    assert found.holders[0].bytes >= found.holders[1].bytes
    assert found.findings[0].severity == "high" and found.findings[0].evidence
    assert str(found).split()[0] == found.verdict.split()[0] == "192.00"
    assert "Who holds it" in str(found) and repr(found) == str(found)
    assert "activations" in found._repr_html_()


@needs_program
def test_an_exception_is_explained_by_its_text():
    error = RuntimeError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB "
        "of which 1.50 GiB is free. Process 1 has 22.14 GiB memory in use. Of the allocated memory "
        "21.00 GiB is allocated by PyTorch, and 700.00 MiB is reserved by PyTorch but unallocated."
    )
    found = plimsoll.explain(error)
    assert found.out_of_memory and found.rank["capacity"] and found.peak_reserved is None
    assert "2.00 GiB" in found.verdict


@needs_program
def test_a_file_that_cannot_be_used_is_told_beside_the_others(tmp_path):
    found = plimsoll.explain([SNAPSHOT, tmp_path / "none.log"])
    assert found.out_of_memory and "none.log" in found.problems[0]
    with pytest.raises(plimsoll.ProgramError, match="none.log: cannot be read"):
        plimsoll.explain(tmp_path / "none.log")


@needs_program
def test_predict_has_the_figures():
    found = plimsoll.predict(GPT2, batch=8, gpu="RTX 4090")
    assert found.fits and found.surely_fits and found.gpu == "RTX 4090" and found.batch == 8
    assert found.reserved.low <= found.reserved.best <= found.reserved.high <= found.room
    assert sum(found.account.values()) == found.device.best
    assert found.samples_per_second == pytest.approx(8 / found.step_seconds)
    assert found.max_batch is None
    assert str(found).startswith("Fits: batch 8 on RTX 4090 needs ")
    assert "Fits: batch 8 on RTX 4090" in found._repr_html_()
    assert not plimsoll.predict(GPT2, batch=800, gpu="RTX 4090").fits
    assert plimsoll.predict(STEP, batch=8, limit="1GiB").room == 1 << 30


@needs_program
def test_predict_takes_a_capture():
    torch = pytest.importorskip("torch")
    made = plimsoll.capture(
        lambda: torch.nn.Linear(64, 8),
        lambda p: torch.optim.SGD(p, 0.1),
        lambda n: torch.randn(n, 64),
        lambda m, x: m(x).sum(),
    )
    found = plimsoll.predict(made, max_batch=True, gpu="22GiB")
    assert found.safe_max_batch and found.max_batch >= found.safe_max_batch


@pytest.fixture(scope="module")
def planned():
    return plimsoll.plan(GPT2, gpu="RTX 4090", global_batch=32)


@needs_program
def test_a_plan_can_be_applied(tmp_path, planned):
    torch = pytest.importorskip("torch")
    found = planned
    assert found.best == found.ways[0] and found.best.surely_fits
    assert found.best.batch * found.best.passes == 32 and found.best.code
    assert not found.as_captured.surely_fits and found.closest is None
    assert found.otherwise is None
    assert "samples/s" in found._repr_html_()
    found.write(tmp_path / "plan.json")
    with pytest.raises(plimsoll.PlanError, match="Linear, has no layer 'lm_head'"):
        plimsoll.apply(found, torch.nn.Linear(2, 2))
    for source in (found, tmp_path / "plan.json"):
        model = torch.nn.ModuleDict({"lm_head": torch.nn.Linear(2, 3)})
        assert "`lm_head`" in plimsoll.apply(source, model).done[0]


@needs_program
def test_the_lines_that_plan_prints_apply_it(tmp_path, monkeypatch, planned):
    """As they stand, in a script that has a model, an optimizer, batches and a loss."""
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)

    def asked(step):
        words = [program.find(), "plan", str(step), "--gpu", "RTX 4090", "--global-batch", "32"]
        return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout

    shown = asked(GPT2)
    planned.write("plan.json")
    lines = [line[2:] for line in shown.split("\nNext\n")[1].splitlines() if line[2:3] != " "]
    model = torch.nn.Sequential()
    model.lm_head = torch.nn.Linear(2, 3)
    given = torch.optim.AdamW(model.parameters())
    script = {
        "plimsoll": plimsoll,
        "model": model,
        "optimizer": given,
        "x": torch.randn(32, 2),
        "y": torch.randint(0, 3, (32,)),
        "criterion": torch.nn.functional.cross_entropy,
    }
    assert lines[0].startswith("plimsoll plan ") and lines[-1].startswith("plimsoll run ")
    *before, loop = lines[1:-1]
    for line in before:
        exec(line, script)
    body = [
        "    with applied.forward():",
        "        loss = criterion(model(x), y)",
        "    loss = applied.backward(loss)",
    ]
    assert "\n".join(f"  {line}" for line in [loop, *body]) in shown
    exec("\n".join([loop, *body, "optimizer.step()"]), script)
    assert script["optimizer"] is script["applied"].optimizer is not given
    assert script["optimizer"].state and not script["applied"].left_to_you
    # The shell would empty the file that the script reads, of whichever job.
    assert ">plan.json" in shown and ">plan2.json" in asked(STEP)


@needs_program
def test_a_plan_of_a_snapshot_is_refused():
    with pytest.raises(plimsoll.ProgramError, match="is a memory snapshot"):
        plimsoll.plan(DATA / "snapshots" / "gpt2_adamw_bf16.pickle.xz")


@needs_program
def test_the_other_words_go_to_the_program(tmp_path):
    here = str(Path(plimsoll.__file__).parents[1])
    run = [sys.executable, "-m", "plimsoll", "explain", str(tmp_path / "none.log")]
    done = subprocess.run(
        run, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": here}
    )
    assert done.returncode == 2 and "none.log: cannot be read" in done.stderr


def test_nothing_needs_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import plimsoll, plimsoll.answers.questions, plimsoll.callbacks, plimsoll.__main__\n"
        "plimsoll.record(); plimsoll.record()\n"
    )
    here = str(Path(plimsoll.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": here},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "plimsoll: torch is not installed here: nothing is recorded\n"
