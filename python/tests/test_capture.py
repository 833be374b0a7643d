from __future__ import annotations

import gzip
import json

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional

from step_checks import Checked  # noqa: E402

import plimsoll  # noqa: E402


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batch(n):
    return torch.randn(n, 8, device="cuda"), torch.randint(0, 4, (n,), device="cuda")


def loss(model, x, y):
    return F.cross_entropy(model(x), y)


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


def adamw(parameters):
    return torch.optim.AdamW(parameters, 0.1)


def captured(model=mlp, optimizer=adamw, make=batch, of=loss, **options):
    return Checked(plimsoll.capture(model, optimizer, make, of, **options).document)


def test_a_plain_step():
    step = captured()
    assert step.named("parameter") == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [event for event in step.events if event[0] == "step"] == [["step"]] * 3
    assert step.ops("forward")[:3] == [
        "aten.addmm.default",
        "aten.relu.default",
        "aten.addmm.default",
    ]
    assert step.ops("backward").count("aten.mm.default") == 3 * 3
    assert len(step.labelled("gradient")) == 4 * 3
    assert len(step.labelled("optimizer_state")) == 8
    assert len(step.labelled("input")) == 2 * 3


def test_numbers_that_depend_on_the_batch_are_pairs():
    step = captured(batches=(4, 6))
    (_, made), *_ = step.calls("inputs")
    assert [new[:3] for new in made[8]] == [[5, [4 * 8 * 4, 6 * 8 * 4], 0]]
    assert step.layout(made[7][0]) == ["float32", [[4, 6], 8], [8, 1]]
    assert made[5][0] == [{"n": [4, 6]}, 8]


def test_lines_modules_and_threads():
    step = captured()
    name, call = next(step.calls("forward"))
    assert step.strings[call[2]].startswith("test_capture.py:")
    assert step.strings[call[2]].endswith("in loss")
    assert step.strings[call[3]] == "0" and call[4] == 0
    backward = [call for name, call in step.calls("backward") if name == "aten.mm.default"]
    assert [step.strings[call[3]] for call in backward[:3]] == ["2", "2", "0"]
    assert all(call[4] == 1 for call in backward)
    optimizer = [call for _, call in step.calls("optimizer")]
    assert all(call[2] == -1 and call[4] == 0 for call in optimizer)


def test_how_long_variables_hold_what_the_backward_holds_too():
    class Block(nn.Module):
        def forward(self, x):
            y = x.exp()  # held until this returns, two calls after it is read
            return y.sin().cos().tanh()

    class Unnamed(nn.Module):
        def forward(self, x):
            x = x.exp()
            x = x.sin()
            return x.cos().tanh()

    def held(block):
        model = nn.Sequential(nn.Linear(8, 4), block)
        step = captured(lambda: model)
        made = {name: call[8] for name, call in step.calls("forward")}
        return [made[f"aten.{op}.default"][0][3:] for op in ("exp", "sin", "cos")]

    assert held(Block()) == [[3], [], []]
    assert held(Unnamed()) == [[], [2], []]


def test_where_the_model_ends():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x).relu()

    step = captured(Net, of=lambda model, x, y: model(x).exp().mean())
    assert step.document["names_root"]
    for phase, found in (("forward", ["layer", "", None, None]), ("backward", [None])):
        calls = [call for _, call in step.calls(phase)]
        modules = [step.strings[call[3]] if call[3] >= 0 else None for call in calls]
        assert modules[: len(found)] == found
    assert "" in modules, "the backward of the model's own forward"


def test_what_lives_how_long():
    """The batch and the loss of a step live until the next one has made its own."""
    events = captured().events
    second = [i for i, event in enumerate(events) if event == ["step"]][1]
    freed = [event[1] for event in events[second:] if event[0] == "free"]
    inputs = [n for e in events[:second] if e[0] == "label" and e[1] == "input" for n in e[2]]
    assert freed[:2] == inputs
    kinds = [event[0] for event in events[second : second + 6]]
    assert kinds == ["step", "phase", "call", "call", "label", "free"]


