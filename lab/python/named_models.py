"""Predicts the fine-tunings of tests/data/models/h200.jsonl, beside what an H200 took.

named_models.py PROGRAM FOLDER [WORD...] [--shard 0/2]: captures go to FOLDER and are used again;
only rows whose name has one of the words. Without torch what lies in FOLDER is compared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from plimsoll.models.names import find

_TRUTH = Path(__file__).resolve().parents[2] / "tests/data/models/h200.jsonl"
_GIB = 1 << 30


def name_of(row: dict[str, Any]) -> str:
    more = [
        f"{k}={row[k]}" for k in ("targets", "dropout", "checkpointing", "precision") if k in row
    ]
    apart = ["head_apart"] if row.get("head_apart") else []
    words = [row["model"], row["way"], f"{row['batch']}x{row['length']}", *more, *apart]
    return "_".join(words).replace(",", "+")


def capture(row: dict[str, Any], to: Path) -> None:
    from plimsoll.capturing.api import capture_of_few_layers
    from plimsoll.capturing.configuration import job_from
    from plimsoll.events.repeated import NotAlike
    from plimsoll.models.way import Way

    config = dict(find(row["model"]).config)
    way = Way(
        row["way"],
        targets=row.get("targets", "all-linear"),
        dropout=row.get("dropout", 0.0),
        checkpointing=row.get("checkpointing", True),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        for few_layers in (True, False):
            job = job_from(
                path, sequence=row["length"] or None, precision=row.get("precision"), way=way,
                few_layers=few_layers,
            )  # fmt: skip
            model = (lambda make=job.model: apart(make())) if row.get("head_apart") else job.model
            try:
                made = capture_of_few_layers(
                    model, job.optimizer, job.make_batch, job.loss, train_step=job.train_step,
                    path=None, batches=(2, 3), lengths=None, steps=2, accumulate=1,
                    autocast=job.autocast, scaler=None, gpu="H200", precisions=(),
                    channels_last=False, assume="", layers=job.layers,
                )  # fmt: skip
                break
            except NotAlike:
                continue
    made.write(to)


def apart(model: Any) -> Any:
    """Every parameter that is tied to another becomes one of its own, as where a model comes from
    the meta device (`to_empty`) and nothing ties it again."""
    import torch

    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) in seen:
                copy = torch.empty_like(parameter, requires_grad=False)
                module._parameters[name] = torch.nn.Parameter(copy, parameter.requires_grad)
            seen.add(id(parameter))
    return model


def predicted(program: str, step: Path, batch: int) -> dict[str, Any]:
    command = [program, "predict", str(step), "--batch", str(batch), "--gpu", "H200"]
    done = subprocess.run([*command, "--torch", "2.11", "--json"], capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--shard", default="0/1")
    asked = parser.parse_args(arguments)
    part, parts = map(int, asked.shard.split("/"))
    rows = [json.loads(line) for line in _TRUTH.read_text().splitlines()]
    rows.sort(key=lambda row: find(row["model"]).parameters)
    chosen = [r for r in rows if not asked.words or any(w in name_of(r) for w in asked.words)]
    asked.folder.mkdir(parents=True, exist_ok=True)
    errors = []
    for row in chosen[part::parts]:
        step = asked.folder / f"{name_of(row)}.step.json.gz"
        began = time.time()
        if not step.exists():
            try:
                capture(row, step)
            except ImportError:
                continue
        answer = predicted(asked.program, step, row["batch"])
        off = {k: 100 * (answer[k] / row[k] - 1) for k in ("allocated", "reserved")}
        errors.append(abs(off["reserved"]))
        print(
            f"{name_of(row):60} allocated {row['allocated'] / _GIB:7.3f} GiB "
            f"{off['allocated']:+6.2f} %  reserved {row['reserved'] / _GIB:7.3f} GiB "
            f"{off['reserved']:+6.2f} %  {time.time() - began:5.0f} s",
            flush=True,
        )
    within = sum(error <= 3 for error in errors)
    print(f"{within} of {len(errors)} within 3 %, at most {max(errors, default=0):.2f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
