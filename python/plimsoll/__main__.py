"""python -m plimsoll: the program; and, before it, a model by its name or its configuration.

python -m plimsoll predict hf:llama-3.1-8b --lora 16 --seq 4096 --gpu L4
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .answers import program
from .base.assumptions import parse_assumptions
from .base.errors import CaptureError, ProgramError
from .base.output import check_output
from .capturing import configuration
from .capturing.kept_steps import kept_or_made
from .capturing.over_lengths import lengths_to_try
from .events.repeated import NotAlike
from .models.names import LIST, listed
from .models.way import Way

DEFAULT_GPU = "H200"
#: Every card of the catalogue.
ANY = "any"


def main(arguments: Sequence[str]) -> int:
    try:
        if any(one.startswith(configuration.PREFIX) for one in arguments):
            return _by_name(arguments)
        return _handed_over(arguments)
    except (CaptureError, ProgramError) as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        return 2


def _handed_over(arguments: Sequence[str]) -> int:
    found = program.find()
    sys.stdout.flush()
    if os.name == "posix":
        os.execvp(found, [found, *arguments])
    return subprocess.run([found, *arguments]).returncode


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m plimsoll",
        description="Predicts, or plans, a training job from a Hugging Face configuration alone. "
        "Other flags are those of plimsoll predict and plimsoll plan.",
        allow_abbrev=False,
    )
    parser.add_argument("command", choices=("predict", "plan"))
    parser.add_argument("model", metavar="hf:MODEL", help="a name (hf:list), or a config.json")
    parser.add_argument("--seq", "--length", type=int, metavar="N", help="tokens in a sequence")
    parser.add_argument("--gpu", default=DEFAULT_GPU, help="the card (H200); any: which of all?")
    parser.add_argument("--batch", metavar="N", help="the batch size; the largest unless given")
    parser.add_argument(
        "--precision",
        choices=tuple(configuration.PRECISIONS),
        help="of weights and arithmetic; unless given, weights as the configuration says",
    )
    parser.add_argument("--optimizer", default="adamw", help="adamw, sgd, adam8bit, ... (adamw)")
    add_way(parser)
    parser.set_defaults(over_lengths=False, around=None)
    parser.add_argument(
        "--assume",
        default="",
        metavar="WHAT=VALUE",
        help="of values that a capture does not have: routing=worst,mask=0.25",
    )
    parser.add_argument("--save", metavar="FILE", help="keep the captured step (job.step.json.gz)")
    return parser


def add_way(parser: argparse.ArgumentParser) -> None:
    """How the model is fine-tuned, as Trainer does it; by a plain loop where nothing is said."""
    parser.add_argument("--full", action="store_true", help="all weights are trained")
    parser.add_argument("--lora", type=int, metavar="R", help="LoRA of this rank")
    parser.add_argument("--qlora", type=int, metavar="R", help="LoRA over weights in 4 bits")
    parser.add_argument("--targets", metavar="NAMES", help="layers of LoRA (all-linear)")
    parser.add_argument("--lora-dropout", type=float, metavar="P", help="of LoRA's input (0)")
    parser.add_argument(
        "--no-checkpointing", action="store_true", help="without gradient checkpointing"
    )


def _by_name(arguments: Sequence[str]) -> int:
    if configuration.PREFIX + LIST in arguments:
        print(listed())
        return 0
    asked, others = _parser().parse_known_args(arguments)
    if not asked.model.startswith(configuration.PREFIX):
        raise CaptureError(f"{asked.model} is not hf:CONFIG.json")
    found = program.find()  # before a capture that may take a minute
    if asked.save is not None:
        check_output(asked.save, inputs=[asked.model[len(configuration.PREFIX) :]])
    flags = ["--gpu", asked.gpu, *others]
    if asked.optimizer not in configuration.OPTIMIZERS:
        flags += ["--optimizer", asked.optimizer]
    if asked.batch is not None:
        flags += ["--batch" if asked.command == "predict" else "--global-batch", asked.batch]
    elif asked.command == "predict" and "--max-batch" not in others and asked.gpu != ANY:
        flags.append("--max-batch")
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
        step = asked.save or str(Path(folder) / "captured.step.json")
        _capture(asked, step)
        sys.stdout.flush()
        return subprocess.run([found, asked.command, *flags, "--", step]).returncode


def _way_out(notes: list[str]) -> str:
    too_long = [note.partition("; ")[2] for note in notes if configuration.TOO_LONG in note]
    return f"Give a smaller --seq: {too_long[0]}" if too_long else "Another --precision may work"


def _way_of(asked: argparse.Namespace) -> Way | None:
    ranks = {"lora": asked.lora, "qlora": asked.qlora, "full": 1 if asked.full else None}
    chosen = [name for name, rank in ranks.items() if rank is not None]
    if len(chosen) > 1:
        raise CaptureError(
            f"--{chosen[0]} and --{chosen[1]} are two ways to train a model",
            hint="Give one of them",
        )
    if not chosen:
        return None
    way = Way(chosen[0], ranks[chosen[0]] or 1, checkpointing=not asked.no_checkpointing)
    if asked.targets:
        way = dataclasses.replace(way, targets=asked.targets)
    return dataclasses.replace(way, dropout=asked.lora_dropout or 0.0)


def _capture(asked: argparse.Namespace, path: str) -> None:
    # What fails in there is told below, in a line.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")

    def make(to: str) -> None:
        try:
            captured = _captured(asked, few_layers=True)
        except NotAlike:
            captured = _captured(asked, few_layers=False)
        captured.write(to)

    source = asked.model[len(configuration.PREFIX) :]
    given = {k: v for k, v in vars(asked).items() if k in _DECIDING}
    kept_or_made([configuration.document_of(source), given], path, make)


#: Of what is asked, all that a captured step depends on besides the model.
_DECIDING = (
    "command", "seq", "gpu", "precision", "optimizer", "assume", "full", "lora", "qlora", "targets",
    "lora_dropout", "no_checkpointing", "over_lengths", "around",
)  # fmt: skip


def _captured(asked: argparse.Namespace, few_layers: bool) -> Any:
    """At the length that is asked about; or at several, where the model does the same at all."""
    way = _way_of(asked)
    job = configuration.job_from(
        asked.model[len(configuration.PREFIX) :],
        sequence=asked.seq,
        precision=asked.precision,
        optimizer=asked.optimizer,
        way=way,
        few_layers=few_layers,
        over_lengths=asked.over_lengths,
    )
    # What was imported stays, in a process that makes this one answer: to look through it once for
    # garbage takes as long as a step.
    gc.freeze()
    if not asked.over_lengths:
        return _captured_at(asked, way, job, None)
    *others, last = lengths_to_try(asked.around, job.longest)
    for lengths in others:
        with contextlib.suppress(CaptureError):
            return _captured_at(asked, way, job, lengths)
    return _captured_at(asked, way, job, last)


def _captured_at(
    asked: argparse.Namespace,
    way: Way | None,
    job: configuration.NamedJob,
    lengths: tuple[int, int, int] | None,
) -> Any:
    from .capturing.api import capture_of_few_layers

    try:
        captured = capture_of_few_layers(
            job.model,
            job.optimizer,
            job.make_batch,
            job.loss,
            train_step=job.train_step,
            path=None,
            batches=(2, 3),
            lengths=lengths,
            # What a step leaves to the next one is there from the second on.
            steps=3 if way is None else 2,
            accumulate=1,
            autocast=job.autocast,
            scaler=job.scaler,
            gpu=DEFAULT_GPU if asked.gpu == ANY else asked.gpu,
            assume=parse_assumptions(asked.assume, "--assume"),
            precisions="plan" if asked.command == "plan" and way is None else (),
            channels_last=False,
            layers=job.layers,
        )
    except (CaptureError, NotAlike):
        raise
    except Exception as error:  # of transformers or torch: not the user's code, so in a line
        raise CaptureError(
            f"this model cannot be captured: {type(error).__name__}: {error}".split("\n")[0].rstrip(
                "."
            ),
            hint=_way_out(job.notes),
        ) from error
    captured.notes.extend(job.notes + job.told)
    return captured


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
