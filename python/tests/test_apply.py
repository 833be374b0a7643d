"""Training with a plan gives what a plain loop gives, and what was not set is said."""

from __future__ import annotations

import copy
import gzip
import json
import os
import types
import weakref

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional

import plimsoll

# As a loop has it that imported it before.
clip_norm = nn.utils.clip_grad_norm_


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 32), nn.Linear(32, 8)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.two(self.one(x).relu()))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def net():
    torch.manual_seed(1)
    return Net()


def batches(count=3, size=8):
    torch.manual_seed(2)
    return [(torch.randn(size, 8), torch.randint(0, 4, (size,))) for _ in range(count)]


def loss(model, x, y):
    return F.cross_entropy(model(x), y)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), 0.01, betas=(0.8, 0.9), weight_decay=0.1)


def plan(batch=8, passes=1, **levers):
    """Each lever by its value, as `plimsoll plan --json` has it."""
    told = [
        {"lever": lever, "set_to": set_to(value), "value": value} for lever, value in levers.items()
    ]
    way = {"batch": batch, "passes": passes, "levers": told}
    return {"schema": "plimsoll.plan/1", "ways": [way]}


def set_to(value):
    return ":".join(map(str, value.values()))


def optimizer_of(name, form="", in_backward=False):
    return {"name": name, "form": form, "in_backward": in_backward}


EARLY = optimizer_of("adamw", "for", True)


def plain(model=None, optimizer=adamw, passes=1):
    """The loop that everybody writes."""
    model = model or net()
    optimizer = optimizer(model)
    torch.manual_seed(3)
    for x, y in batches():
        for part in range(passes):
            size = len(x) // passes
            cut = slice(part * size, (part + 1) * size)
            value = loss(model, x[cut], y[cut])
            (value / passes if passes > 1 else value).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def planned(document, model=None, optimizer=adamw):
    model = model or net()
    applied = plimsoll.apply(document, model, optimizer(model))
    torch.manual_seed(3)
    for batch in batches():
        applied.step(batch, loss)
    return applied


def same(first, second, exactly=True):
    first, second = first.state_dict(), second.state_dict()
    assert list(first) == list(second)
    if exactly:
        return all(torch.equal(first[name], second[name]) for name in first)
    return all(torch.allclose(first[n], second[n], atol=1e-6) for n in first)