def test_tied_weights_are_one():
    def tied():
        model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10, bias=False))
        model[1].weight = model[0].weight
        return model

    def tokens(n):
        return torch.randint(0, 10, (n, 3), device="cuda")

    for model in (tied, tied()):
        step = captured(model, sgd, tokens, lambda m, x: m(x).mean())
        assert step.named("parameter") == ["0.weight"]


def test_order_is_that_of_moving_a_module():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.own = nn.Parameter(torch.zeros(3))
            self.register_buffer("table", torch.zeros(5))
            self.inner = nn.BatchNorm1d(8)

        def forward(self, x):
            return self.inner(x).sum() + self.own.sum()

    step = captured(Outer, sgd, lambda n: torch.randn(n, 8), lambda m, x: m(x))
    told = [event[0] for event in step.events[:7]]
    names = [step.strings[event[3]] for event in step.events[:7]]
    assert names == [
        "inner.weight",
        "inner.bias",
        "inner.running_mean",
        "inner.running_var",
        "inner.num_batches_tracked",
        "own",
        "table",
    ]
    assert told == ["parameter"] * 2 + ["buffer"] * 3 + ["parameter", "buffer"]


def test_a_module_is_copied_and_left_alone():
    model = mlp().to(torch.float64)
    model[0].weight.requires_grad_(False)
    model[2].weight = nn.Parameter(model[2].weight.t().contiguous().t())
    before = {name: p.clone() for name, p in model.named_parameters()}
    step = captured(model, sgd, lambda n: (torch.randn(n, 8).double(), torch.randint(0, 4, (n,))))
    first, third = step.events[0], step.events[2]
    assert step.layouts[first[2]][0] == "float64" and first[4] is False
    assert step.layouts[third[2]] == ["float64", [4, 16], [1, 4]]
    for name, p in model.named_parameters():
        assert p.device.type == "cpu" and p.grad is None
        assert torch.equal(p, before[name])


def test_a_meta_module():
    with torch.device("meta"):
        model = mlp()
    assert captured(model, sgd).named("parameter")


def test_a_builder_may_move_and_cast():
    step = captured(
        lambda: mlp().to("cuda").half().cuda(),
        sgd,
        lambda n: (torch.randn(n, 8, device="cuda").half(), batch(n)[1]),
    )
    assert step.layouts[step.events[0][2]][0] == "float16"


def test_an_optimizer_of_the_module():
    model = mlp()
    optimizer = torch.optim.Adam(
        [{"params": model[0].parameters(), "lr": 1.0}, {"params": model[2].weight}], amsgrad=True
    )
    step = captured(model, optimizer)
    assert len(step.labelled("optimizer_state")) == 3 * 3
    assert not optimizer.state


def test_several_optimizers():
    model = mlp()
    step = captured(
        model,
        [
            torch.optim.SGD(model[0].parameters(), 0.1, momentum=0.9),
            torch.optim.AdamW(model[2].parameters()),
        ],
    )
    assert len(step.labelled("optimizer_state")) == 2 + 4


def test_no_optimizer():
    step = captured(optimizer=None, steps=1)
    assert step.ops("optimizer") == []


@pytest.mark.parametrize(
    "options, op",
    [
        ({}, "aten._foreach_sqrt.default"),
        ({"fused": True}, "aten._fused_adamw_.default"),
        ({"foreach": False}, "aten.sqrt.default"),
    ],
)
def test_optimizers_take_the_path_of_a_gpu(options, op):
    step = captured(optimizer=lambda p: torch.optim.AdamW(p, **options))
    assert op in step.ops("optimizer")


@pytest.mark.parametrize(
    "name",
    [
        "SGD",
        "Adam",
        "Adagrad",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in "AdamW RMSprop Adadelta NAdam RAdam Adamax ASGD Rprop".split()
        ),
    ],
)
def test_every_optimizer(name):
    step = captured(optimizer=lambda p: getattr(torch.optim, name)(p, lr=0.1))
    assert any("_foreach_" in op for op in step.ops("optimizer"))


