"""What a process takes of the GPU besides PyTorch's memory, measured in a process of its own.

    python -m plimsoll.measuring.context

is that process: it prints what is free once CUDA is in use, and once kernels of a training step
have run. Whoever starts it has CUDA in use already, so that the difference to what was free for
them before is what the second process takes, whatever else is on the card.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, NamedTuple

from ..base.errors import CaptureError

# What may come and go on a card that nobody works on: pages of 2 MiB.
_STILL = 8 << 20
_SECONDS = 120


class Context(NamedTuple):
    """Bytes: as soon as CUDA is in use, and after a forward and a backward."""

    bare: int
    training: int


class Reading(NamedTuple):
    """Of the process that is measured: what was free on the card, and what PyTorch had."""

    bare_free: int
    bare_reserved: int
    training_free: int
    training_reserved: int


def read(torch: Any, device: str = "cuda") -> Reading:
    """In a fresh process: CUDA comes into use here."""
    cuda = torch.cuda

    def figures() -> tuple[int, int]:
        cuda.synchronize()
        return int(cuda.mem_get_info()[0]), int(cuda.memory_reserved())

    torch.zeros(1, device=device)
    bare = figures()
    _train(torch, device)
    return Reading(*bare, *figures())


def _train(torch: Any, device: str) -> None:
    """A convolution, a normalization, attention and matrix products, in fp32 and under autocast."""
    nn, functional = torch.nn, torch.nn.functional
    convolution = nn.Conv2d(3, 16, 3, padding=1).to(device)
    norm = nn.BatchNorm2d(16).to(device)
    linear = nn.Linear(64, 192).to(device)
    parameters = [*convolution.parameters(), *norm.parameters(), *linear.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    for half in (False, True):
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=half):
            image = functional.relu(norm(convolution(torch.randn(4, 3, 32, 32, device=device))))
            words = linear(image.reshape(4, 256, 64)).unflatten(-1, (3, 4, 16))
            query, key, value = words.permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            loss = functional.layer_norm(mixed.float(), (16,)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _in_a_fresh_process() -> Reading:
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (package, os.environ.get("PYTHONPATH", "")) if part)
    command = [sys.executable, "-m", "plimsoll.measuring.context"]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CaptureError(f"the process that is measured did not run: {error}") from error
    if done.returncode != 0:
        told = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CaptureError(f"the process that is measured failed: {told}")
    return Reading(**json.loads(done.stdout))


def measured(torch: Any, run: Callable[[], Reading] = _in_a_fresh_process) -> Context:
    """Raises where others on the card took or gave memory meanwhile."""
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    before = int(torch.cuda.mem_get_info()[0])
    reading = run()
    after = int(torch.cuda.mem_get_info()[0])
    bare = before - reading.bare_free - reading.bare_reserved
    training = before - reading.training_free - reading.training_reserved
    if abs(before - after) > _STILL or bare <= 0 or training < bare - _STILL:
        raise CaptureError(
            "others took or gave memory of the card while the context was measured",
            hint="Try again when the card is quiet",
        )
    return Context(bare, max(bare, training))


def main() -> None:
    import torch

    print(json.dumps(read(torch)._asdict()))


if __name__ == "__main__":
    main()