@pytest.mark.parametrize(
    "passes, levers",
    [
        (1, {}),
        (2, {"accumulation": {"passes": 2}}),
        (4, {"accumulation": {"passes": 4}}),
        (1, {"checkpointing": {"modules": ["blocks.0", "blocks.2"]}}),
        (1, {"checkpointing": {"modules": ["blocks.0", "blocks.2"], "keep": ["addmm", ""]}}),
        (1, {"checkpointing": {"modules": ["blocks.0"], "keep": ["host:blocks.2"]}}),
        (
            2,
            {
                "checkpointing": {"modules": ["blocks.0", "blocks.1", "blocks.2"]},
                "accumulation": {"passes": 2},
            },
        ),
        (1, {"offload": {"what": ["activations"]}}),
        (1, {"optimizer": EARLY}),
        (1, {"optimizer": optimizer_of("adamw", "for")}),
        (1, {"optimizer": EARLY, "checkpointing": {"modules": ["blocks.1"]}}),
    ],
)
def test_the_same_results_to_the_bit(passes, levers):
    applied = planned(plan(8 // passes, passes, **levers))
    assert same(applied.model, plain(passes=passes))
    assert len(applied.done) == len(levers) and not applied.left_to_you
    assert all(p.grad is None for p in applied.model.parameters())


@pytest.mark.parametrize("form", ["fused", "foreach"])
def test_another_form_of_the_optimizer_keeps_what_the_user_chose(form):
    def groups(model):
        first = {"params": model.blocks.parameters(), "lr": 0.02}
        rest = {"params": model.head.parameters(), "weight_decay": 0.0}
        return torch.optim.AdamW([first, rest], 0.01, betas=(0.8, 0.9), weight_decay=0.1)

    applied = planned(plan(optimizer=optimizer_of("adamw", form)), optimizer=groups)
    assert type(applied.optimizer) is torch.optim.AdamW
    assert [(g["lr"], g["weight_decay"]) for g in applied.optimizer.param_groups] == [
        (0.02, 0.1),
        (0.01, 0.0),
    ]
    assert all(g[form] and g["betas"] == (0.8, 0.9) for g in applied.optimizer.param_groups)
    assert same(applied.model, plain(optimizer=groups), exactly=False)


@pytest.mark.parametrize(
    "given, value, kind, kept",
    [
        (adamw, ("sgd",), torch.optim.SGD, {"lr": 0.01, "momentum": 0, "weight_decay": 0.1}),
        (adamw, ("sgd_momentum",), torch.optim.SGD, {"momentum": 0.9}),
        (adamw, ("adafactor",), torch.optim.Adafactor, {"lr": 0.01, "eps": (None, 0.001)}),
        (
            lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.7, nesterov=True),
            ("sgd", "fused"),
            torch.optim.SGD,
            {"momentum": 0.7, "nesterov": True, "fused": True},
        ),
    ],
)
def test_another_optimizer(given, value, kind, kept):
    applied = planned(plan(optimizer=optimizer_of(*value)), optimizer=given)
    assert type(applied.optimizer) is kind
    group = applied.optimizer.param_groups[0]
    assert {key: group[key] for key in kept} == kept
    changed = kind is not type(given(net()))
    assert [text.startswith("the learning rate of") for text in applied.left_to_you] == (
        [True] if changed else []
    )


def test_a_scheduler_and_a_checkpoint_of_an_optimizer_in_the_backward():
    def scheduled(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    model, other = net(), net()
    applied = plimsoll.apply(plan(optimizer=EARLY), model, adamw(model))
    reference = adamw(other)
    schedules = scheduled(applied.optimizer), scheduled(reference)
    for x, y in batches():
        torch.manual_seed(3)
        applied.step((x, y), loss)
        torch.manual_seed(3)
        loss(other, x, y).backward()
        reference.step()
        reference.zero_grad()
        for schedule in schedules:
            schedule.step()
    assert same(model, other)
    ours, theirs = applied.optimizer.state_dict(), reference.state_dict()
    for groups in (ours["param_groups"], theirs["param_groups"]):
        groups[0]["foreach"] = None
    assert ours["param_groups"] == theirs["param_groups"]
    assert torch.equal(ours["state"][0]["exp_avg"], theirs["state"][0]["exp_avg"])
    with pytest.raises(plimsoll.PlanError, match="clipped"):
        applied.step(batches()[0], loss, clip_norm=1.0)
    with pytest.raises(plimsoll.PlanError, match="more than 8 samples"):
        applied.step(batches(1, 9)[0], loss)


class Types(nn.Module):
    """Remembers in which type and format it was asked to compute."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.seen = []

    def forward(self, x):
        y = self.convolution(x)
        nhwc = x.is_contiguous(memory_format=torch.channels_last)
        self.seen.append((self.convolution.weight.dtype, y.dtype, nhwc))
        return y.float().mean()


@pytest.mark.parametrize(
    "value, weights, result",
    [
        ("fp32", torch.float32, torch.float32),
        ("bf16", torch.bfloat16, torch.bfloat16),
        ("amp_bf16", torch.float32, torch.bfloat16),
        ("amp_fp16", torch.float32, torch.float16),
        ("as_written", torch.float32, torch.float32),
    ],
)
@pytest.mark.parametrize("format", ["", "channels_last"])
def test_precisions(value, weights, result, format):
    name = format if value == "as_written" and format else "+".join(filter(None, [value, format]))
    model = Types()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = model.convolution.weight.detach().clone()
    applied = plimsoll.apply(plan(4, precision={"name": name}), model, optimizer)
    applied.step(torch.randn(4, 3, 8, 8), lambda m, x: m(x))
    assert model.seen == [(weights, result, bool(format))]
    assert (applied.scaler is not None) == (value == "amp_fp16")
    assert not torch.equal(model.convolution.weight, before.to(weights))
    assert len(applied.done) == 1 and not applied.left_to_you


def test_clipping_is_of_unscaled_gradients(monkeypatch):
    norms = []
    clip = nn.utils.clip_grad_norm_
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", lambda *args: norms.append(float(clip(*args))))
    for name in ("fp32", "amp_fp16"):
        model = net().eval()
        applied = plimsoll.apply(
            plan(precision={"name": name}), model, torch.optim.SGD(model.parameters())
        )
        applied.step(batches()[0], loss, clip_norm=0.1)
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)


class Loop:
    """A script's own loop, with what it does to gradients before its optimizer steps."""

    def __init__(self, clip=None, scaler=None):
        self.model = net().eval()
        self.optimizer = adamw(self.model)
        self.clip, self.scaler = clip, scaler

    def before_step(self):
        if self.clip is not None:
            self.clip(self.model.parameters(), 0.05)

    def update(self):
        if self.scaler is None:
            self.before_step()
            self.optimizer.step()
        else:
            self.scaler.unscale_(self.optimizer)
            self.before_step()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()

    def run(self):
        """In two micro-batches, by hand."""
        for x, y in batches():
            for part in (slice(0, 4), slice(4, 8)):
                value = loss(self.model, x[part], y[part]) / 2
                (value if self.scaler is None else self.scaler.scale(value)).backward()
            self.update()
        return self.model


def scaler():
    return torch.amp.GradScaler("cpu", init_scale=256.0)


@pytest.mark.parametrize("clip", [None, clip_norm, nn.utils.clip_grad_value_])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_loop_keeps_what_it_does_to_gradients(clip, scaled):
    """Cut into micro-batches, it clips as before and uses its own scaler."""
    used = [{"at": "train.py:5 in <module>", "by_scaler": False}] if clip else []
    if scaled:
        used.insert(0, {"at": "train.py:4 in <module>", "by_scaler": True})
    document = {**plan(4, 2, accumulation={"passes": 2}), "gradients_used": used}
    expected = Loop(clip, scaler() if scaled else None).run()
    loops = []
    for whole in (False, True):
        loop = Loop(clip, scaler() if scaled else None)
        applied = plimsoll.apply(document, loop.model, loop.optimizer)
        named = "applied.backward(loss, scaler)" if scaled else "applied.backward(loss)"
        assert any(named in text for text in applied.left_to_you)
        for batch in batches():
            if whole:
                before = loop.before_step if clip else None
                mean = applied.step(batch, loss, before_step=before, scaler=loop.scaler)
            else:
                for x, y in applied.micro_batches(batch):
                    mean = applied.backward(loss(loop.model, x, y), loop.scaler)
                loop.update()
        assert mean.item() == pytest.approx(loss(loop.model, *batch).item(), rel=0.2)
        assert not applied.left_to_you
        loops.append(loop)
    assert all(same(expected, loop.model) for loop in loops)


@pytest.mark.parametrize("given, missing", [({}, "scaler"), ({"scaler": 1}, "clip_norm=")])
def test_a_step_that_would_drop_what_the_script_does_is_refused(given, missing):
    model = net()
    used = [
        {"at": "train.py:4 in main", "by_scaler": True},
        {"at": "train.py:5 in main", "by_scaler": False},
    ]
    document = {**plan(4, 2), "gradients_used": used}
    applied = plimsoll.apply(document, model, adamw(model))
    before = copy.deepcopy(model)
    options = {"scaler": scaler()} if given else {}
    with pytest.raises(plimsoll.PlanError, match=missing) as error:
        applied.step(batches()[0], loss, **options)
    assert ("train.py:5 in main" if given else "train.py:4 in main") in str(error.value)
    assert "\n" not in str(error.value)
    assert same(model, before) and all(p.grad is None for p in model.parameters())
    applied.step(batches()[0], loss, scaler=scaler(), before_step=lambda: None)


def test_one_scaler_is_enough():
    model = net()
    applied = plimsoll.apply(plan(precision={"name": "amp_fp16"}), model, adamw(model))
    with pytest.raises(plimsoll.PlanError, match="brings a gradient scaler: leave out your own"):
        applied.step(batches()[0], loss, scaler=scaler())


def test_a_script_that_accumulates_is_told_its_own_two_numbers():
    levers = {"accumulation": {"passes": 2}, "precision": {"name": "amp_bf16"}}
    document = {**plan(4, 2, **levers), "captured_passes": 4}
    applied = plimsoll.apply(document, net())
    around, numbers = applied.left_to_you
    assert around.startswith("with applied.forward(): around the forward")
    assert numbers == (
        "accumulation = 2: in the script, set its batch size to 4 and its own accumulation steps "
        "to 2"
    )


def gradient_of(batch, model, of=loss, size=8, passes=1):
    applied = plimsoll.apply(plan(size, passes), model, torch.optim.SGD(model.parameters(), 1.0))
    before = copy.deepcopy(model.state_dict())
    value = applied.step(batch, of)
    return value, {name: before[name] - now for name, now in model.state_dict().items()}


def test_pieces_of_other_sizes_count_by_their_samples():
    """The last batch of an epoch; and a mask that is not of the batch."""
    model = net().eval()
    (x, y), mask = batches(1, 7)[0], torch.ones(8)

    def masked(model, batch):
        return loss(model, batch["x"] * batch["mask"], batch["y"])

    batch = {"x": x, "y": y, "mask": mask}
    whole = gradient_of(batch, copy.deepcopy(model), masked)
    cut = gradient_of(batch, copy.deepcopy(model), masked, size=3, passes=3)
    assert torch.allclose(whole[0], cut[0])
    assert all(torch.allclose(whole[1][n], cut[1][n], atol=1e-6) for n in whole[1])


def test_batches_from_an_iterator():
    model, other = net().eval(), net().eval()
    applied = plimsoll.apply(plan(8, 2), model, torch.optim.SGD(model.parameters(), 1.0))
    reference = torch.optim.SGD(other.parameters(), 1.0)
    first, second, third = batches(3)
    loader = iter([first, second, third])
    for expected in ([first, second], [third]):  # of the last step one is left
        value = applied.step(loader, loss)
        x, y = (torch.cat(parts) for parts in zip(*expected))
        whole = loss(other, x, y)
        whole.backward()
        reference.step()
        reference.zero_grad()
        assert torch.allclose(value, whole)
        assert same(model, other, exactly=False)
    with pytest.raises(StopIteration):
        applied.step(loader, loss)


def test_an_iterator_is_not_read_ahead():
    """Batches that are made on the GPU are there one at a time, and the next one as it is made."""
    alive = []

    def made():
        for x, y in batches(4):
            made = x.clone()
            alive.append(weakref.ref(made))
            assert sum(one() is not None for one in alive) <= 2
            yield made, y

    model = net()
    plimsoll.apply(plan(8, 4), model, adamw(model)).step(made(), loss)
    assert len(alive) == 4


@pytest.mark.parametrize("passes", [1, 2])
def test_a_batch_in_another_format_is_not_there_twice(passes):
    alive = []

    def image():
        made = torch.randn(4, 3, 8, 8)
        alive.append(weakref.ref(made))
        return made

    def value(model, x):
        assert not any(one() is not None for one in alive)
        return model(x)

    model = Types()
    chosen = plan(4, passes, precision={"name": "channels_last"})
    applied = plimsoll.apply(chosen, model, torch.optim.SGD(model.parameters(), 0.1))
    applied.step((image() for _ in range(passes)), value)
    assert len(alive) == passes


def test_what_is_left_is_said():
    levers = {
        "parallel": {"kind": "fsdp", "ranks": 8, "compute": "bf16"},
        "loss": {"chunks": 8},
        "offload": {"what": ["optimizer"]},
        "allocator": {"conf": "expandable_segments:True"},
        "optimizer": optimizer_of("lion"),
        "precision": {"name": "fp4"},
        "warp_drive": {"on": True},
    }
    model = net()
    applied = plimsoll.apply(plan(**levers), model, adamw(model))
    assert not applied.done and len(applied.left_to_you) == len(levers)
    shown = repr(applied)
    assert all(f"left to you: {n} = {set_to(value)}" in shown for n, value in levers.items())
    assert "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in shown
    assert "torchrun --nproc_per_node 8" in shown
    applied.step(batches()[0], loss)


def test_what_the_loop_has_to_do_is_left_to_you_until_it_is_done():
    model = net()
    given = adamw(model)
    levers = {"accumulation": {"passes": 2}, "optimizer": optimizer_of("adamw", "fused")}
    applied = plimsoll.apply(plan(4, 2, **levers), model, given)
    assert applied.optimizer is not given
    assert applied.done == ["a new optimizer, AdamW (fused), with your groups and settings"]
    optimizer, cut, backward = applied.left_to_you
    assert optimizer.startswith("use applied.optimizer from here on")
    assert cut.startswith("for x, y in applied.micro_batches((x, y)): around")
    assert "the 8 samples of a step, still on the CPU, into 2 micro-batches of 4" in cut
    assert backward == "loss = applied.backward(loss) in place of its backward()"
    assert repr(applied).count("in your loop: ") == 3
    applied.step(batches()[0], loss)
    assert not applied.left_to_you
    assert applied.done[1] == "2 micro-batches of 4 samples in each step"


def test_parameters_of_another_optimizer_are_told():
    model = net()
    first, *rest = model.parameters()
    part = torch.optim.AdamW(rest, 1e-3)
    (told,) = plimsoll.apply(plan(tf32={"on": False}), model, part).left_to_you
    assert told.startswith("1 of the parameters that train are not in the optimizer given")
    assert not plimsoll.apply(plan(tf32={"on": False}), model, adamw(model)).left_to_you


@pytest.mark.parametrize(
    "levers, what",
    [
        ({"precision": {"name": "amp_bf16"}}, ["with applied.forward(): "]),
        ({"precision": {"name": "bf16"}}, ["x, y = applied.place((x, y)) "]),
        (
            {"precision": {"name": "amp_fp16"}},
            ["with applied.forward(): ", "loss = applied.backward(loss) ", "applied.update() "],
        ),
        ({"offload": {"what": ["activations"]}}, ["with applied.forward(): "]),
    ],
)
def test_what_happens_in_a_micro_batch_needs_the_loop(levers, what):
    left = plimsoll.apply(plan(**levers), net()).left_to_you
    assert len(left) == len(what) and all(map(str.startswith, left, what))


def test_what_the_model_alone_needs_is_done():
    applied = plimsoll.apply(plan(checkpointing={"modules": ["blocks.0"]}), net())
    assert applied.done and not applied.left_to_you


@pytest.mark.parametrize("packed", [True, False])
def test_a_step_file_is_told_from_a_plan(tmp_path, packed):
    path = tmp_path / ("x.step.json.gz" if packed else "x.step.json")
    text = json.dumps({"schema": "plimsoll.step/1", "torch": "2.11", "strings": []}).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    with pytest.raises(plimsoll.PlanError) as error:
        plimsoll.apply(path, net())
    assert f"{path} is a step file, not a plan" in str(error.value)
    assert f"`plimsoll plan {path} --json > plan.json`" in str(error.value)


def test_what_is_neither_text_nor_a_step(tmp_path):
    for data in (b"\x80\x04\x95", b"\x1f\x8b", gzip.compress(b"{}")):
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(plimsoll.PlanError, match="is no plan|cannot be read") as error:
            plimsoll.apply(tmp_path / "x", net())
        assert "codec" not in str(error.value)


def test_a_loss_of_another_model_is_refused():
    named = {"model": "GPT2LMHeadModel", **plan(loss={"chunks": 8, "layers": ["lm_head"]})}
    with pytest.raises(plimsoll.PlanError, match="Linear, has no layer 'lm_head', and the plan is"):
        plimsoll.apply(named, nn.Linear(4, 4))
    with pytest.raises(plimsoll.PlanError, match="a single nn.Linear"):
        plimsoll.apply(plan(loss={"chunks": 8}), nn.Linear(4, 4))


def test_an_optimizer_in_the_backward_needs_whole_gradients():
    for options in ({"passes": 2}, {"precision": {"name": "amp_fp16"}}):
        model = net()
        given = adamw(model)
        applied = plimsoll.apply(
            plan(**options, optimizer=optimizer_of("adamw", "fused", True)), model, given
        )
        assert applied.optimizer is given
        assert "gradient is not whole" in applied.not_set[0]


@pytest.mark.parametrize(
    "use, what",
    [
        (lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1), "clip_grad_norm_ sees no"),
        (lambda model: clip_norm(list(model.parameters()), 1, foreach=False), "no gradients"),
        (lambda model: nn.utils.clip_grad_value_(model.parameters(), 1), "clip_grad_value_ sees"),
        (lambda model: loss(model, *batches(1)[0]).backward(), "that this loop accumulates"),
    ],
)
def test_a_loop_that_an_optimizer_in_the_backward_would_break_is_refused(use, what):
    model, other = net(), net()
    applied = plimsoll.apply(plan(optimizer=EARLY), model, adamw(model))
    (batch,) = batches(1)
    for _ in range(2):
        applied.optimizer.step()
        loss(model, *batch).backward()
    with pytest.raises(plimsoll.PlanError, match=what):
        use(model)
    # Those of another model have nothing to do with it.
    assert nn.utils.clip_grad_norm_(other.parameters(), 1.0) == 0
    loss(other, *batch).backward()
    nn.utils.clip_grad_value_(other.parameters(), 1.0)


def test_a_gradient_scaler_beside_an_optimizer_in_the_backward_is_refused():
    model = net()
    applied = plimsoll.apply(plan(optimizer=EARLY), model, adamw(model))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss(model, *batches(1)[0])).backward()
    with pytest.raises(plimsoll.PlanError, match="the gradient scaler sees no gradients"):
        scaler.step(applied.optimizer)


