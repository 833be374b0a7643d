"""Kinds of jobs that libraries over torch bring along; skipped where one is not installed."""

from __future__ import annotations

import json
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from fresh_process import fresh
from torch import nn
from torch.nn import functional as F

import plimsoll
from plimsoll.capturing.api import Capture
from plimsoll.script import main

from . import adamw, capture, classify, kind, labelled, mlp, ops, rows, sgd, tokens


@kind("LightningModule", needs=("lightning",), nightly=True)
def lightning_module() -> plimsoll.Capture:
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = classify(self.net, *batch)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adamw(self.parameters())

    module = Lit()
    return capture(
        module, module.configure_optimizers(), rows, lambda m, x, y: m.training_step((x, y), 0)
    )


def language_loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, labels=ids).loss


@kind("transformers: from_pretrained", needs=("transformers",), nightly=True)
def from_pretrained() -> plimsoll.Capture:
    import transformers

    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=100, n_positions=32)
    with tempfile.TemporaryDirectory() as folder:
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        return capture(model, adamw, tokens, language_loss)


@kind("transformers: Trainer", needs=("transformers", "accelerate"), nightly=True)
def trainer() -> plimsoll.Capture:
    return captured_script(
        """
        import sys, tempfile, torch
        from zoo_jobs import torchvision_without_extension
        torchvision_without_extension()  # of another torch, it does not load
        import transformers
        config = transformers.GPT2Config(
            n_layer=1, n_embd=32, n_head=2, vocab_size=100, n_positions=32
        )
        data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 100, (256, 32))]
        arguments = transformers.TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=int(sys.argv[1]),
            gradient_accumulation_steps=2,
            bf16=True,
            logging_steps=1,
            report_to="none",
        )
        transformers.Trainer(
            transformers.GPT2LMHeadModel(config), arguments, train_dataset=data
        ).train()
        """
    )


def captured_script(text: str) -> plimsoll.Capture:
    """As `plimsoll predict --run -- python train.py {batch}` does it."""
    with tempfile.TemporaryDirectory() as folder:
        script, out = Path(folder, "train.py"), Path(folder, "job.step.json")
        bench = Path(__file__).resolve().parents[2] / "bench"
        script.write_text(f"import sys\nsys.path.append({str(bench)!r})\n" + textwrap.dedent(text))
        words = ["-o", str(out), "--", "python", str(script), "{batch}"]
        outcome = fresh(main, words)
        assert outcome.value == 0, outcome.said
        return Capture(json.loads(out.read_text()))


@kind("transformers: Mixtral in float32", needs=("transformers",), nightly=True)
def mixtral() -> plimsoll.Capture:
    import transformers

    def captured(**settings: Any) -> plimsoll.Capture:
        config = transformers.MixtralConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=4,
            vocab_size=100,
            use_cache=False,
            **settings,
        )
        return capture(
            lambda: transformers.MixtralForCausalLM(config), adamw, tokens, language_loss
        )

    by_where = captured(experts_implementation="eager")
    assert any("assumed: one in 4" in note for note in by_where.notes)
    made = captured()
    assert "aten._grouped_mm.default" in ops(made)
    return made


@kind("transformers: Llama-7B in bfloat16", needs=("transformers",), nightly=True)
def llama() -> plimsoll.Capture:
    import transformers

    config = transformers.LlamaConfig(use_cache=False)

    def build() -> nn.Module:
        return transformers.LlamaForCausalLM(config).bfloat16()

    def batch(n: int) -> torch.Tensor:
        return torch.randint(0, 32000, (n, 512))

    made = plimsoll.capture(build, adamw, batch, language_loss, steps=1)
    weights = [event for event in made.events if event[0] == "parameter"]
    sizes = [made.document["layouts"][event[2]][1] for event in weights]
    assert 6.6e9 < sum(torch.Size(size).numel() for size in sizes) < 6.9e9
    return made


