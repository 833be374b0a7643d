# ruff: noqa: E501 (tables)
"""The training steps that time_operators.py times, and sweeps over single operators.

None of the models of the public runs (truth.jsonl) is among them, so that those stay a test of the
model that is fitted to these.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from timing_convolutions import FORMATS, KINDS, directions, group_norms
from torch import nn

Step = Callable[[], None]


@dataclasses.dataclass
class Job:
    name: str
    make: Callable[[], Step]
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    warm_up: int = 3
    timed: int = 5
    profiled: int = 1


def _training(
    model: Callable[[], nn.Module],
    batch: Callable[[], Any],
    loss: Callable[[nn.Module, Any], torch.Tensor],
    precision: str,
    optimizer: str = "adamw",
    channels_last: bool = False,
) -> Step:
    if precision == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
    module = model().cuda().train()
    if precision == "bf16":
        module = module.bfloat16()
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    options = {
        "adamw": lambda p: torch.optim.AdamW(p, 1e-4),
        "adamw_fused": lambda p: torch.optim.AdamW(p, 1e-4, fused=True),
        "adamw_for": lambda p: torch.optim.AdamW(p, 1e-4, foreach=False),
        "sgdm": lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9),
        "sgd": lambda p: torch.optim.SGD(p, 1e-3),
        "adafactor": lambda p: torch.optim.Adafactor(p, 1e-3),
    }
    optimiser = options[optimizer](module.parameters())
    scaler = torch.amp.GradScaler("cuda") if precision == "amp_fp16" else None
    cast: Callable[[], Any] = contextlib.nullcontext
    if precision.startswith("amp"):
        cast = lambda: torch.autocast("cuda", dtype=torch.float16 if scaler else torch.bfloat16)  # noqa: E731

    def prepared(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and precision == "bf16":
            value = value.bfloat16()
        if isinstance(value, torch.Tensor) and value.dim() == 4 and channels_last:
            value = value.to(memory_format=torch.channels_last)
        return value

    def step() -> None:
        got = tuple(prepared(value) for value in batch())
        with cast():
            value = loss(module, got)
        if scaler:
            scaler.scale(value).backward()
            scaler.step(optimiser)
            scaler.update()
        else:
            value.backward()
            optimiser.step()
        optimiser.zero_grad()

    return step


def _vision(name: str, size: int, image: int, precision: str, **more: Any) -> Step:
    import torchvision.models as zoo

    def batch() -> Any:
        return torch.randn(size, 3, image, image, device="cuda"), torch.randint(
            0, 1000, (size,), device="cuda"
        )

    return _training(
        lambda: zoo.get_model(name, weights=None),
        batch,
        lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        precision,
        **more,
    )


def _segment(name: str, size: int, image: int, precision: str, **more: Any) -> Step:
    import torchvision.models.segmentation as zoo

    def batch() -> Any:
        return torch.randn(size, 3, image, image, device="cuda"), torch.randint(
            0, 11, (size, image, image), device="cuda"
        )

    return _training(
        lambda: zoo.__dict__[name](weights=None, weights_backbone=None, num_classes=11),
        batch,
        lambda m, b: F.cross_entropy(m(b[0])["out"], b[1]),
        precision,
        **more,
    )


def _video(size: int, precision: str) -> Step:
    import torchvision.models.video as zoo

    def batch() -> Any:
        return torch.randn(size, 3, 16, 112, 112, device="cuda"), torch.randint(
            0, 400, (size,), device="cuda"
        )

    return _training(
        lambda: zoo.r3d_18(weights=None),
        batch,
        lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        precision,
    )


def _language(
    kind: str, size: int, length: int, precision: str, config: dict[str, Any], **more: Any
) -> Step:
    import transformers as zoo

    configs = {
        "opt": (zoo.OPTConfig, zoo.OPTForCausalLM),
        "mistral": (zoo.MistralConfig, zoo.MistralForCausalLM),
        "neox": (zoo.GPTNeoXConfig, zoo.GPTNeoXForCausalLM),
        "roberta": (zoo.RobertaConfig, zoo.RobertaForMaskedLM),
        "t5": (zoo.T5Config, zoo.T5ForConditionalGeneration),
        "distilbert": (zoo.DistilBertConfig, zoo.DistilBertForMaskedLM),
        "phi": (zoo.PhiConfig, zoo.PhiForCausalLM),
        "gemma": (zoo.GemmaConfig, zoo.GemmaForCausalLM),
        "qwen2": (zoo.Qwen2Config, zoo.Qwen2ForCausalLM),
    }
    made, model = configs[kind]

    def build() -> nn.Module:
        if kind == "t5":
            config.setdefault("decoder_start_token_id", 0)
        built = model(made(**config))
        built.config.use_cache = False
        return built

    def batch() -> Any:
        return (torch.randint(3, config.get("vocab_size", 30000), (size, length), device="cuda"),)

    return _training(
        build, batch, lambda m, b: m(input_ids=b[0], labels=b[0]).loss, precision, **more
    )


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20000, 512)
        self.layers = nn.LSTM(512, 1024, 2, batch_first=True)
        self.head = nn.Linear(1024, 20000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(x))[0])


def _recurrent(size: int, precision: str) -> Step:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return F.cross_entropy(m(b[0]).flatten(0, 1), b[0].flatten())

    return _training(
        _Recurrent, lambda: (torch.randint(0, 20000, (size, 128), device="cuda"),), loss, precision
    )


class _Decoder(nn.Module):
    """An autoencoder with transposed convolutions, group norm, nearest and bilinear interpolation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        w = width
        self.down = nn.Sequential(
            nn.Conv2d(3, w, 3, 2, 1), nn.GroupNorm(8, w), nn.SiLU(),
            nn.Conv2d(w, 2 * w, 3, 2, 1), nn.GroupNorm(8, 2 * w), nn.SiLU(),
            nn.Conv2d(2 * w, 4 * w, 3, 2, 1), nn.InstanceNorm2d(4 * w), nn.LeakyReLU(),
        )  # fmt: skip
        self.up = nn.Sequential(
            nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1), nn.BatchNorm2d(2 * w), nn.GELU(),
            nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(2 * w, w, 3, 1, 1), nn.ELU(),
            nn.Upsample(scale_factor=2), nn.Conv2d(w, 3, 3, 1, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.down(x))


