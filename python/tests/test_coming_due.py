"""What a script does every so many steps comes due once behind the steps that are followed, and
what was not reached is told."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from program_here import needs_program  # noqa: E402
from test_later import HEAD, parts, steps  # noqa: E402
from test_script import captured, once  # noqa: E402

from plimsoll.answers.program import find  # noqa: E402
from plimsoll.events.event import Call  # noqa: E402
from plimsoll.scripts.branches import ASKS, ENTERS, LEAVES, ROUNDS, Marker  # noqa: E402

JOB = (
    HEAD.replace("80", "400")
    + """\
snapshots, losses, best, seen = [], [], None, []

def evaluate():
    outs = [model(x.cuda()) for x, y in validation]
    return torch.cat(outs).argmax(-1).float().mean().item()

def copied():
    return {k: v.clone() for k, v in model.state_dict().items()}

for epoch in range(2):
    for step, (x, y) in enumerate(loader):
        BEFORE
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        AFTER
"""
)


def job(after: str = "pass", before: str = "pass") -> str:
    return JOB.replace("AFTER", after).replace("BEFORE", before)


def notes(document: dict[str, Any], word: str) -> list[str]:
    return [note for note in document["notes"] if word in note]


NOT_REACHED = "not reached in the steps that were followed: "


def marked(text: str) -> tuple[Marker, str]:
    marker = Marker()
    tree = marker.marked(text.encode(), "train.py")
    return marker, "" if tree is None else ast.unparse(tree)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("if step % 50 == 0: save()", "`if step % 50 == 0:`"),
        ("if step and (step + 1) % args.n == 0: save()", "`if step and (step + 1) % args.n == 0:`"),
        ("if not step % 50: kept.append(loss)", "`if not step % 50:`"),
        ("if step % 50 != 0: continue\n    save()", "what follows `if step % 50 != 0: continue`"),
        ("if step % 50: pass\n    else: save()", "the else of `if step % 50:`"),
        ("if step == 1000: save()", "`if step == 1000:`"),
        ("if len(seen) < 64: continue\n    save()", "what follows `if len(seen) < 64: continue`"),
    ],
)
def test_branches_that_go_by_a_counter(line: str, text: str) -> None:
    marker, _ = marked(f"for step in range(9):\n    {line}\n")
    assert [branch.text for branch in marker.branches] == [text]


@pytest.mark.parametrize(
    "line",
    [
        "if step % 10 == 0: print(step, loss.item())",
        "if step % 10 == 0: break",
        "if step > 10: raise ValueError('too long')",
        "if loss.item() > 3: evaluate()",
        "if next(numbers) % 3 == 0: evaluate()",
    ],
)
def test_branches_that_are_left_as_they_are(line: str) -> None:
    assert ASKS not in marked(f"for step in range(9):\n    {line}\n")[1]


def test_marks_change_no_line_and_nothing_that_is_computed() -> None:
    text = """
def counted(numbers):
    found = []
    for i, number in enumerate(numbers):
        if i % 3:
            continue
        if (i + 1) % 2 == 0 and number:
            found.append(number / (i - 9))
            continue
        elif not i % 4:
            found.append(-number)
    return found
