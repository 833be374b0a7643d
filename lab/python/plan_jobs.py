"""Training jobs for run_plans.py, each written once: captured and trained from the same functions.

None is among the measured jobs that predictions were made to fit; of some architectures the single
operators were timed in other sizes (timing_jobs.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.nn.functional as F
from plan_models import Conformer, Detector, Enlarger, Listener, Mixer, Segmenter
from torch import nn


@dataclass(frozen=True)
class PlanJob:
    build: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    #: Of so many samples, on this device.
    batch: Callable[[int, str], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[..., torch.Tensor]
    #: Of one step of the optimizer.
    samples: int
    #: In GiB.
    budgets: tuple[float, ...]


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 1e-4)


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.01, momentum=0.9)


def _images(side: int, classes: int) -> Callable[[int, str], tuple[torch.Tensor, torch.Tensor]]:
    def batch(n: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 3, side, side, device=device)
        return x, torch.randint(0, classes, (n,), device=device)

    return batch


def _tokens(length: int, words: int) -> Callable[[int, str], tuple[torch.Tensor, torch.Tensor]]:
    def batch(n: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randint(0, words, (n, length), device=device)
        return x, x

    return batch


def _noise(side: int) -> Callable[[int, str], tuple[torch.Tensor, torch.Tensor]]:
    def batch(n: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 3, side, side, device=device)
        return x, torch.randn(n, 3, side, side, device=device)

    return batch


def _classified(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def _squared(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x), y)


def _language(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    value: torch.Tensor = model(input_ids=x, labels=y).loss
    return value


def _pictures(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    value: torch.Tensor = model(pixel_values=x, labels=y).loss
    return value


def _torchvision(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from zoo_jobs import torchvision_without_extension

        torchvision_without_extension()
        import torchvision.models

        model: nn.Module = torchvision.models.get_model(name, weights=None, **settings)
        return model

    return build


def _transformers(kind: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from zoo_jobs import torchvision_without_extension

        torchvision_without_extension()  # transformers imports it where there is one
        import transformers

        made = getattr(transformers, config)(**settings)
        made.use_cache = False
        model: nn.Module = getattr(transformers, kind)(made)
        return model

    return build


class _Residual(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(16, before), nn.GroupNorm(16, after)
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(F.silu(self.norm1(x)))
        return self.skip(x) + self.second(F.silu(self.norm2(y)))


class _Attention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(16, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        parts = self.qkv(self.norm(x)).reshape(n, 3, c // 64, 64, h * w).transpose(-1, -2)
        q, k, v = parts.unbind(1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(n, c, h, w)
        return x + self.out(y)


class Denoiser(nn.Module):
    """A U-Net as diffusion models have it: residual blocks with group norm, attention below."""

    def __init__(self, width: int = 96, depths: tuple[int, ...] = (1, 2, 4, 4)) -> None:
        super().__init__()
        sizes = [width * depth for depth in depths]
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList()
        before = width
        for size in sizes:
            self.down.append(nn.Sequential(_Residual(before, size), _Residual(size, size)))
            before = size
        self.middle = nn.Sequential(
            _Residual(before, before), _Attention(before), _Residual(before, before)
        )
        self.up = nn.ModuleList()
        for size in reversed(sizes):
            self.up.append(nn.Sequential(_Residual(before + size, size), _Residual(size, size)))
            before = size
        self.head = nn.Conv2d(before, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1))
        head: torch.Tensor = self.head(F.silu(x))
        return head


JOBS = {
    "resnet101": PlanJob(
        _torchvision("resnet101"), _sgd, _images(224, 1000), _classified, 192, (8, 12, 16)
    ),
    "convnext_small": PlanJob(
        _torchvision("convnext_small"), _adamw, _images(224, 1000), _classified, 128, (8, 16)
    ),
    "vit_large": PlanJob(
        _transformers(
            "ViTForImageClassification",
            "ViTConfig",
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
            num_labels=1000,
        ),
        _adamw,
        _images(224, 1000),
        _pictures,
        96,
        (8, 12, 24),
    ),
    "llama_360m": PlanJob(
        _transformers(
            "LlamaForCausalLM",
            "LlamaConfig",
            vocab_size=32000,
            hidden_size=1280,
            intermediate_size=3456,
            num_hidden_layers=16,
            num_attention_heads=20,
            num_key_value_heads=5,
            max_position_embeddings=2048,
        ),
        _adamw,
        _tokens(2048, 32000),
        _language,
        16,
        (12, 16, 24),
    ),
    "t5_base": PlanJob(
        _transformers(
            "T5ForConditionalGeneration",
            "T5Config",
            d_model=768,
            d_ff=3072,
            num_layers=12,
            num_heads=12,
            decoder_start_token_id=0,
        ),
        _adamw,
        _tokens(512, 32128),
        _language,
        32,
        (8, 16),
    ),
    "denoiser": PlanJob(Denoiser, _adamw, _noise(128), _squared, 96, (8, 16)),
    "efficientnet_b4": PlanJob(
        _torchvision("efficientnet_b4"), _sgd, _images(380, 1000), _classified, 64, (8, 16)
    ),
}


class _Modulated(nn.Module):
    """A block of a diffusion transformer: the time says how each row is scaled and shifted."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        a, b, c, d, e, f = self.modulation(F.silu(time)).unsqueeze(1).chunk(6, -1)
        y = self.qkv(self.norm1(x) * (1 + a) + b)
        q, k, v = y.reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, width)
        x = x + c * self.out(y)
        y = self.norm2(x) * (1 + d) + e
        return x + f * self.down(F.gelu(self.up(y), approximate="tanh"))


