"""Kinds of models, in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import plimsoll

from . import (
    STEPS,
    Block,
    Gpt,
    adamw,
    capture,
    classify,
    images,
    kind,
    mlp,
    next_token,
    ops,
    rows,
    sgd,
    tokens,
)


@kind("plain MLP")
def plain_mlp() -> plimsoll.Capture:
    return capture(mlp, adamw, rows, classify)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.body(x))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3),
        nn.BatchNorm2d(16),
        nn.MaxPool2d(3, 2, 1),
        Residual(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


@kind("CNN", nightly=True)
def cnn() -> plimsoll.Capture:
    return capture(resnet, sgd, images, classify)


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 8, 8)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


@kind("ViT, autocast to bfloat16, channels_last", nightly=True)
def vit() -> plimsoll.Capture:
    made = capture(Vit, adamw, images, classify, autocast=torch.bfloat16, channels_last=True)
    assert any(layout[0] == "bfloat16" for layout in made.document["layouts"])
    return made


@kind("GPT-2 with tied embeddings", nightly=True)
def gpt2() -> plimsoll.Capture:
    made = capture(Gpt, adamw, tokens, next_token)
    assert ops(made).count("plimsoll.attention") == STEPS
    return made


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64, padding_idx=0)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(64, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(self.embed(ids), src_key_padding_mask=~mask)
        kept = mask.unsqueeze(-1).float()
        return self.head((hidden * kept).sum(1) / kept.sum(1).clamp(min=1))


@kind("BERT with padding masks", nightly=True)
def bert() -> plimsoll.Capture:
    def batch(n: int) -> dict[str, torch.Tensor]:
        lengths = torch.randint(4, 33, (n,))
        mask = torch.arange(32)[None] < lengths[:, None]
        return {"ids": tokens(n), "mask": mask, "labels": torch.randint(0, 2, (n,))}

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(batch["ids"], batch["mask"]), batch["labels"])

    return capture(Bert, adamw, batch, loss)


class Seq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.body = nn.Transformer(64, 4, 1, 1, 128, batch_first=True)
        self.head = nn.Linear(64, 100)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(
            target.shape[1], device=target.device
        )
        return self.head(self.body(self.embed(source), self.embed(target), tgt_mask=causal))


@kind("T5: encoder and decoder, Adafactor", nightly=True)
def seq2seq() -> plimsoll.Capture:
    def loss(model: Any, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = model(source, target[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())

    adafactor = getattr(torch.optim, "Adafactor", torch.optim.Adagrad)
    return capture(Seq2Seq, adafactor, lambda n: (tokens(n), tokens(n)), loss)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 16))
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.down = nn.Conv2d(16, 32, 3, 2, 1)
        self.middle = nn.Sequential(nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 32, 3, 1, 1))
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.last = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        skip = self.first(x) + self.time(t[:, None].float())[:, :, None, None]
        return self.last(torch.cat([skip, self.up(self.middle(self.down(skip)))], 1))


@kind("diffusion UNet", nightly=True)
def unet() -> plimsoll.Capture:
    betas = torch.linspace(0, 1, 1000)

    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        t = torch.randint(0, 1000, (x.shape[0],), device=x.device)
        noise = torch.randn_like(x)
        kept = betas.to(x.device)[t][:, None, None, None]
        return F.mse_loss(model(x * kept + noise * (1 - kept), t), noise)

    return capture(UNet, adamw, lambda n: images(n)[0], loss)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.lstm = nn.LSTM(32, 64, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(128, 10)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(
            self.embed(ids), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(out)


@kind("packed LSTM", assumes="assumed: each is as long as the longest")
def packed_lstm() -> plimsoll.Capture:
    def batch(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return tokens(n), torch.randint(1, 33, (n,))

    def loss(model: Any, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(ids, lengths).flatten(0, 1), ids.flatten() % 10)

    made = capture(Tagger, adamw, batch, loss)
    assert ops(made).count("aten._cudnn_rnn.default") == STEPS
    assert "aten._cudnn_rnn_backward.default" in ops(made)
    return made


class Decoder(nn.Module):
    """Goes on by what it said itself, one step after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.gru = nn.GRUCell(32, 64)
        self.lstm = nn.LSTMCell(64, 64)
        self.head = nn.Linear(64, 100)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        first, second, said = None, None, []
        for step in range(8):
            first = self.gru(self.embed(ids[:, step]), first)
            second = self.lstm(first, second)
            said.append(self.head(second[0]))
        return torch.stack(said, 1)


@kind("GRUCell and LSTMCell, step by step")
def cells() -> plimsoll.Capture:
    def loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), ids[:, 1:9].flatten())

    made = capture(Decoder, adamw, tokens, loss)
    for name in ("_thnn_fused_gru_cell", "_thnn_fused_lstm_cell"):
        assert ops(made).count(f"aten.{name}.default") == 8 * STEPS
    return made


class Moe(nn.Module):
    """The tokens of each expert are looked up by `torch.where`, as in Mixtral."""

    def __init__(self, experts: int = 4, chosen: int = 2) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(64, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 64)) for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = torch.topk(self.router(flat).softmax(-1), self.chosen)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == index)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, expert(flat[token]) * weights[token, rank, None])
        return x + out.view_as(x)


@kind("mixture of experts by nonzero", assumes="assumed: one in 4")
def mixture() -> plimsoll.Capture:
    made = capture(lambda: Gpt(1, Moe), adamw, tokens, next_token)
    assert ops(made).count("aten.nonzero.default") == 4 * STEPS
    rows = {
        tuple(layout[1][0]) if isinstance(layout[1][0], list) else layout[1][0]
        for layout in made.document["layouts"]
        if len(layout[1]) == 2 and layout[1][1] == 128
    }
    assert (2 * 32 * 2 // 4, 3 * 32 * 2 // 4) in rows, "a quarter of two for each token"
    return made


@kind("logits[mask]", assumes="assumed: all, the most there can be")
def masked_logits() -> plimsoll.Capture:
    def loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
        labels = torch.where(ids % 7 == 0, ids, -100)
        mask = labels != -100
        return F.cross_entropy(model(ids)[mask], labels[mask])

    return capture(Gpt, adamw, tokens, loss)


@kind(
    "flex_attention",
    assumes="flex_attention is taken to be compiled",
    needs=("torch.nn.attention.flex_attention",),
)
def flex() -> plimsoll.Capture:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    class Flexible(Block):
        def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            mask = create_block_mask(
                lambda b, h, i, j: i >= j, None, None, q.shape[2], k.shape[2], device=q.device
            )
            return flex_attention(q, k, v, block_mask=mask)

    made = capture(lambda: Gpt(1, Flexible), adamw, tokens, next_token, autocast=torch.bfloat16)
    assert ops(made).count("plimsoll.attention") == STEPS
    return made