def operators_of_torchvision() -> None:
    """Those that are built for another torch do not load; what they give back is known."""
    from torchvision import extension

    if extension._has_ops():
        return
    extension._has_ops = sys.modules["torchvision.ops.roi_align"]._has_ops = lambda: True

    @torch.library.custom_op("torchvision::roi_align", mutates_args=())
    def align(
        x: torch.Tensor,
        rois: torch.Tensor,
        spatial_scale: float,
        pooled_height: int,
        pooled_width: int,
        sampling_ratio: int,
        aligned: bool,
    ) -> torch.Tensor:
        raise NotImplementedError

    @torch.library.custom_op("torchvision::_roi_align_backward", mutates_args=())
    def align_backward(grad: torch.Tensor, rois: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        raise NotImplementedError

    @align.register_fake
    def _(x: Any, rois: Any, scale: float, height: int, width: int, ratio: int, at: bool) -> Any:
        return x.new_empty((rois.shape[0], x.shape[1], height, width))

    @align_backward.register_fake
    def _(grad: Any, rois: Any, sizes: list[int]) -> Any:
        return grad.new_empty(sizes)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.sizes = list(inputs[0].shape)

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        (rois,) = ctx.saved_tensors
        made = torch.ops.torchvision._roi_align_backward(grad, rois, ctx.sizes)
        return made, None, None, None, None, None, None

    align.register_autograd(backward, setup_context=keep)


def pictures(n: int) -> list[Any]:
    return [
        {
            "image": torch.rand(3, 128, 128),
            "boxes": torch.tensor([[10.0, 10.0, 60.0, 60.0], [30.0, 40.0, 90.0, 100.0]]),
            "labels": torch.tensor([1, 2]),
        }
        for _ in range(n)
    ]


def detection_loss(model: Any, *batch: Any) -> torch.Tensor:
    images = [one["image"] for one in batch]
    targets = [{"boxes": one["boxes"], "labels": one["labels"]} for one in batch]
    return sum(model(images, targets).values())


@kind(
    "torchvision: Faster R-CNN",
    needs=("torchvision",),
    nightly=True,
    assumes="the most there can be",
)
def faster_rcnn() -> plimsoll.Capture:
    from torchvision.models import detection

    operators_of_torchvision()

    def build() -> nn.Module:
        return detection.fasterrcnn_mobilenet_v3_large_320_fpn(
            weights=None, weights_backbone=None, num_classes=3
        )

    return capture(build, sgd, pictures, detection_loss)


@kind(
    "torchvision: RetinaNet", needs=("torchvision",), nightly=True, assumes="the most there can be"
)
def retinanet() -> plimsoll.Capture:
    from torchvision.models import detection

    def build() -> nn.Module:
        return detection.retinanet_resnet50_fpn(
            weights=None, weights_backbone=None, num_classes=3, min_size=128, max_size=128
        )

    return capture(build, sgd, pictures, detection_loss)


@kind("bitsandbytes: AdamW8bit", needs=("bitsandbytes",), nightly=True)
def adamw_8bit() -> plimsoll.Capture:
    import bitsandbytes

    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10))

    made = capture(wide, lambda p: bitsandbytes.optim.AdamW8bit(p, lr=1e-3), rows, classify)
    assert any(layout[0] == "uint8" for layout in made.document["layouts"])
    assert labelled(made, "optimizer_state")
    return made


class Adapted(nn.Module):
    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(64, 4, bias=False)
        self.up = nn.Linear(4, 1024, bias=False)
        self.head = nn.Linear(1024, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.base(x) + self.up(self.down(x))))


def adapters_alone(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return adamw(one for one in parameters if one.requires_grad)


@kind("bitsandbytes: Linear4bit with LoRA", needs=("bitsandbytes",), nightly=True)
def linear_4bit() -> plimsoll.Capture:
    import bitsandbytes

    def adapted() -> nn.Module:
        base = bitsandbytes.nn.Linear4bit(
            64, 1024, compute_dtype=torch.bfloat16, quant_type="nf4"
        )
        return Adapted(base).to("cuda")

    made = capture(adapted, adapters_alone, rows, classify)
    held = [event for event in made.events if event[0] == "parameter" and not event[4]]
    layouts = [made.document["layouts"][event[2]] for event in held]
    assert ["uint8", [64 * 1024 // 2, 1], [1, 1]] in layouts, "two weights in a byte"
    assert "bitsandbytes.dequantize_4bit.default" in ops(made)
    return made


@kind(
    "bitsandbytes: Linear8bitLt with LoRA",
    assumes="is taken to have no outliers",
    needs=("bitsandbytes",),
    nightly=True,
)
def linear_8bit() -> plimsoll.Capture:
    import bitsandbytes

    def adapted() -> nn.Module:
        base = bitsandbytes.nn.Linear8bitLt(64, 1024, has_fp16_weights=False, threshold=6.0)
        return Adapted(base).to("cuda")

    made = capture(adapted, adapters_alone, rows, classify)
    held = [event for event in made.events if event[0] == "parameter" and not event[4]]
    layouts = [made.document["layouts"][event[2]] for event in held]
    assert ["int8", [1024, 64], [64, 1]] in layouts, "one weight in a byte"
    assert "bitsandbytes.int8_linear_matmul.default" in ops(made)
    assert "aten.addmm.default" not in ops(made)[: ops(made).index("aten.relu.default")]
    assert any("taken to have no outliers" in note for note in made.notes)
    some = capture(adapted, adapters_alone, rows, classify, assume="outliers=0.1")
    assert "aten.addmm.default" in ops(some)[: ops(some).index("aten.relu.default")]
    assert any("10 % of the columns" in note for note in some.notes)
    return made