"""
    marker = Marker()
    tree = marker.marked(text.encode(), "counted.py")
    assert tree is not None and len(marker.tests) == 3
    plain: dict[str, Any] = {}
    with_marks: dict[str, Any] = {
        ASKS: lambda number, value, counter, bound: value,
        ROUNDS: lambda number, values: values,
        ENTERS: lambda branch: None,
        LEAVES: lambda branch, value=None: value,
    }
    exec(compile(text, "counted.py", "exec"), plain)
    exec(compile(tree, "counted.py", "exec", dont_inherit=True), with_marks)
    assert plain["counted"](range(9)) == with_marks["counted"](range(9))
    for of in (plain, with_marks):
        with pytest.raises(ZeroDivisionError) as error:
            of["counted"](range(1, 20))
        assert error.traceback[-1].lineno == 7  # from 0


def test_an_evaluation_comes_due(tmp_path: Path) -> None:
    told = captured(tmp_path, job("if (step + 1) % 50 == 0: evaluate()"), "{batch}").document
    assert ["evaluation"] in parts(told) and steps(told) == 3
    assert not notes(told, "not reached")


def test_it_comes_due_before_a_step_too(tmp_path: Path) -> None:
    text = job(before="if (step + 1) % 50 == 0: evaluate()")
    told = captured(tmp_path, text, "{batch}").document
    assert ["evaluation"] in parts(told) and not notes(told, "not reached")


def test_without_a_loader(tmp_path: Path) -> None:
    text = job("if step and step % 50 == 0: evaluate()")
    text = text.replace("step, (x, y) in enumerate(loader):", "step in range(300):")
    text = text.replace("loss = ", "x, y = next(iter(train_of(batch)))\n        loss = ")
    text = "train_of = lambda n: [(torch.randn(n, 32), torch.zeros(n, dtype=torch.long))]\n" + text
    assert ["evaluation"] in parts(captured(tmp_path, text, "{batch}").document)


def test_a_save_comes_due(tmp_path: Path) -> None:
    text = job("if step and step % 50 == 0: torch.save(model.state_dict(), 'last.pt')")
    assert ["save"] in parts(captured(tmp_path, text, "{batch}").document)


def test_what_follows_a_continue_comes_due(tmp_path: Path) -> None:
    text = job("if step % 50 != 49:\n            continue\n        evaluate()")
    told = captured(tmp_path, text, "{batch}").document
    assert ["evaluation"] in parts(told) and not notes(told, "not reached")


def test_what_a_function_does_every_so_often_comes_due(tmp_path: Path) -> None:
    text = "def maybe(step):\n    if step % 50 == 49:\n        return evaluate()\n"
    text += job("maybe(step)")
    told = captured(tmp_path, text, "{batch}").document
    assert ["evaluation"] in parts(told) and not notes(told, "not reached")


WEIGHTS = 4 * (32 * 64 + 64 + 64 * 8 + 8)


@pytest.mark.parametrize("when", ["step % 50 == 0", "(step + 1) % 50 == 0"])
def test_what_is_one_more_each_time_is_told_as_that(tmp_path: Path, when: str) -> None:
    told = captured(tmp_path, job(f"if {when}: snapshots.append(copied())"), "{batch}").document
    [growing] = told["growing"]
    assert growing["branch"].endswith(f" `if {when}:`") and growing["every"] == 50
    assert growing["bytes"] == WEIGHTS and growing["where"].endswith(" in <dictcomp>")
    assert growing["kept_by"]["name"] == "snapshots"
    assert parts(told)[0] == ["step"] and "kept_by" not in told, "no step by itself leaves anything"


@needs_program
def test_the_answer_says_for_how_many_steps_it_fits(tmp_path: Path) -> None:
    text = job("if step % 50 == 0: snapshots.append(copied())").replace("64", "8192")
    captured(tmp_path, text, "{batch}")
    words = ["predict", "job.step.json.gz", "--batch", "4", "--gpu", "1GiB"]
    said = subprocess.run([find(), *words], cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode == 1
    verdict = " ".join(said.stdout.split())
    assert "runs out after about" in verdict and "every 50 steps train.py:" in verdict
    asked = subprocess.run([find(), *words, "--json"], cwd=tmp_path, capture_output=True)
    growth = json.loads(asked.stdout)["growth"]
    assert growth["every"] == 50 and growth["bytes_per_step"] is None
    assert growth["bytes_each_time"] >= 4 * (32 + 8) * 8192
    assert growth["comes_due"].endswith("`if step % 50 == 0:`")


def test_what_takes_the_place_of_the_last_is_not_more_each_time(tmp_path: Path) -> None:
    told = captured(tmp_path, job("if (step + 1) % 50 == 0: best = copied()"), "{batch}").document
    assert "growing" not in told and not notes(told, "not reached")


def test_a_graph_that_is_kept_every_so_often_is_told(tmp_path: Path) -> None:
    text = job("if step % 50 == 0: losses.append(logits)", "logits = model(x.cuda())")
    told = captured(tmp_path, text, "{batch}").document
    [growing] = told["growing"]
    assert growing["kept_by"]["name"] == "losses"
    assert growing["bytes"][0] < growing["bytes"][1], "with the batch"


def test_a_number_that_is_kept_changes_nothing(tmp_path: Path) -> None:
    text = job("if step % 50 == 49: losses.append(loss.item())")
    told = captured(tmp_path, text, "{batch}").document
    plain = captured(tmp_path, job("loss.item()"), "{batch}").document
    assert parts(told) == [] and steps(told) == 3
    assert len(told["variants"][0]["events"]) <= len(plain["variants"][0]["events"])


def test_what_comes_every_so_many_epochs_comes_due(tmp_path: Path) -> None:
    text = job().replace("range(2)", "range(20)")
    text += "    if (epoch + 1) % 5 == 0: snapshots.append(copied())\n"
    told = captured(tmp_path, text, "{batch}").document
    [growing] = told["growing"]
    assert growing["every"] == 0 and growing["bytes"] == WEIGHTS
    [note] = notes(told, "more allocated each time")
    assert "kept in snapshots" in note


ACCUMULATION = """
        (loss / 4).backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_accumulation_is_as_it_was(tmp_path: Path) -> None:
    text = job().split("        optimizer.zero_grad()")[0] + ACCUMULATION
    run = once(tmp_path, text)
    assert run.passes == 4 and not run.growing
    plain = once(tmp_path, text.replace("if (step + 1) % 4 == 0", "if (step + 1) & 3 == 0"))
    assert run.recorded.events == plain.recorded.events


