"""Draws what is asked: a step file, a card and what is changed about the job."""

from __future__ import annotations

import gzip
import json
import lzma
import random
from dataclasses import dataclass
from pathlib import Path

CARDS = [
    "RTX 2060", "RTX 3060 12GB", "RTX 3070", "RTX 3090", "RTX 4060", "RTX 4070", "RTX 4090", "RTX 5090", "T4", "L4",
    "A10", "V100 16GB", "V100 32GB", "A100 40GB", "A100 80GB", "L40S", "H100", "H200", "B200", "RTX A2000 12GB", "MI300X",
]  # fmt: skip
SIZES = ["2GiB", "6GiB", "8GiB", "11GiB", "22GiB"]

#: Files up to this size make most of the draws.
SMALL = 40_000


@dataclass
class Asked:
    file: str
    gpu: str
    flags: list[str]
    batch: int

    @property
    def job(self) -> list[str]:
        """Without the card and the batch."""
        return ["predict", self.file, *self.flags]

    @property
    def words(self) -> list[str]:
        return [*self.job, "--gpu", self.gpu]


def step_files(data: Path) -> list[str]:
    """All step files, by name. Tables of operators have the name of step files and no batch to vary."""
    return sorted(
        str(file) for file in data.rglob("*.step.json.*") if file.parent.name != "operators"
    )


def has_length(file: str) -> bool:
    """Captured over batch and length."""
    opened = lzma.open if file.endswith(".xz") else gzip.open
    with opened(file, "rb") as step:
        found = json.load(step)
    return len(found.get("dimensions", [])) == 2


class Draws:
    def __init__(
        self, files: list[str], with_length: list[str], cards: list[str], seed: str
    ) -> None:
        self.draw = random.Random(seed)
        self.with_length = with_length
        small = [file for file in files if Path(file).stat().st_size < SMALL]
        self.files = self.draw.choice([small, small, small, small, small, files])
        self.cards = [card for card in CARDS if card in cards]

    def file(self) -> str:
        return self.draw.choice(self.files)

    def gpu(self) -> str:
        return self.draw.choice([*self.cards, *self.cards, *SIZES])

    def batch(self) -> int:
        return self.draw.choice(
            [1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 24, 32, 48, 64, 96, 100, 128, 256, 1000]
        )

    def flags(self, *, pipeline: bool = False) -> list[str]:
        """None for a third of the questions, else one to three."""
        pool = [
            ["--torch", self.draw.choice(["2.6", "2.9", "2.11", "2.13"])],
            ["--torch", "2.11"],
            ["--checkpoint", self.draw.choice(["all", "sqrt", "every:2"])],
            ["--accumulate", self.draw.choice(["2", "3"])],
            ["--optimizer", self.draw.choice(["sgd", "adamw", "adamw:fused", "adam8bit"])],
            ["--alloc-conf", self.conf()],
            ["--limit", self.draw.choice(["1GiB", "4GiB", "9GiB"])],
            ["--steps", self.draw.choice(["2", "4", "8"])],
            ["--beside", self.draw.choice(["500MiB", "2GiB"])],
            ["--host", "16GiB"],
            self.parallel(),
            ["--calibration", self.draw.choice(["none", "rules"])],
            ["--set", self.draw.choice(["tf32=on", "parallel=ddp:4"])],
        ]
        count = self.draw.choice([0, 0, 1, 1, 2, 3])
        chosen = self.draw.sample(pool, count)
        if pipeline:
            chosen = [
                flags for flags in chosen if flags[0] not in ("--mesh", "--ddp", "--fsdp", "--set")
            ]
            chosen.append(["--mesh", self.pipeline()])
        # Each flag once.
        return [word for flags in {flags[0]: flags for flags in chosen}.values() for word in flags]

    def conf(self) -> str:
        return self.draw.choice(
            [
                "expandable_segments:True",
                "roundup_power2_divisions:4",
                "garbage_collection_threshold:0.8",
                "max_split_size_mb:128",
            ]
        )

    def pipeline(self) -> str:
        stages = self.draw.choice([2, 2, 4])
        mesh = f"pipeline={stages}:{stages * self.draw.choice([1, 2])}"
        return self.draw.choice([mesh, mesh, f"fsdp=2,{mesh}", f"tensor=2,{mesh}"])

    def parallel(self) -> list[str]:
        return self.draw.choice(
            [
                ["--ddp"],
                ["--fsdp", self.draw.choice(["2", "4", "4:keep", "2:bf16", "8:meta"])],
                ["--mesh", self.draw.choice(["tensor=2", "fsdp=2,tensor=2", "fsdp=2,context=2"])],
                ["--mesh", self.pipeline()],
            ]
        )

    def asked(self, *, pipeline: bool = False) -> Asked:
        return Asked(self.file(), self.gpu(), self.flags(pipeline=pipeline), self.batch())