def test_what_is_no_regular_file_is_refused(tmp_path, monkeypatch):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, "/dev/zero", tmp_path):
        with pytest.raises(plimsoll.PlanError, match="is no regular file|cannot be read") as error:
            plimsoll.apply(path, net())
        assert "\n" not in str(error.value)
    endless = tmp_path / "endless"
    endless.write_bytes(b" " * 2000)
    monkeypatch.setattr("plimsoll.applying.plan_file._LARGEST", 1000)
    with pytest.raises(plimsoll.PlanError, match="too large"):
        plimsoll.apply(endless, net())


def test_allocator_settings_that_are_there_already(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True")
    applied = plimsoll.apply(plan(allocator={"conf": "expandable_segments:True"}), net())
    assert len(applied.done) == 1 and not applied.left_to_you


def test_tf32():
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        plimsoll.apply(plan(tf32={"on": True}), net())
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_where_a_plan_may_come_from(tmp_path):
    document = plan(4, 2, accumulation={"passes": 2})
    (tmp_path / "plan.json").write_text(json.dumps(document))
    for source in (document, json.dumps(document), tmp_path / "plan.json"):
        applied = plimsoll.apply(source, net())
        assert (applied.batch, applied.passes) == (4, 2)
    assert plimsoll.apply(document, net(), way={**document["ways"][0], "batch": 3}).batch == 3


def stepped(model):
    optimizer = adamw(model)
    loss(model, *batches()[0]).backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    "document, options, what",
    [
        ("nowhere.json", {}, "nowhere.json cannot be read"),
        ("{", {}, "no JSON"),
        ('{"a": ' + "[" * 100_000, {}, "nested more than 64 levels deep"),
        ({"schema": "plimsoll.plan/7"}, {}, "schema"),
        ("[]", {}, "cannot be read"),
        ({"schema": "plimsoll.plan/1", "ways": []}, {}, "no way that fits"),
        (plan(), {"way": 1}, "no way 1"),
        (plan(batch=0), {}, "batch"),
        ({"schema": "plimsoll.plan/1", "ways": [{"batch": 1, "passes": 1}]}, {}, "levers"),
        (
            {
                "schema": "plimsoll.plan/1",
                "ways": [{"batch": 1, "passes": 1, "levers": [{"lever": "tf32", "set_to": "on"}]}],
            },
            {},
            "older release",
        ),
        (plan(checkpointing={"modules": ["blocks.0", "blocks.7"]}), {}, "no block 'blocks.7'"),
        (
            plan(
                optimizer=optimizer_of("adamw", "fused"),
                checkpointing={"modules": ["blocks.0"]},
                precision={"name": "fp32"},
            ),
            {"optimizer": stepped},
            "state already",
        ),
        (plan(precision={"name": "bf16"}), {"optimizer": stepped}, "state in another type"),
        (plan(), {"optimizer": lambda m: 3}, "`optimizer` is int"),
    ],
)
def test_what_is_refused(document, options, what):
    model = net()
    before = model.state_dict()
    optimizer = options.pop("optimizer", adamw)(model)
    with pytest.raises(plimsoll.PlanError, match=what) as error:
        plimsoll.apply(document, model, optimizer, **options)
    assert "\n" not in str(error.value)
    assert list(model.state_dict()) == list(before)
    assert all(type(block) is Block for block in model.blocks)


