"""What is asked of a model that is fine-tuned. Says nothing of torch, which may not be here yet."""

from __future__ import annotations

from dataclasses import dataclass

ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class Way:
    #: "full", "lora" or "qlora".
    name: str
    rank: int = 16
    #: Ends of names of modules, with commas; or PEFT's "all-linear".
    targets: str = ALL_LINEAR
    dropout: float = 0.0
    checkpointing: bool = True

    @property
    def adapts(self) -> bool:
        return self.name != "full"