class DiffusionTransformer(nn.Module):
    def __init__(self, width: int = 768, heads: int = 12, depth: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(torch.zeros(1, 1024, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(_Modulated(width, heads) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, _, side, _ = x.shape
        y = self.patches(x).flatten(2).transpose(1, 2) + self.places
        time = self.time(x.new_ones(n, 256))
        for block in self.blocks:
            y = block(y, time)
        y = self.out(self.norm(y)).reshape(n, side // 4, side // 4, 3, 4, 4)
        return y.permute(0, 3, 1, 4, 2, 5).reshape(n, 3, side, side)


class Volumes(nn.Module):
    """A U-Net over volumes, as for scans: 3-d convolutions, instance norm, transposed ones."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(
            _volume_block(before, after) for before, after in zip([1, *sizes], sizes)
        )
        pairs = list(zip(sizes, sizes[1:]))[::-1]
        self.rise = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(_volume_block(2 * a, a) for a, _ in pairs)
        self.out = nn.Conv3d(width, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for number, block in enumerate(self.down):
            x = block(F.max_pool3d(x, 2) if number else x)
            kept.append(x)
        kept.pop()
        for rise, block in zip(self.rise, self.up):
            x = block(torch.cat((rise(x), kept.pop()), 1))
        y: torch.Tensor = self.out(x)
        return y


def _volume_block(before: int, after: int) -> nn.Module:
    parts: list[nn.Module] = []
    for width in (before, after):
        parts += [nn.Conv3d(width, after, 3, padding=1), nn.InstanceNorm3d(after, affine=True)]
        parts.append(nn.LeakyReLU(0.01, inplace=True))
    return nn.Sequential(*parts)


def _volumes(side: int) -> Callable[[int, str], tuple[torch.Tensor, torch.Tensor]]:
    def batch(n: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 1, side, side, side, device=device)
        return x, torch.randint(0, 4, (n, side, side, side), device=device)

    return batch


def _clips(frames: int, side: int) -> Callable[[int, str], tuple[torch.Tensor, torch.Tensor]]:
    def batch(n: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 3, frames, side, side, device=device)
        return x, torch.randint(0, 400, (n,), device=device)

    return batch


def _spectra(frames: int, words: int) -> Callable[[int, str], tuple[torch.Tensor, torch.Tensor]]:
    def batch(n: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 80, frames, device=device)
        return x, torch.randint(0, words, (n, 128), device=device)

    return batch


def _heard(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    value: torch.Tensor = model(input_features=x, labels=y).loss
    return value


#: Models of which nothing was timed when they were chosen.
LATER_JOBS = {
    "swin_small": PlanJob(
        _torchvision("swin_s"), _adamw, _images(224, 1000), _classified, 128, (12,)
    ),
    "densenet169": PlanJob(
        _torchvision("densenet169"), _sgd, _images(224, 1000), _classified, 128, (10,)
    ),
    "mobilenet_v3": PlanJob(
        _torchvision("mobilenet_v3_large"), _sgd, _images(224, 1000), _classified, 256, (6,)
    ),
    "regnet_y_8gf": PlanJob(
        _torchvision("regnet_y_8gf"), _sgd, _images(224, 1000), _classified, 128, (8,)
    ),
    "r2plus1d": PlanJob(_torchvision("r2plus1d_18"), _sgd, _clips(16, 112), _classified, 32, (10,)),
    "bert_large": PlanJob(
        _transformers(
            "BertForMaskedLM",
            "BertConfig",
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
        ),
        _adamw,
        _tokens(512, 30522),
        _language,
        32,
        (16,),
    ),
    "whisper_small": PlanJob(
        _transformers(
            "WhisperForConditionalGeneration",
            "WhisperConfig",
            d_model=768,
            encoder_layers=12,
            decoder_layers=12,
            encoder_attention_heads=12,
            decoder_attention_heads=12,
            encoder_ffn_dim=3072,
            decoder_ffn_dim=3072,
        ),
        _adamw,
        _spectra(3000, 50000),
        _heard,
        16,
        (10,),
    ),
    "qwen3_600m": PlanJob(
        _transformers(
            "Qwen3ForCausalLM",
            "Qwen3Config",
            vocab_size=151936,
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            tie_word_embeddings=True,
        ),
        _adamw,
        _tokens(1024, 151936),
        _language,
        16,
        (24,),
    ),
    "dit_base": PlanJob(DiffusionTransformer, _adamw, _noise(128), _squared, 64, (10,)),
    "volumes": PlanJob(Volumes, _adamw, _volumes(96), _classified, 8, (10,)),
}


def _classified_spectra(
    frames: int, words: int
) -> Callable[[int, str], tuple[torch.Tensor, torch.Tensor]]:
    def batch(n: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 80, frames, device=device)
        return x, torch.randint(0, words, (n,), device=device)

    return batch


def _maps(side: int, classes: int) -> Callable[[int, str], tuple[torch.Tensor, torch.Tensor]]:
    def batch(n: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 3, side, side, device=device)
        return x, torch.randint(0, classes, (n, side, side), device=device)

    return batch


def _detector() -> nn.Module:
    return Detector(_torchvision("resnet18")(), (512, 256, 128))


def _small(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Nothing is found in any picture: every score and every box is to be nought."""
    found = model(x)
    return F.smooth_l1_loss(found, torch.zeros_like(found)) + 0.0 * y.sum()


#: Chosen when LATER_JOBS had been timed; nothing of these had.
NEWEST_JOBS = {
    "mnasnet": PlanJob(
        _torchvision("mnasnet1_3"), _sgd, _images(224, 1000), _classified, 256, (8,)
    ),
    "regnet_x": PlanJob(
        _torchvision("regnet_x_800mf"), _sgd, _images(224, 1000), _classified, 256, (6,)
    ),
    "s3d": PlanJob(_torchvision("s3d"), _sgd, _clips(16, 224), _classified, 16, (8,)),
    "conformer": PlanJob(Conformer, _adamw, _classified_spectra(1200, 1000), _classified, 32, (6,)),
    "listener": PlanJob(Listener, _adamw, _classified_spectra(800, 1000), _classified, 32, (4,)),
    "segmenter": PlanJob(Segmenter, _adamw, _maps(256, 8), _classified, 32, (8,)),
    "mixer": PlanJob(Mixer, _adamw, _images(224, 1000), _classified, 256, (10,)),
    "detector": PlanJob(_detector, _sgd, _images(512, 2), _small, 16, (5,)),
    "olmo2": PlanJob(
        _transformers(
            "Olmo2ForCausalLM",
            "Olmo2Config",
            vocab_size=50304,
            hidden_size=1024,
            intermediate_size=4096,
            num_hidden_layers=8,
            num_attention_heads=16,
            max_position_embeddings=2048,
        ),
        _adamw,
        _tokens(1024, 50304),
        _language,
        16,
        (10,),
    ),
    "segformer": PlanJob(
        _transformers(
            "SegformerForSemanticSegmentation",
            "SegformerConfig",
            depths=[2, 2, 2, 2],
            hidden_sizes=[64, 128, 320, 512],
            decoder_hidden_size=256,
            num_labels=32,
        ),
        _adamw,
        _maps(256, 32),
        _pictures,
        32,
        (6,),
    ),
}


def _enlarged(side: int, times: int) -> Callable[[int, str], tuple[torch.Tensor, torch.Tensor]]:
    def batch(n: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 3, side, side, device=device)
        return x, torch.randn(n, 3, times * side, times * side, device=device)

    return batch


def _waves(samples: int, classes: int) -> Callable[[int, str], tuple[torch.Tensor, torch.Tensor]]:
    def batch(n: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, samples, device=device)
        return x, torch.randint(0, classes, (n,), device=device)

    return batch


def _waves_classified(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    value: torch.Tensor = model(input_values=x, labels=y).loss
    return value


#: Chosen when NEWEST_JOBS had been timed and the rules of times were changed for them.
UNTIMED_JOBS = {
    "inception": PlanJob(
        _torchvision("inception_v3", aux_logits=False, init_weights=False),
        _sgd,
        _images(299, 1000),
        _classified,
        96,
        (8,),
    ),
    "shufflenet": PlanJob(
        _torchvision("shufflenet_v2_x2_0"), _sgd, _images(224, 1000), _classified, 256, (6,)
    ),
    "resnext101": PlanJob(
        _torchvision("resnext101_32x8d"), _sgd, _images(224, 1000), _classified, 64, (8,)
    ),
    "mvit": PlanJob(_torchvision("mvit_v2_s"), _adamw, _clips(16, 224), _classified, 8, (6,)),
    "mc3": PlanJob(_torchvision("mc3_18"), _sgd, _clips(16, 112), _classified, 32, (4,)),
    "enlarger": PlanJob(Enlarger, _adamw, _enlarged(48, 4), _squared, 64, (4,)),
    "wav2vec2": PlanJob(
        _transformers(
            "Wav2Vec2ForSequenceClassification",
            "Wav2Vec2Config",
            num_labels=32,
            layerdrop=0.0,
            apply_spec_augment=False,
        ),
        _adamw,
        _waves(80000, 32),
        _waves_classified,
        16,
        (4,),
    ),
    "bart_base": PlanJob(
        _transformers(
            "BartForConditionalGeneration",
            "BartConfig",
            d_model=768,
            encoder_layers=6,
            decoder_layers=6,
            encoder_attention_heads=12,
            decoder_attention_heads=12,
            encoder_ffn_dim=3072,
            decoder_ffn_dim=3072,
        ),
        _adamw,
        _tokens(512, 50265),
        _language,
        32,
        (10,),
    ),
    "gemma3_270m": PlanJob(
        _transformers(
            "Gemma3ForCausalLM",
            "Gemma3TextConfig",
            vocab_size=262144,
            hidden_size=640,
            intermediate_size=2048,
            num_hidden_layers=18,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=256,
            sliding_window=512,
        ),
        _adamw,
        _tokens(1024, 262144),
        _language,
        16,
        (16,),
    ),
}


def _frames(count: int, classes: int) -> Callable[[int, str], tuple[torch.Tensor, torch.Tensor]]:
    def batch(n: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, count, 3, 224, 224, device=device)
        return x, torch.randint(0, classes, (n,), device=device)

    return batch


#: Chosen when UNTIMED_JOBS had been timed. They go with the two of the sets above that could not be
#: captured in time, SegFormer and DenseNet.
HOSTED_JOBS = {
    "maxvit": PlanJob(_torchvision("maxvit_t"), _adamw, _images(224, 1000), _classified, 64, (8,)),
    "googlenet": PlanJob(
        _torchvision("googlenet", aux_logits=False, init_weights=False),
        _sgd,
        _images(224, 1000),
        _classified,
        192,
        (6,),
    ),
    "swin3d": PlanJob(_torchvision("swin3d_t"), _adamw, _clips(16, 112), _classified, 16, (6,)),
    "electra": PlanJob(
        _transformers(
            "ElectraForMaskedLM",
            "ElectraConfig",
            embedding_size=768,
            hidden_size=768,
            num_hidden_layers=12,
            num_attention_heads=12,
            intermediate_size=3072,
        ),
        _adamw,
        _tokens(512, 30522),
        _language,
        32,
        (8,),
    ),
    "gpt_neox": PlanJob(
        _transformers(
            "GPTNeoXForCausalLM",
            "GPTNeoXConfig",
            vocab_size=50304,
            hidden_size=1024,
            intermediate_size=4096,
            num_hidden_layers=16,
            num_attention_heads=16,
        ),
        _adamw,
        _tokens(1024, 50304),
        _language,
        16,
        (14,),
    ),
    "videomae": PlanJob(
        _transformers("VideoMAEForVideoClassification", "VideoMAEConfig", num_labels=400),
        _adamw,
        _frames(16, 400),
        _pictures,
        16,
        (8,),
    ),
    "beit": PlanJob(
        _transformers("BeitForImageClassification", "BeitConfig", num_labels=1000),
        _adamw,
        _images(224, 1000),
        _pictures,
        128,
        (8,),
    ),
    "convnext_v2": PlanJob(
        _transformers("ConvNextV2ForImageClassification", "ConvNextV2Config", num_labels=1000),
        _adamw,
        _images(224, 1000),
        _pictures,
        128,
        (8,),
    ),
}


class _Tiny(nn.Sequential):
    def __init__(self) -> None:
        block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        super().__init__(
            nn.Conv2d(3, 8, 3), block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
        )


#: To see that the harness works, where there is no GPU too.
TINY_JOBS = {
    "tiny_images": PlanJob(_Tiny, _adamw, _images(16, 10), _classified, 8, (1,)),
    "tiny_tokens": PlanJob(
        _transformers(
            "GPT2LMHeadModel",
            "GPT2Config",
            n_layer=2,
            n_embd=32,
            n_head=2,
            vocab_size=50,
            n_positions=16,
        ),
        _adamw,
        _tokens(16, 50),
        _language,
        8,
        (1,),
    ),
}