def test_checkpointing_is_in_a_shared_module_everywhere():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

    shared = Block()
    model = nn.Sequential(shared, nn.Linear(8, 8), shared)
    names = list(model.state_dict())
    applied = plimsoll.apply(plan(checkpointing={"modules": ["0"]}), model)
    assert all(isinstance(model[i], CheckpointWrapper) == (i != 1) for i in range(3))
    assert list(model.state_dict()) == names
    model.load_state_dict(model.state_dict())
    assert "1 blocks" in applied.done[0]


def test_a_cache_of_generation_is_switched_off_beside_checkpoints():
    model = net()
    model.config = types.SimpleNamespace(use_cache=True)
    applied = plimsoll.apply(plan(checkpointing={"modules": ["blocks.0"]}), model)
    assert not model.config.use_cache and "use_cache" in applied.done[0]


class Mixed(nn.Module):
    """A norm, a batch norm, products, random numbers, two views of one storage."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.statistics = nn.LayerNorm(width), nn.BatchNorm1d(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        gate, up = self.up(self.norm(x)).chunk(2, dim=-1)
        return x + self.dropout(self.statistics(self.down(nn.functional.silu(gate) * up)))


def trained(change):
    torch.manual_seed(0)
    model = nn.Sequential(*[Mixed(16) for _ in range(4)])
    names = list(model.state_dict())
    change(model)
    assert list(model.state_dict()) == names
    torch.manual_seed(1)
    for _ in range(2):
        model(torch.randn(32, 16)).square().sum().backward()
    return model, [p.grad for p in model.parameters()]


@pytest.mark.parametrize(
    "keep",
    [
        ["", "", "", ""],
        ["addmm", "addmm@0", "addmm@1+silu", "native_layer_norm"],
        ["mul.Tensor+addmm", "", "silu", "native_batch_norm"],
        ["host:2", "addmm", "host:3", ""],
        ["host:1", "host:3", "host:3", "host:0"],
    ],
)
def test_what_is_kept_or_waits_changes_no_result(keep, monkeypatch):
    from plimsoll.applying import waiting_blocks
    from plimsoll.applying.checkpoints import checkpoint_blocks

    monkeypatch.setattr(waiting_blocks, "_Copies", waiting_blocks._CopiesInPlace)
    names = ["0", "1", "2", "3"]
    plain_model, expected = trained(lambda model: None)
    model, grads = trained(lambda model: checkpoint_blocks(model, names, keep))
    assert all(torch.equal(a, b) for a, b in zip(expected, grads))
    # Running statistics too: a batch that is seen again is no other batch.
    assert same(plain_model, model)


def test_a_graph_whose_results_wait_is_gone_through_once(monkeypatch):
    from plimsoll.applying import waiting_blocks

    monkeypatch.setattr(waiting_blocks, "_Copies", waiting_blocks._CopiesInPlace)
    model = nn.Sequential(Mixed(8), Mixed(8))
    waiting_blocks.wait_on_host(model, {"0": "1"})
    loss = model(torch.randn(4, 8)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="retain_graph"):
        loss.backward()


@pytest.mark.parametrize("keep", [["addmm@x"], ["+"], [1], ["addmm", ""], "addmm"])
def test_a_plan_that_says_wrongly_what_it_keeps(keep):
    with pytest.raises(plimsoll.PlanError):
        plimsoll.apply(plan(checkpointing={"modules": ["blocks.0"], "keep": keep}), net())


def test_a_compiled_way_compiles_the_model_in_place(monkeypatch):
    asked = []
    monkeypatch.setattr(nn.Module, "compile", lambda self: asked.append(self))
    model = net()
    applied = plimsoll.apply(plan(precision={"name": "amp_bf16+compiled"}), model)
    assert asked == [model] and applied.done == ["compiled; autocast to bfloat16"]


def test_a_way_without_the_compiler():
    model = net()
    model._compiled_call_impl = print
    assert plimsoll.apply(plan(precision={"name": "eager"}), model).done == ["not compiled"]
    assert model._compiled_call_impl is None
    wrapped = nn.Sequential()
    wrapped._orig_mod = model
    applied = plimsoll.apply(plan(precision={"name": "eager"}), wrapped)
    assert "call the model that torch.compile was given" in applied.not_set[0]