def test_passes_that_accumulate_are_no_steps(tmp_path: Path) -> None:
    text = job().split("        optimizer.zero_grad()")[0] + ACCUMULATION
    text += "        if (step + 1) % 40 == 0: snapshots.append(copied())\n"
    [growing] = once(tmp_path, text).growing
    assert growing.every == 10 and growing.bytes == WEIGHTS


@pytest.mark.parametrize(
    "leaves",
    [
        "break",
        pytest.param("raise SystemExit(0)", marks=pytest.mark.nightly),
        pytest.param("raise RuntimeError('no')", marks=pytest.mark.nightly),
    ],
)
def test_one_that_leaves_the_loop_is_left_alone(tmp_path: Path, leaves: str) -> None:
    text = job(f"if (step + 1) % 50 == 0:\n            evaluate()\n            {leaves}")
    told = captured(tmp_path, text, "{batch}").document
    [note] = notes(told, "not reached")
    assert note.startswith(NOT_REACHED + "train.py:") and note.endswith("% 50 == 0:`")
    plain = captured(tmp_path, text.replace("(step + 1) % 50 == 0", "'never' in 'x'"), "{batch}")
    assert told["variants"] == plain.document["variants"]


def test_a_layer_of_a_model_is_no_step(tmp_path: Path) -> None:
    text = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if (i + 1) % 12 == 0:
                raise_if_ever_called()
        return x
