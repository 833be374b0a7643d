"""Every release of these loops, made in their source by a program, frees what was offered."""

from __future__ import annotations

import importlib.util
import re
import textwrap

import pytest

pytest.importorskip("torch")

from release_jobs import Images, Language, adam, pictures, text  # noqa: E402
from step_checks import Checked  # noqa: E402
from test_release import frees_by_call  # noqa: E402

import plimsoll  # noqa: E402

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 4096
"""

LANGUAGE = {
    "a dictionary of results": """
        def train_step(model, optimizer, ids):
            out = {"logits": model(ids)}
            out["loss"] = F.cross_entropy(out["logits"].view(-1, VOCABULARY), ids.view(-1))
            loss = out["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    "a function of its own for the loss": """
        def loss_of(model, ids):
            logits = model(ids)
            wide = logits.double()
            return F.cross_entropy(wide.view(-1, VOCABULARY), ids.view(-1))

        def train_step(model, optimizer, ids):
            loss = loss_of(model, ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    "gradients through the next forward": """
        def train_step(model, optimizer, ids):
            loss = F.cross_entropy(model(ids).view(-1, VOCABULARY), ids.view(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    "several passes, each with its output": """
        def train_step(model, optimizer, ids):
            for _ in range(3):
                out = model(ids)
                guess = out.argmax(-1)
                loss = F.cross_entropy(out.view(-1, VOCABULARY), ids.view(-1))
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    "a branch of the graph that nothing uses": """
        def train_step(model, optimizer, ids):
            hidden = model.layer(model.embedding(ids))
            aside = model.head(hidden).softmax(-1).mean()
            loss = F.cross_entropy(model.head(hidden).view(-1, VOCABULARY), ids.view(-1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    "statements of several lines, and a try": """
        def train_step(
            model, optimizer, ids
        ):
            out = model(ids)
            try:
                loss = F.cross_entropy(
                    out.view(-1, VOCABULARY),
                    ids.view(-1),
                )
                (
                    loss
                    .backward()
                )
            finally:
                optimizer.step()
            optimizer.zero_grad()
        """,
    "a view that outlives its base's name": """
        def train_step(model, optimizer, ids):
            out = model(ids)
            first = out[:, 0]
            loss = F.cross_entropy(out.view(-1, VOCABULARY), ids.view(-1))
            loss.backward()
            first.sum()
            optimizer.step()
            optimizer.zero_grad()
        """,
}

IMAGES = {
    "what a module's forward holds": """
        class Step(nn.Module):
            def __init__(self):
                super().__init__()
                self.wide = nn.Conv2d(3, 32, 3, padding=1)
                self.head = nn.Linear(32, 10)

            def forward(self, images):
                wide = self.wide(images)
                doubled = wide + wide
                pooled = doubled.relu().mean((2, 3))
                return self.head(pooled)

        MODEL = Step

        def train_step(model, optimizer, batch):
            images, classes = batch
            scaled = images * 2
            loss = F.cross_entropy(model(scaled.half().float()), classes)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
}


def loaded(source, path):
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def captured(source, path, model, make):
    module = loaded(source, path)
    model = getattr(module, "MODEL", model)
    made = plimsoll.capture(model, adam, make, train_step=module.train_step)
    return Checked(made.document)


def edited(source, step, edits):
    """`del` before the lines, or `zero_grad` after them, the last line first."""
    lines = source.splitlines()
    places = []
    for kind, name, where in edits:
        line = int(re.match(r".*:(\d+) in ", step.strings[where])[1]) - 1
        indent = lines[line][: len(lines[line]) - len(lines[line].lstrip())]
        if kind == "variable":
            places.append((line, f"{indent}del {step.strings[name]}"))
        else:
            assert kind == "gradients"
            places.append((line + 1, f"{indent}optimizer.zero_grad()"))
    for line, new in sorted(places, reverse=True):
        lines.insert(line, new)
    return "\n".join(lines)


def check(source, tmp_path, model, make, trials):
    source = HEAD + textwrap.dedent(source)
    before = captured(source, tmp_path / "before.py", model, make)
    trials(0)  # what the edited job could free besides is not asked
    for number, release in enumerate(before.releases):
        changed = edited(source, before, release["edits"])
        after = captured(changed, tmp_path / f"after_{number}.py", model, make)
        offered = frees_by_call(before.events, release["frees"])
        assert offered == frees_by_call(after.events), changed
    return before


def some_by_day(names):
    """Each third; all by night."""
    marked = [pytest.param(name, marks=pytest.mark.nightly) for name in names]
    return [name if i % 3 == 0 else marked[i] for i, name in enumerate(names)]


@pytest.mark.parametrize("name", some_by_day(LANGUAGE))
def test_a_language_model(name, tmp_path, trials):
    assert check(LANGUAGE[name], tmp_path, Language, text, trials).releases


@pytest.mark.parametrize("name", some_by_day(IMAGES))
def test_an_image_model(name, tmp_path, trials):
    assert check(IMAGES[name], tmp_path, Images, pictures, trials).releases