def test_accumulation():
    step = captured(accumulate=4, steps=1)
    assert step.ops().count("aten.div.Tensor") == 8  # the loss, forward and backward
    assert len(step.labelled("gradient")) == 4
    assert step.ops("backward").count("aten.mm.default") == 3 * 4
    assert step.ops().count("aten._foreach_sqrt.default") == 1


def test_autocast_and_scaler():
    step = captured(optimizer=sgd, autocast=torch.float16, scaler=True)
    assert "aten._amp_foreach_non_finite_check_and_unscale_.default" in step.ops("optimizer")
    assert step.ops("optimizer").count("aten._foreach_add_.List") == 3, "no step is skipped"
    (first, *_) = (call for name, call in step.calls("forward") if name == "aten.addmm.default")
    assert step.layout(first[7][0])[0] == "float16"


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_a_scaler_of_the_users():
    assert captured(autocast=torch.float16, scaler=torch.amp.GradScaler("cuda", init_scale=2.0))


def test_a_scaler_made_where_a_gpu_is(monkeypatch):
    with monkeypatch.context() as there:
        there.setattr(torch.cuda, "is_available", lambda: True)
        there.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
        scaler = torch.amp.GradScaler("cuda")
    assert scaler.is_enabled()

    def step(model, optimizer, batch):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    linear = torch.nn.Linear(8, 8)
    made = plimsoll.capture(linear, torch.optim.SGD, lambda n: torch.randn(n, 8), train_step=step)
    names = made.document["strings"]
    called = [names[event[1]] for event in made.events if event[0] == "call"]
    assert called.count("aten._amp_update_scale_.default") == 3


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    from torch.utils.checkpoint import checkpoint

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), mlp()

        def forward(self, x):
            return checkpoint(self.second, self.first(x), use_reentrant=reentrant)

    step = captured(Model, steps=1)
    again = [call for name, call in step.calls("backward") if name == "aten.addmm.default"]
    assert [step.strings[call[3]] for call in again][:1] == ["second.0"]
    assert all(call[4] == 1 for call in again)
    assert step.ops("forward").count("aten.addmm.default") == 3
    phases = [event[1] for event in step.events if event[0] == "phase"]
    assert phases == ["inputs", "forward", "backward", "optimizer", "other"]


def test_a_loop_of_ones_own():
    seen = []

    def train(model, optimizer, batch):
        x, y = batch
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            value = loss(model, x, y)
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm) or torch.isnan(value):
            raise RuntimeError("a loop that gives up")
        optimizer.step()
        seen.append(value.item())

    made = plimsoll.capture(mlp, adamw, batch, train_step=train)
    step = Checked(made.document)
    assert "aten._foreach_norm.Scalar" in step.ops("optimizer")
    assert step.ops("backward").count("aten.mm.default") == 3 * 3
    assert len(step.labelled("gradient")) == 4 * 3
    assert any("gets 1.0" in note for note in made.notes)


def test_a_loop_with_two_backwards():
    def train(model, optimizers, batch):
        first, second = optimizers
        for part, optimizer in zip((model[0], model), (first, second)):
            part(batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    model = mlp()
    optimizers = [sgd(model[0].parameters()), adamw(model.parameters())]
    made = plimsoll.capture(
        model, optimizers, lambda n: torch.randn(n, 8), train_step=train, steps=1
    )
    phases = [event[1] for event in Checked(made.document).events if event[0] == "phase"]
    assert phases == ["inputs"] + ["forward", "backward", "optimizer"] * 2 + ["other"]


def test_batches_of_other_kinds():
    def of(model, batch):
        return loss(model, batch["x"], batch["y"])

    step = captured(
        make=lambda n: dict(zip("xy", (torch.randn(n, 8), torch.randint(0, 4, (n,))))), of=of
    )
    assert "aten._to_copy.default" in step.ops("inputs")
    assert captured(make=lambda n: torch.randn(n, 8), of=lambda m, x: m(x).mean())


def test_precisions():
    made = plimsoll.capture(
        mlp, adamw, batch, loss, precisions=["amp_bf16", "amp_fp16", "bf16", "fp32"]
    )
    assert made.variants == ["as_written", "amp_bf16", "amp_fp16", "bf16", "fp32"]
    variants = [Checked(made.document, i) for i in range(5)]
    assert [v.layouts[v.events[0][2]][0] for v in variants] == ["float32"] * 3 + [
        "bfloat16",
        "float32",
    ]
    assert "aten._amp_update_scale_.default" in variants[2].ops()


def test_channels_last():
    step = captured(
        lambda: nn.Conv2d(3, 5, 3), sgd, images, lambda m, x: m(x).mean(), channels_last=True
    )
    convolution = next(call for name, call in step.calls() if name == "aten.convolution.default")
    assert step.layout(convolution[5][0])[2] == [192, 1, 24, 3]
    assert step.layout(convolution[5][1])[2] == [27, 1, 9, 3]


def images(n):
    return torch.randn(n, 3, 8, 8, device="cuda")


def two_convolutions():
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 3))