""" + job("[raise_if_ever_called() for i in ()]\n        for i in range(3):\n"
          "            if i % 12 == 11: raise_if_ever_called()")
    text = text.replace("nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))", "Model()")
    told = captured(tmp_path, text, "{batch}").document
    assert steps(told) == 3 and not notes(told, "not reached") and "lost_at" not in told


def test_comparisons_with_a_counter_come_out_the_other_way(tmp_path: Path) -> None:
    lines = [
        "if step == 1000: evaluate()",
        "if step > 500: evaluate()",
        "if step < 500: x",
        "else: evaluate()",
        "seen.append(step)",
        "if len(seen) >= 64: evaluate()",
        "if step == 70: evaluate()",
        "if step == 80: evaluate()",
    ]
    told = captured(tmp_path, job("\n        ".join(lines)), "{batch}").document
    [note] = notes(told, "not reached")
    text = (tmp_path / "train.py").read_text().splitlines()
    at = next(i for i, line in enumerate(text, 1) if "step == 1000" in line)
    assert note == f"{NOT_REACHED}train.py:{at + 5} `if len(seen) >= 64:`"
    [note] = notes(told, "as if it were due")
    assert note == (
        f"followed once, as if it were due: train.py:{at} `if step == 1000:`, train.py:{at + 1} "
        f"`if step > 500:`, train.py:{at + 2} the else of `if step < 500:`, train.py:{at + 6} "
        "`if step == 70:`, and 1 more"
    )
    [one] = told["not_followed"]
    assert one == {
        "what": "`if len(seen) >= 64:` was not reached",
        "file": "train.py",
        "line": at + 5,
    }


def test_what_modules_beside_the_script_do_comes_due(tmp_path: Path) -> None:
    (tmp_path / "saving.py").write_text(
        "import torch\ndef maybe(model, step):\n    if step % 50 == 49:\n"
        "        torch.save(model.state_dict(), 'last.pt')\n"
    )
    told = captured(tmp_path, "from saving import maybe\n" + job("maybe(model, step)"), "{batch}")
    assert ["save"] in parts(told.document)
    assert not list(tmp_path.glob("**/*.pyc"))


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("if len(kept) > 20: kept.pop(0)", ["kept"]),
        ("if len(self.kept) >= n: del self.kept[0]", ["self.kept"]),
        ("while len(kept) > 20: kept = kept[1:]", ["kept"]),
        ("if len(kept) == 64: print(kept); kept.clear()", ["kept"]),
        ("if len(kept) > 20: plot(kept)", [""]),
        ("if len(kept) > 20 and step: kept.pop(0)", [""]),
        ("if args.keep and len(kept) > args.keep: kept.pop(0)", ["kept"]),
        ("if step % 50 == 0 and len(kept) > 20: kept.pop(0)", ["", ""]),
    ],
)
def test_what_a_list_is_trimmed_to_is_known(line: str, known: list[str]) -> None:
    marker, _ = marked(f"for step in range(9):\n    {line}\n")
    assert [test.trims for test in marker.tests[: len(known)]] == known


def test_what_a_list_is_cut_to_is_known() -> None:
    lines = ["a = a[-20:]", "del b.c[:-30]", "d = e[-40:]", "f = f[2:]", "g = g[-n.m:]"]
    lines += ["h[step % 4] = x", "i[(step + 1) % n] = x", "j[4 % n] = x", "k[step] = x"]
    lines += ["l.pop(step - 5, None)", "m.pop(step - 5)", "o = o[-f():]"]
    marker, _ = marked("for step in range(9):\n    " + "\n    ".join(lines))
    assert marker.cut_to == {"a": 20, "b.c": 30, "h": 4, "l": 5}
    assert marker.cut_by == {"g": "n.m", "i": "n"}


KEEPS = "if step % 50 == 0: kept.append(copied())"


@pytest.mark.parametrize(
    ("made", "trims"),
    [
        ("collections.deque(maxlen=5)", "pass"),
        pytest.param("[]", "if len(kept) > 5: kept.pop(0)", marks=pytest.mark.nightly),
        pytest.param("[]", "kept = kept[-5:]", marks=pytest.mark.nightly),
    ],
)
def test_what_has_room_for_few_is_filled(tmp_path: Path, made: str, trims: str) -> None:
    text = f"import collections\nkept = {made}\n" + job(f"{KEEPS}\n        {trims}")
    run = once(tmp_path, text)
    assert not run.growing
    made_in_all = [e.made[0].size for e in run.recorded.events if isinstance(e, Call) and e.made]
    # A sixth copy takes the place of the first.
    assert made_in_all.count(4 * 64 * 32) >= 6


@pytest.mark.parametrize(
    "made", ["[]", pytest.param("collections.deque(maxlen=400)", marks=pytest.mark.nightly)]
)
def test_what_has_room_for_many_says_for_how_many(tmp_path: Path, made: str) -> None:
    trims = "while len(kept) > 400: kept.pop(0)"
    text = f"import collections\nkept = {made}\n" + job(f"{KEEPS}\n        {trims}")
    [growing] = once(tmp_path, text).growing
    assert growing.keeper is not None
    assert growing.keeper.name == "kept" and growing.keeper.most == 400


def test_what_is_kept_for_good_beside_it_is_told(tmp_path: Path) -> None:
    text = "import collections\nkept = collections.deque(maxlen=5)\n" + job(
        f"{KEEPS}; snapshots.append(kept[-1])"
    )
    [growing] = once(tmp_path, text).growing
    assert growing.keeper is not None
    assert growing.keeper.name == "snapshots" and growing.keeper.most == 0


@needs_program
def test_losses_of_the_last_steps_are_counted_as_they_fill(tmp_path: Path) -> None:
    """Each has its graph with it."""
    grows = job("losses.append(loss)")
    full = "import collections\n" + grows.replace(
        "snapshots, losses", "losses = collections.deque(maxlen=20)\nsnapshots, _"
    )
    told = {}
    for name, text in (("grows", grows), ("full", full)):
        folder = tmp_path / name
        folder.mkdir()
        captured(folder, text, "{batch}")
        words = [find(), "predict", str(folder / "job.step.json.gz"), "--batch", "64", "--json"]
        told[name] = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
    assert told["grows"]["growth"]["kept_by"]["name"] == "losses" and told["grows"]["steps"] < 21
    assert told["full"]["growth"]["kept_by"]["most"] == 20 and told["full"]["steps"] == 21
    [said] = [one for one in told["full"]["assumptions"] if "until losses has 20 of them" in one]
    assert said.endswith("and that is counted")


PUTS = "kept.append(copied())"


@needs_program
@pytest.mark.parametrize(
    ("made", "lines", "copies"),
    [
        ("[]", [PUTS, "if len(kept) > 3: kept.pop(0)"], 4),
        ("[]", ["if len(kept) == 3: kept.pop(0)", PUTS], 3),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in [
                ("[]", [PUTS, "if len(kept) > keep.two: kept.pop(0)"], 3),
                ("[]", [PUTS, "if len(kept) >= 4: kept.pop(0)"], 4),
                ("[]", [PUTS, "if keep.two and len(kept) > keep.two: kept.pop(0)"], 3),
                ("[]", [PUTS, "kept = kept[-keep.two:]"], 3),
                ("[None] * 3", ["kept[step % 3] = copied()"], 4),
                ("{}", ["kept[step] = copied()", "kept.pop(step - 3, None)"], 4),
                ("collections.deque(maxlen=3)", [PUTS], 4),
                ("[]", [PUTS, "if len(kept) > 12: kept.pop(0)"], 13),
            ]
        ),
    ],
)
def test_what_is_full_lets_go_of_the_oldest(
    tmp_path: Path, made: str, lines: list[str], copies: int
) -> None:
    text = job("\n        ".join(lines)).replace("64", "8192").replace("AdamW", "SGD")
    text = f"import argparse, collections\nkeep = argparse.Namespace(two=2)\nkept = {made}\n{text}"
    captured(tmp_path, text, "{batch}")

    def allocated(*words: str) -> int:
        asked = [find(), "predict", str(tmp_path / "job.step.json.gz"), "--batch", "4", "--json"]
        said = subprocess.run([*asked, *words], stdout=subprocess.PIPE, check=True).stdout
        return int(json.loads(said)["allocated"])

    usual, first = allocated(), allocated("--steps", "1")
    assert usual == allocated("--steps", "20") == allocated("--steps", "40")
    weights = 4 * (32 * 8192 + 8192 + 8192 * 8 + 8)
    assert round((usual - first) / weights) + 1 == copies


def test_the_line_that_keeps_most_is_named(tmp_path: Path) -> None:
    lines = ["seen.append(loss.detach())", "seen.append(copied())"]
    told = captured(tmp_path, job("\n        ".join(lines)), "{batch}").document
    text = (tmp_path / "train.py").read_text().splitlines()
    at = next(i for i, line in enumerate(text, 1) if "seen.append(copied" in line)
    assert told["kept_by"] == {"name": "seen", "where": f"train.py:{at}"}


def test_a_flag_is_set_elsewhere(tmp_path: Path) -> None:
    lines = [
        "is_last = step > 1000",
        "is_due = step > 0 and step % 50 == 0",
        "if is_due: model.eval()",
        "if is_due or is_last:",
        "    snapshots.append(copied())",
        "    model.train()",
    ]
    told = captured(tmp_path, job("\n        ".join(lines)), "{batch}").document
    [growing] = told["growing"]
    assert growing["branch"].endswith("`if is_due or is_last:`") and growing["bytes"] == WEIGHTS
    assert growing["every"] == 50 and not notes(told, "not reached")


def test_a_flag_is_what_it_was_last_set_to() -> None:
    text = "def f(step):\n  due = step % 5 == 0\n  due = ready()\n  if due: save()\n"
    assert marked(text)[1] == ""
    text = "def f(step):\n  due = step % 5 == 0\ndef g(due):\n  if due: save()\n"
    assert marked(text)[1] == ""
    marker, said = marked("def f(step):\n  due = step % 5 == 0\n  if not due: return\n  save()\n")
    assert len(marker.tests) == 1 and "due = __plimsoll_asks__(0, step % 5 == 0, step, 5)" in said


def test_in_a_closure_that_the_optimizer_calls(tmp_path: Path) -> None:
    text = job().split("        loss =")[0] + """
        def closure():
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            if step % 50 == 0:
                snapshots.append(copied())
            return loss
        optimizer.step(closure)
