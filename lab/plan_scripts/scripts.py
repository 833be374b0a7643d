"""The nineteen training scripts of drive.py: how each is called, and what a step of it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: The nine scripts of others lie beside the checkout, or in it on another machine.
_SHARED = [HERE.parents[1] / "shared", Path("/work/shared")]


@dataclass(frozen=True)
class Script:
    name: str
    #: Samples of a micro-batch, and micro-batches of a step, of the script as it is.
    batch: int
    accumulation: int = 1
    flag: str = "--batch-size"
    #: For a run of about ten steps.
    run: tuple[str, ...] = ()
    #: The sizes to capture, where 4 and 8 are none.
    batches: str = ""
    shared: bool = False
    #: Noise, dropout or data are drawn for each micro-batch: cut otherwise, it has other losses.
    random: bool = False
    #: The edited script's loader gives micro-batches; without it, all samples of a step.
    by_pass: bool = False
    #: Of a script that accumulates: the number of micro-batches.
    passes_flag: str = ""

    @property
    def samples(self) -> int:
        return self.batch * self.accumulation

    @property
    def path(self) -> Path:
        if not self.shared:
            return HERE / f"{self.name}.py"
        for folder in _SHARED:
            path = folder / "data" / "scripts" / f"{self.name}.py"
            if path.exists():
                return path
        raise FileNotFoundError(f"{self.name}.py is in none of {[str(f) for f in _SHARED]}")

    @property
    def edit(self) -> Path:
        return HERE / "edits" / f"{self.name}.patch"


_ALL = [
    Script("vit_mixup", 96, run=("--steps", "10"), random=True),
    Script("bert_mlm", 80, run=("--steps", "10")),
    Script("unet_bn", 32, run=("--steps", "10", "--epochs", "1")),
    Script("vae_ema", 96, run=("--steps", "10"), random=True),
    Script("gpt_accum", 12, 4, run=("--steps", "10"), by_pass=True, passes_flag="--accumulate"),
    Script("two_tower", 128, run=("--steps", "10")),
    Script("lstm_tagger", 512, run=("--steps", "10")),
    Script(
        "trainer_gpt2", 8, 2, run=("--max-steps", "10"), by_pass=True, passes_flag="--accumulate"
    ),
    Script(
        *("accelerate_cls", 32, 2),
        run=("--steps", "10"),
        by_pass=True,
        passes_flag="--gradient-accumulation-steps",
    ),
    Script("resnet_onecycle", 384, run=("--steps", "10")),
    Script(
        "bad_optimizer_switch", 64, shared=True, run=("--probe-steps", "1", "--finetune-steps", "9")
    ),
    Script("detr", 8, shared=True, run=("--max-steps", "10"), random=True, by_pass=True),
    Script("dpo", 4, shared=True, run=("--max-steps", "10"), by_pass=True),
    Script("grpo", 8, shared=True, run=("--iterations", "5"), random=True, by_pass=True),
    Script("lightning_resnet", 64, 2, shared=True, by_pass=True, passes_flag="--accumulate"),
    Script("moe_lm", 8, shared=True, run=("--steps", "10")),
    # Its number of micro-batches is a line, which the edit sets; random: its evaluation draws too.
    Script("nano_gpt", 8, 4, shared=True, random=True, by_pass=True),
    Script("nerf", 2048, shared=True, run=("--N_iters", "10"), batches="2048,4096", random=True),
    Script("seg_unetpp", 6, shared=True, run=("--epochs", "1")),
]
SCRIPTS = {script.name: script for script in _ALL}