def _autoencoder(size: int, width: int, image: int, precision: str, **more: Any) -> Step:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return F.mse_loss(m(b[0]).float(), torch.sigmoid(b[0].float()))

    return _training(
        lambda: _Decoder(width),
        lambda: (torch.randn(size, 3, image, image, device="cuda"),),
        loss,
        precision,
        **more,
    )


_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def _swept(cases: Callable[[], Iterator[Step]], tf32: bool = False) -> Step:
    """Every case once a step; each frees what it made before the next."""

    def step() -> None:
        for case in cases():
            case()

    if tf32:
        torch.backends.cuda.matmul.allow_tf32 = True
    return step


def _products(precision: str) -> Iterator[Step]:
    """Matrix products with their backward: token counts, widths, vocabularies, misaligned ones."""
    chosen = random.Random("products")
    dtype = _TYPES[precision]
    widths = [
        64,
        128,
        192,
        256,
        320,
        384,
        512,
        640,
        768,
        1000,
        1024,
        1280,
        1536,
        2048,
        2560,
        3072,
        4096,
        5120,
        8192,
    ]
    odd = [30522, 50257, 32000, 50265, 1001, 999, 21, 250]
    tokens = [32, 64, 128, 256, 512, 784, 1024, 1568, 2048, 4096, 6272, 8192, 12544, 16384, 32768]
    most = 3e12 if precision in ("bf16", "fp16") else 6e11
    for _ in range(150):
        m, k, n = chosen.choice(tokens), chosen.choice(widths), chosen.choice(widths)
        if chosen.random() < 0.2:
            n = chosen.choice(odd)
        if 2.0 * m * n * k > most:
            continue

        def run(m: int = m, k: int = k, n: int = n) -> None:
            x = torch.randn(m, k, device="cuda", dtype=dtype, requires_grad=True)
            w = torch.randn(n, k, device="cuda", dtype=dtype, requires_grad=True)
            b = torch.randn(n, device="cuda", dtype=dtype, requires_grad=True)
            y = F.linear(x, w, b)
            y.backward(torch.ones_like(y))

        yield run
    for _ in range(40):
        b, m, k, n = (
            chosen.choice(c)
            for c in (
                [8, 16, 48, 96, 192],
                [49, 64, 128, 196, 256, 512],
                [32, 64, 96, 128],
                [49, 64, 128, 196, 256, 512],
            )
        )

        def batched(b: int = b, m: int = m, k: int = k, n: int = n) -> None:
            x = torch.randn(b, m, k, device="cuda", dtype=dtype, requires_grad=True)
            y = torch.randn(b, n, k, device="cuda", dtype=dtype, requires_grad=True)
            z = x @ y.transpose(1, 2)
            z.backward(torch.ones_like(z))

        yield batched