"""
    [growing] = once(tmp_path, text).growing
    assert growing.every == 50 and growing.bytes == WEIGHTS
    assert growing.keeper is not None and growing.keeper.name == "snapshots"


OPTIMIZER = """
class Periodic(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"every": 20})
    GRAD
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["basis"] = 0, torch.zeros_like(p.data)
                state["step"] += 1
                if state["step"] % group["every"] == 0:
                    state["basis"] = torch.cumsum(p.data, 0)
                p.data.add_(p.grad, alpha=-0.1)
"""


@pytest.mark.parametrize(
    "decorator", ["@torch.no_grad()", pytest.param("", marks=pytest.mark.nightly)]
)
def test_in_an_optimizer_it_comes_due_for_all_parameters(tmp_path: Path, decorator: str) -> None:
    text = OPTIMIZER.replace("GRAD", decorator) + job().replace("torch.optim.AdamW", "Periodic")
    told = captured(tmp_path, text, "{batch}").document
    strings = told["strings"]
    events = told["variants"][0]["events"]
    ops = [strings[event[1]] for event in events if event[0] == "call"]
    assert ops.count("aten.cumsum.default") == 4 and "growing" not in told
    [note] = notes(told, "as if it were due")
    assert note.endswith("""`if state["step"] % group["every"] == 0:`""")
