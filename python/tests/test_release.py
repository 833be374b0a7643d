"""What could be let go earlier: found where it is so, and nowhere else."""

from __future__ import annotations

import dis
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional

from release_jobs import (  # noqa: E402
    VOCABULARY,
    Images,
    Language,
    adam,
    captured,
    pictures,
    text,
)
from step_checks import Checked  # noqa: E402

import plimsoll  # noqa: E402
from plimsoll.base.liveness import done_with, statement_at  # noqa: E402


def steps_of(train_step, model=Language, make=text, **options):
    made = plimsoll.capture(model, adam, make, train_step=train_step, **options)
    return Checked(made.document)


def edits(step):
    """Of each release, in the order of what they are worth."""
    return [
        [
            (kind, step.strings[name], step.strings[where] if where >= 0 else None)
            for kind, name, where in release["edits"]
        ]
        for release in step.releases
    ]


def frees_by_call(events, frees=()):
    """What is freed between each two calls, if it is freed where `frees` says."""
    moved = {storage for _, storage in frees}
    early: dict[int, list[int]] = {}
    for index, storage in frees:
        early.setdefault(index, []).append(storage)
    gaps = [Counter()]
    for index, event in enumerate([*events, ["end"]]):
        gaps[-1].update(early.get(index, ()))
        if event[0] == "free" and event[1] not in moved:
            gaps[-1][event[1]] += 1
        if event[0] == "call":
            gaps.append(Counter())
    return gaps


@pytest.mark.parametrize(
    "kept, freed, edit",
    [
        ("output_kept", "output_freed", ("variable", "out")),
        ("batch_kept", "batch_freed", ("place", "self.last")),
        ("graph_kept", "graph_freed", ("graph", "self.history[…]")),
    ],
)
def test_what_is_offered_is_what_the_edit_frees(kept, freed, edit):
    before = Checked(captured(kept).document)
    after = Checked(captured(freed).document)
    ((told,),) = edits(before)
    assert told[:2] == edit
    assert after.releases == []
    (release,) = before.releases
    assert frees_by_call(before.events, release["frees"]) == frees_by_call(after.events)


def test_the_line_before_which_it_can_be_let_go():
    step = Checked(captured("output_kept").document)
    ((_, _, where),) = edits(step)[0]
    assert where.startswith("release_jobs.py:") and where.endswith("in output_kept")


def test_an_output_that_is_read_again_is_not_offered():
    def train_step(model, optimizer, ids):
        out = model(ids)
        F.cross_entropy(out.view(-1, VOCABULARY), ids.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        return out.shape

    assert edits(steps_of(train_step)) == []


def test_what_the_backward_needs_stays_until_it_was_used():
    def train_step(model, optimizer, ids):
        hidden = model.embedding(ids)
        out = model.layer(hidden).tanh()
        out.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step = steps_of(train_step)
    assert sorted(name for ((_, name, _),) in edits(step)) == ["hidden", "out"]
    phases = [event[1] if event[0] == "phase" else None for event in step.events]
    for release in step.releases:
        for event, _ in release["frees"]:
            phase = next(phase for phase in reversed(phases[:event]) if phase)
            assert phase in ("backward", "optimizer")


def test_two_names_of_one_tensor_go_together():
    def train_step(model, optimizer, ids):
        out = model(ids)
        flat = out.view(-1, VOCABULARY)
        loss = F.cross_entropy(flat, ids.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    ((first, second),) = edits(steps_of(train_step))
    assert {first[1], second[1]} == {"out", "flat"}


class Remembers:
    """Of one run; a capture has several."""

    def __init__(self, train_step):
        self.train_step = train_step
        self.model = self.last = None

    def step(self, model, optimizer, batch):
        if self.model is not model:
            self.model, self.last = model, None
        self.train_step(self, model, optimizer, batch)
        optimizer.step()
        optimizer.zero_grad()


def test_what_the_next_step_uses_is_not_offered():
    def train_step(self, model, optimizer, ids):
        out = model(ids)
        F.cross_entropy(out.view(-1, VOCABULARY), ids.view(-1)).backward()
        if self.last is not None:
            self.last.mul_(2)
        self.last = out.detach()

    assert edits(steps_of(Remembers(train_step).step)) == []


def test_a_running_average_is_not_offered():
    def train_step(self, model, optimizer, ids):
        F.cross_entropy(model(ids).view(-1, VOCABULARY), ids.view(-1)).backward()
        weight = model.head.weight.detach()
        self.last = weight.clone() if self.last is None else self.last.lerp_(weight, 0.1)

    assert edits(steps_of(Remembers(train_step).step)) == []


def test_what_the_next_step_reads_on_the_host_is_not_offered():
    def train_step(self, model, optimizer, batch):
        images, classes = batch
        F.cross_entropy(model(images), classes).backward()
        if self.last is not None:
            self.last.cpu()
        self.last = images

    assert edits(steps_of(Remembers(train_step).step, Images, pictures)) == []


def test_gradients_that_stay_through_the_forward():
    def train_step(model, optimizer, ids):
        loss = F.cross_entropy(model(ids).view(-1, VOCABULARY), ids.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    ((told,),) = edits(steps_of(train_step))
    assert told[0] == "gradients" and told[2].endswith("in train_step")


def test_gradients_that_are_added_up_are_not_offered():
    count = [0]

    def train_step(model, optimizer, ids):
        F.cross_entropy(model(ids).view(-1, VOCABULARY), ids.view(-1)).backward()
        optimizer.step()
        count[0] += 1

    assert edits(steps_of(train_step)) == []


def test_a_batch_that_autocast_has_copied():
    def loss(model, images, classes):
        return F.cross_entropy(model(images), classes)

    made = plimsoll.capture(Images, adam, pictures, loss, autocast=torch.bfloat16)
    assert edits(Checked(made.document)) == [[("batch", "batch", None)]]
    plain = plimsoll.capture(Images, adam, pictures, loss)
    assert edits(Checked(plain.document)) == []


def test_a_model_that_keeps_its_features():
    class Keeps(Images):
        def forward(self, images):
            self.features = self.layers(images)
            return self.head(self.features.relu())

    def loss(model, images, classes):
        return F.cross_entropy(model(images), classes)

    made = plimsoll.capture(Keeps, adam, pictures, loss)
    assert edits(Checked(made.document)) == [[("place", "model.features", None)]]


def test_every_precision_has_its_own():
    def train_step(model, optimizer, ids):
        out = model(ids)
        loss = F.cross_entropy(out.view(-1, VOCABULARY), ids.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    made = plimsoll.capture(Language, adam, text, train_step=train_step, precisions=["bf16"])
    for variant in (0, 1):
        ((told,),) = edits(Checked(made.document, variant))
        assert told[:2] == ("variable", "out")


def in_a_loop(parts):
    total = 0
    for part in parts:
        twice = part * 2
        total = total + twice.sum()
        print(total)
    return total


def test_what_is_read_again():
    code = in_a_loop.__code__
    prints = next(i for i in dis.get_instructions(code) if i.argval == "print")
    done = done_with(code, prints.offset)
    assert "twice" in done and "total" not in done
    statement = statement_at(code, code.co_firstlineno + 4)
    assert statement.names == {"total", "twice"}