def _convolutions(precision: str, grouped: bool, channels_last: bool = False) -> Iterator[Step]:
    chosen = random.Random(f"convolutions{grouped}{channels_last}")
    dtype = _TYPES[precision]
    for _ in range(110):
        plane = chosen.choice(
            [1, 7, 10, 12, 14, 20, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256]
        )
        kernel = chosen.choice([3, 3, 3, 5, 7] if grouped else [1, 1, 3, 3, 3, 5, 7, 2, 4])
        if kernel > plane:
            kernel = 1
        channels = chosen.choice(
            [
                16,
                24,
                32,
                40,
                48,
                64,
                72,
                96,
                112,
                128,
                144,
                192,
                240,
                256,
                320,
                384,
                480,
                512,
                672,
                768,
                960,
                1024,
            ]
        )
        made = (
            channels
            if grouped
            else chosen.choice(
                [16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 2048]
            )
        )
        groups = 1
        if grouped:
            groups = (
                channels
                if chosen.random() < 0.75
                else max(1, channels // chosen.choice([8, 16, 32]))
            )
            while channels % groups:
                groups -= 1
        elif chosen.random() < 0.06:
            channels = 3
        stride = chosen.choice([1, 1, 1, 2]) if plane > 2 else 1
        dilation = (
            chosen.choice([1, 1, 1, 1, 2, 4]) if kernel == 3 and plane > 12 and not grouped else 1
        )
        image = chosen.choice([2, 4, 8, 16, 32, 64, 128])
        while image > 1 and image * plane * plane * max(channels, made) > 2e8:
            image //= 2
        if 2.0 * image * (plane / stride) ** 2 * made * (channels / groups) * kernel**2 > 4e11:
            continue
        padding = dilation * (kernel // 2)

        def run(plane: int = plane, kernel: int = kernel, channels: int = channels, made: int = made, groups: int = groups,
                stride: int = stride, image: int = image, dilation: int = dilation, padding: int = padding) -> None:  # fmt: skip
            layout = torch.channels_last if channels_last else torch.contiguous_format
            x = torch.randn(image, channels, plane, plane, device="cuda", dtype=dtype).to(
                memory_format=layout
            )
            x.requires_grad_(channels != 3)
            w = torch.randn(
                made, channels // groups, kernel, kernel, device="cuda", dtype=dtype
            ).to(memory_format=layout)
            w.requires_grad_()
            y = F.conv2d(x, w, None, stride, padding, dilation, groups)
            y.backward(torch.ones_like(y))

        yield run


def _normalizations(precision: str) -> Iterator[Step]:
    dtype = _TYPES[precision]
    for rows, width in itertools.product(
        [1024, 8192, 50176, 200704], [64, 96, 192, 384, 768, 1024, 1536, 2048, 4096, 8192]
    ):
        if rows * width > 3e8:
            continue

        def layer(rows: int = rows, width: int = width) -> None:
            x = torch.randn(rows, width, device="cuda", dtype=dtype, requires_grad=True)
            w = torch.ones(width, device="cuda", dtype=dtype, requires_grad=True)
            y = F.layer_norm(x, (width,), w, torch.zeros_like(w).requires_grad_())
            y.backward(torch.ones_like(y))

        yield layer
    for size, channels, plane in itertools.product(
        [2, 8, 32, 128], [16, 32, 64, 128, 256, 512, 1024, 2048], [7, 14, 28, 56, 112, 224]
    ):
        if not 1e5 < size * channels * plane * plane < 2e8:
            continue

        def batch(size: int = size, channels: int = channels, plane: int = plane) -> None:
            x = torch.randn(
                size, channels, plane, plane, device="cuda", dtype=dtype, requires_grad=True
            )
            w = torch.ones(channels, device="cuda", requires_grad=True)
            mean, var = torch.zeros(channels, device="cuda"), torch.ones(channels, device="cuda")
            y = F.batch_norm(x, mean, var, w, torch.zeros_like(w).requires_grad_(), training=True)
            y.backward(torch.ones_like(y))

        yield batch


def _attentions(precision: str) -> Iterator[Step]:
    dtype = _TYPES[precision]
    for length, head, causal, dropout in itertools.product(
        [64, 197, 256, 577, 1024, 2048, 4096], [32, 64, 80, 128], [False, True], [0.0, 0.1]
    ):
        size = max(1, min(32, 16384 // length))
        heads = max(1, 1024 // head)
        if dropout and (head not in (64, 128) or length not in (256, 1024, 2048)):
            continue

        def run(
            length: int = length,
            head: int = head,
            causal: bool = causal,
            dropout: float = dropout,
            size: int = size,
            heads: int = heads,
        ) -> None:
            q, k, v = (
                torch.randn(
                    size, length, heads, head, device="cuda", dtype=dtype, requires_grad=True
                ).transpose(1, 2)
                for _ in range(3)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=dropout)
            y.backward(torch.ones_like(y))

        yield run


def _pointwise(precision: str) -> Iterator[Step]:
    """Activations, sums, softmax, loss, embeddings, pooling, interpolation and copies over sizes."""
    dtype = _TYPES[precision]
    for elements in [1 << 16, 1 << 20, 1 << 22, 3 << 22, 1 << 24, 1 << 26, 1 << 27]:

        def point(elements: int = elements) -> None:
            x = torch.randn(elements // 1024, 1024, device="cuda", dtype=dtype, requires_grad=True)
            b = torch.randn(1024, device="cuda", dtype=dtype, requires_grad=True)
            y = F.gelu(x * b + 1.5)
            y = F.dropout(F.silu(y), 0.1) + torch.tanh(x)
            y = F.relu(y) * torch.sigmoid(x)
            y = y + y.float().to(dtype) + x.pow(2)
            z = (
                torch.softmax(y, -1).sum()
                + y.mean()
                + torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).sum()
            )
            z = z + torch.cat([x, y], -1).view(-1, 4, 512).transpose(0, 1).contiguous().sum()
            z.backward()

        yield point
    for rows, classes in [
        (512, 1000),
        (8192, 32000),
        (4096, 50257),
        (2048, 128256),
        (16384, 30522),
        (128, 10),
    ]:

        def losses(rows: int = rows, classes: int = classes) -> None:
            x = torch.randn(rows, classes, device="cuda", dtype=dtype, requires_grad=True)
            F.cross_entropy(x.float(), torch.randint(0, classes, (rows,), device="cuda")).backward()

        yield losses
    for size, classes, plane in [(2, 2, 512), (8, 21, 256), (16, 150, 128), (4, 19, 768)]:

        def maps(size: int = size, classes: int = classes, plane: int = plane) -> None:
            x = torch.randn(
                size, classes, plane, plane, device="cuda", dtype=dtype, requires_grad=True
            )
            F.cross_entropy(
                x.float(), torch.randint(0, classes, (size, plane, plane), device="cuda")
            ).backward()

        yield maps
    for tokens, words, width in [
        (4096, 30522, 768),
        (8192, 50257, 1024),
        (16384, 32000, 4096),
        (2048, 256000, 2048),
    ]:

        def embedded(tokens: int = tokens, words: int = words, width: int = width) -> None:
            w = torch.randn(words, width, device="cuda", dtype=dtype, requires_grad=True)
            y = F.embedding(torch.randint(0, words, (tokens,), device="cuda"), w)
            y.backward(torch.ones_like(y))

        yield embedded
    for size, channels, plane in [
        (32, 64, 112),
        (64, 128, 56),
        (16, 256, 56),
        (8, 512, 28),
        (4, 64, 256),
    ]:

        def pools(size: int = size, channels: int = channels, plane: int = plane) -> None:
            x = torch.randn(
                size, channels, plane, plane, device="cuda", dtype=dtype, requires_grad=True
            )
            y = (
                F.max_pool2d(x, 3, 2, 1).sum()
                + F.max_pool2d(x, 2).sum()
                + F.avg_pool2d(x, 2).sum()
                + F.adaptive_avg_pool2d(x, 1).sum()
            )
            y = (
                y
                + F.interpolate(x, scale_factor=2, mode="bilinear").sum()
                + F.interpolate(x, scale_factor=2).sum()
            )
            y.backward()

        yield pools


def _channels_last(precision: str) -> Iterator[Step]:
    """What stands between convolutions, in their memory format: other kernels than in NCHW."""
    dtype = _TYPES[precision]

    def images(size: int, channels: int, plane: int) -> torch.Tensor:
        x = torch.randn(size, channels, plane, plane, device="cuda", dtype=dtype)
        return x.to(memory_format=torch.channels_last).requires_grad_()

    for size, channels, plane in itertools.product(
        [2, 8, 32, 128], [16, 64, 96, 128, 256, 512, 1024, 2048], [7, 14, 28, 56, 112, 224]
    ):
        if not 1e5 < size * channels * plane * plane < 2e8:
            continue

        def batch_norm(size: int = size, channels: int = channels, plane: int = plane) -> None:
            x = images(size, channels, plane)
            w = torch.ones(channels, device="cuda", requires_grad=True)
            mean, var = torch.zeros(channels, device="cuda"), torch.ones(channels, device="cuda")
            y = F.batch_norm(x, mean, var, w, torch.zeros_like(w).requires_grad_(), training=True)
            y.backward(torch.ones_like(y))

        yield batch_norm
    for size, channels, plane in [
        (32, 64, 112),
        (64, 128, 56),
        (16, 256, 56),
        (8, 512, 28),
        (4, 64, 256),
        (8, 128, 512),
    ]:

        def between(size: int = size, channels: int = channels, plane: int = plane) -> None:
            x = images(size, channels, plane)
            w = torch.ones(channels, device="cuda", dtype=dtype, requires_grad=True)
            normed = F.group_norm(x, 16, w, torch.zeros_like(w).requires_grad_())
            y = F.relu(torch.cat([x, normed], 1)) + 1.0
            total = (
                F.max_pool2d(x, 3, 2, 1).sum()
                + F.max_pool2d(x, 2).sum()
                + F.avg_pool2d(x, 2).sum()
                + F.adaptive_avg_pool2d(x, 1).sum()
            )
            total = total + y.sum() + F.interpolate(x, scale_factor=2, mode="bilinear").sum()
            (total + F.interpolate(x, scale_factor=2).sum()).backward()

        yield between
    for size, channels, before, after in [(12, 256, 1, 56), (8, 256, 1, 32), (12, 21, 56, 448),
                                          (4, 19, 96, 768), (8, 64, 28, 112)]:  # fmt: skip

        def enlarged(
            size: int = size, channels: int = channels, before: int = before, after: int = after
        ) -> None:
            for x in (images(size, channels, before), images(size, channels, before).contiguous()):
                x = x.detach().requires_grad_()
                y = F.interpolate(x, size=(after, after), mode="bilinear")
                y.backward(torch.ones_like(y))

        yield enlarged
    for size, classes, plane in [(2, 2, 512), (8, 21, 256), (16, 150, 128), (4, 19, 768)]:

        def maps(size: int = size, classes: int = classes, plane: int = plane) -> None:
            target = torch.randint(0, classes, (size, plane, plane), device="cuda")
            F.cross_entropy(images(size, classes, plane).float(), target).backward()

        yield maps


def _sweeps() -> Iterator[Job]:
    for precision in _TYPES:
        yield Job(f"sweep_products_{precision}", lambda p=precision: _swept(lambda: _products(p), p == "tf32"),
                  {"matmul_tf32": precision == "tf32"}, 1, 1, 2)  # fmt: skip
    for precision in ("fp32", "bf16", "fp16"):
        for grouped in (False, True):
            yield Job(
                f"sweep_{'grouped' if grouped else 'convolutions'}_{precision}",
                lambda p=precision, g=grouped: _swept(lambda: _convolutions(p, g)),
                {},
                1,
                1,
                2,
            )
        if precision != "fp16":
            yield Job(
                f"sweep_channels_last_{precision}",
                lambda p=precision: _swept(lambda: _convolutions(p, False, True)),
                {},
                1,
                1,
                2,
            )
            yield Job(
                f"sweep_between_channels_last_{precision}",
                lambda p=precision: _swept(lambda: _channels_last(p)),
                {},
                1,
                1,
                2,
            )
            yield Job(
                f"sweep_normalizations_{precision}",
                lambda p=precision: _swept(lambda: _normalizations(p)),
                {},
                1,
                1,
                2,
            )
            yield Job(
                f"sweep_pointwise_{precision}",
                lambda p=precision: _swept(lambda: _pointwise(p)),
                {},
                1,
                1,
                2,
            )
        yield Job(
            f"sweep_attention_{precision}",
            lambda p=precision: _swept(lambda: _attentions(p)),
            {},
            1,
            1,
            2,
        )
    for kind, layout, precision in itertools.product(KINDS, FORMATS, ("fp32", "bf16")):
        yield Job(
            f"sweep_{kind}_{layout}_{precision}",
            lambda k=kind, f=layout, p=precision: _swept(lambda: directions(k, f, _TYPES[p])),
            {"aside": 4},
            1,
            1,
            2,
        )
    for precision in ("fp32", "bf16"):
        yield Job(
            f"sweep_group_norms_{precision}",
            lambda p=precision: _swept(lambda: group_norms(_TYPES[p])),
            {},
            1,
            1,
            2,
        )


_VISION = [
    ("resnet34", 96, 224), ("resnet101", 48, 224), ("resnext50_32x4d", 48, 224), ("wide_resnet50_2", 64, 224),
    ("densenet121", 48, 224), ("mobilenet_v2", 96, 224), ("mobilenet_v3_large", 128, 224), ("efficientnet_b0", 64, 224),
    ("efficientnet_b3", 24, 300), ("convnext_tiny", 48, 224), ("swin_t", 48, 224), ("vit_b_32", 128, 224),
    ("vit_l_16", 16, 224), ("regnet_y_8gf", 32, 224), ("shufflenet_v2_x1_0", 128, 224), ("squeezenet1_1", 128, 224),
    ("vgg16", 48, 224), ("vgg13_bn", 48, 224), ("alexnet", 256, 224), ("maxvit_t", 24, 224), ("inception_v3", 8, 299),
]  # fmt: skip
_LANGUAGE = [
    ("opt", 8, 1024, {"vocab_size": 50272, "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 12, "num_attention_heads": 16, "word_embed_proj_dim": 1024}),
    ("mistral", 4, 2048, {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4}),
    ("neox", 8, 1024, {"vocab_size": 50304, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 8}),
    ("roberta", 32, 256, {"vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12}),
    ("t5", 16, 384, {"vocab_size": 32128, "d_model": 512, "d_ff": 2048, "num_layers": 6, "d_kv": 64, "num_heads": 8}),
    ("distilbert", 48, 384, {"vocab_size": 30522}),
    ("phi", 4, 1024, {"vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 6, "num_attention_heads": 32}),
    ("gemma", 2, 1024, {"vocab_size": 256000, "hidden_size": 1024, "intermediate_size": 8192, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256}),
    ("qwen2", 6, 1536, {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 12, "num_attention_heads": 14, "num_key_value_heads": 2}),
]  # fmt: skip


def _models() -> Iterator[Job]:
    for i, (name, size, image) in enumerate(_VISION):
        if name == "inception_v3":
            continue  # it answers with two outputs
        for precision in ("fp32", "amp_bf16"):
            optimizer = ["adamw", "sgdm", "adamw_fused"][i % 3]
            yield Job(
                f"{name}_{precision}",
                lambda n=name, s=size, g=image, p=precision, o=optimizer: _vision(
                    n, s, g, p, optimizer=o
                ),
                {"image": True},
            )
    for name, size, image in (
        ("resnet101", 48, 224),
        ("mobilenet_v2", 96, 224),
        ("convnext_tiny", 48, 224),
        ("regnet_y_8gf", 32, 224),
    ):
        for precision in ("fp32", "amp_bf16"):
            yield Job(
                f"{name}_{precision}_cl",
                lambda n=name, s=size, g=image, p=precision: _vision(
                    n, s, g, p, channels_last=True
                ),
                {"image": True},
            )
    yield Job("resnet101_amp_fp16", lambda: _vision("resnet101", 48, 224, "amp_fp16"))
    for precision in ("fp32", "amp_bf16"):
        yield Job(
            f"fcn_resnet50_{precision}", lambda p=precision: _segment("fcn_resnet50", 8, 384, p)
        )
        yield Job(
            f"lraspp_{precision}",
            lambda p=precision: _segment("lraspp_mobilenet_v3_large", 16, 384, p),
        )
        yield Job(f"autoencoder_{precision}", lambda p=precision: _autoencoder(32, 64, 256, p))
        yield Job(f"lstm_{precision}", lambda p=precision: _recurrent(64, p))
        yield Job(f"r3d_18_{precision}", lambda p=precision: _video(8, p))
    for i, (kind, size, length, config) in enumerate(_LANGUAGE):
        for precision in ("fp32", "amp_bf16", "bf16", "tf32", "amp_fp16"):
            if precision in ("tf32", "amp_fp16") and i not in (0, 1, 3):
                continue
            optimizer = (
                ["adamw", "adamw_fused", "adamw_for"][i % 3]
                if precision != "bf16"
                else "adafactor"
                if i % 2
                else "adamw"
            )
            yield Job(
                f"{kind}_{precision}",
                lambda k=kind, s=size, n=length, c=config, p=precision, o=optimizer: _language(
                    k, s, n, p, dict(c), optimizer=o
                ),
                {"matmul_tf32": precision == "tf32"},
            )


def jobs() -> Iterator[Job]:
    yield from _sweeps()
    # A stopped run should have some of every kind.
    models = list(_models())
    random.Random("order").shuffle(models)
    yield from models