def capture_images(model=two_convolutions, **options):
    return plimsoll.capture(
        model, sgd, images, lambda m, x: m(x).float().mean(), steps=1, **options
    )


def test_channels_last_beside_the_others():
    made = capture_images(precisions=["amp_bf16", "amp_bf16+channels_last", "channels_last"])
    assert made.variants == ["as_written", "amp_bf16", "amp_bf16+channels_last", "channels_last"]
    for index, (dtype, strides) in enumerate(
        [
            ("float32", [192, 64, 8, 1]),
            ("bfloat16", [192, 64, 8, 1]),
            ("bfloat16", [192, 1, 24, 3]),
            ("float32", [192, 1, 24, 3]),
        ]
    ):
        step = Checked(made.document, index)
        call = next(call for name, call in step.calls() if name == "aten.convolution.default")
        assert (step.layout(call[5][0])[0], step.layout(call[5][0])[2]) == (dtype, strides)


def test_a_model_is_moved_first_and_reordered_then():
    """Each tensor in its old order goes when the new one is there."""
    step = Checked(capture_images(channels_last=True).document)
    told = [event for event in step.events[: step.events.index(["step"])]]
    assert [event[0] for event in told] == ["call", "parameter", "call", "parameter"] + [
        "parameter",
        "free",
    ] * 2
    assert step.layouts[told[4][2]][2] == [27, 1, 9, 3]
    already = capture_images(
        lambda: two_convolutions().to(memory_format=torch.channels_last), channels_last=True
    )
    assert [event[0] for event in already.events[:5]] == ["parameter"] * 4 + ["step"]


def test_channels_last_keeps_the_users_autocast():
    made = capture_images(precisions=["channels_last"], autocast=torch.float16, scaler=True)
    ops = Checked(made.document, 1).ops()
    assert "aten._amp_update_scale_.default" in ops
    alone = capture_images(channels_last=True, autocast=torch.float16, scaler=True)
    assert made.document["variants"][1]["events"] != made.document["variants"][0]["events"]
    assert ops == Checked(alone.document).ops()


@pytest.mark.parametrize(
    "model, options, types, formats",
    [
        (two_convolutions, {}, ["amp_bf16", "amp_fp16", "bf16"], True),
        (two_convolutions, {"channels_last": True}, ["amp_bf16", "amp_fp16", "bf16"], False),
        (two_convolutions, {"autocast": torch.bfloat16}, ["amp_fp16", "bf16"], True),
        (lambda: nn.Conv2d(3, 5, 3), {}, ["amp_bf16", "amp_fp16", "bf16"], False),
        (lambda: two_convolutions().to(torch.bfloat16), {}, ["amp_bf16", "amp_fp16"], True),
    ],
)
def test_what_a_plan_can_choose_from(model, options, types, formats):
    def of(model, x):
        return model(x.to(next(model.parameters()).dtype)).float().mean()

    made = plimsoll.capture(model, sgd, images, of, precisions="plan", steps=1, **options)
    moved = ["channels_last", *(f"{name}+channels_last" for name in types)]
    assert made.variants == ["as_written", *types, *(moved if formats else [])]


def test_a_plan_does_without_what_does_not_run():
    def of(model, x):
        assert x.dtype is torch.float32, "float32 alone"
        return model(x).mean()

    made = plimsoll.capture(lambda: nn.Conv2d(3, 5, 3), sgd, images, of, precisions="plan")
    assert made.variants == ["as_written", "amp_bf16", "amp_fp16"]
    assert "bf16 is left out: AssertionError: float32 alone" in made.notes[0]
    with pytest.raises(AssertionError):
        plimsoll.capture(lambda: nn.Conv2d(3, 5, 3), sgd, images, of, precisions=["bf16"])


def test_files(tmp_path):
    made = plimsoll.capture(mlp, sgd, batch, loss, path=tmp_path / "a.step.json.gz", gpu="RTX 4090")
    made.write(tmp_path / "b.step.json")
    packed = json.loads(gzip.decompress((tmp_path / "a.step.json.gz").read_bytes()))
    assert packed == json.loads((tmp_path / "b.step.json").read_text()) == made.document
    assert packed["gpu"] == "RTX 4090" and packed["model"] == "Sequential"
    assert "Sequential" in repr(made)


def test_the_same_again():
    first, second = (plimsoll.capture(mlp, adamw, batch, loss).document for _ in range(2))
    assert first == second


def test_cycles_are_collected_between_steps():
    class Cycle:
        pass

    def in_a_cycle(model, x, y):
        cycle = Cycle()
        cycle.itself, cycle.held = cycle, model(x)
        return F.cross_entropy(cycle.held, y)

    made = plimsoll.capture(mlp, sgd, batch, in_a_cycle)
    assert any("reference cycles" in note for note in made.notes)
    events = Checked(made.document).events
    second = [i for i, event in enumerate(events) if event == ["step"]][1]
    assert events[second - 1][0] == "free"


def test_chance_is_the_same_in_both_runs_and_the_users_is_left_alone():
    import random

    def sometimes(model, x, y):
        drop = torch.rand([]) < 0.5 or random.random() < 0.5
        return loss(model, x, y) * (2 if drop else 1) if not drop else loss(model, x.exp(), y)

    torch.manual_seed(7)
    random.seed(7)
    expected = torch.rand(3), random.random()
    torch.manual_seed(7)
    random.seed(7)
    assert captured(of=sometimes, steps=8)
    assert torch.equal(torch.rand(3), expected[0]) and random.random() == expected[1]


def test_values_of_the_host_are_real():
    """Drop rates and the like are made of small tensors and read while the model is built."""

    def build():
        rates = [x.item() for x in torch.linspace(0, 0.3, 4)]
        assert rates[-1] == pytest.approx(0.3)
        return mlp()

    assert captured(build)


def test_a_hugging_face_model():
    transformers = pytest.importorskip("transformers")

    def build():
        config = transformers.GPT2Config(
            n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=16
        )
        config.use_cache = False
        return transformers.GPT2LMHeadModel(config)

    def tokens(n):
        return {"input_ids": torch.randint(0, 50, (n, 16))}

    for model in (build, build()):
        step = captured(model, adamw, tokens, lambda m, b: m(**b, labels=b["input_ids"]).loss)
        assert step.ops().count("plimsoll.attention") == 2 * 3
        attention = next(call for name, call in step.calls() if name == "plimsoll.attention")
        assert attention[5][3] is None and attention[5][5] is True, "causal, without a mask"
        assert step.strings[attention[3]] == "transformer.h.0.attn"


def test_what_is_made_of_others_is_followed_into():
    from torch.testing._internal.two_tensor import TwoTensor

    def doubled(model, x, y):
        both = TwoTensor(x, x.clone()) * 2
        return F.cross_entropy(model(both.a + both.b), y)

    step = captured(of=doubled)
    assert step.ops("forward").count("aten.mul.Tensor") == 2 * 3, "one for each, and none for both"
