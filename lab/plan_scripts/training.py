"""Trains one script for some steps on the GPU and writes down what they took.

    training.py JOB SCRIPT [ARGUMENT…]

JOB is a JSON file: limit (bytes; 0 for none), steps, lock (a file: who has it trains, the others
import, build their models and load their data), seconds (to have it), out (where the result goes).
The script is the user's; an optimizer's step ends a step, `Tensor.backward` tells its loss, and
after the last step the process ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import runpy
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

Row = dict[str, Any]


class Training:
    def __init__(self, job: Row) -> None:
        self._job = job
        self._lock = open(job["lock"], "w")  # noqa: SIM115 (until the process ends)
        self._has_lock = False
        self._losses: list[tuple[torch.Tensor, Any]] = []
        self._scaler: Any = None
        self._backward = self._stepped_in_backward = False
        self._waited = 0.0
        self._began = 0.0
        self._before = (0, 0)
        self._steps: list[Row] = []

    def listen(self) -> None:
        register_optimizer_step_post_hook(lambda *_: self._after_optimizer())
        self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._before_forward)
        backward, scale, update = (
            torch.Tensor.backward,
            torch.amp.GradScaler.scale,
            torch.amp.GradScaler.update,
        )
        fetch = _BaseDataLoaderIter.__next__
        training = self

        def listening_backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            if training._backward:
                return backward(loss, *args, **kwargs)
            training._losses.append((loss.detach(), training._scaler))
            training._backward = True
            backward(loss, *args, **kwargs)
            training._backward = False
            if training._stepped_in_backward:
                training._stepped_in_backward = False
                training._end_step()

        def listening_scale(scaler: Any, outputs: Any) -> Any:
            training._scaler = scaler if scaler.is_enabled() else None
            return scale(scaler, outputs)

        def listening_update(scaler: Any, *args: Any, **kwargs: Any) -> None:
            if training._losses:  # gradients overflowed, and the optimizer was not called
                training._end_step(skipped=True)
            update(scaler, *args, **kwargs)

        def timed_fetch(loader: Any) -> Any:
            begun = time.perf_counter()
            try:
                return fetch(loader)
            finally:
                training._waited += time.perf_counter() - begun

        torch.Tensor.backward = listening_backward  # type: ignore[method-assign, assignment]
        torch.amp.GradScaler.scale = listening_scale  # type: ignore[method-assign]
        torch.amp.GradScaler.update = listening_update  # type: ignore[method-assign]
        _BaseDataLoaderIter.__next__ = timed_fetch  # type: ignore[method-assign]

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        """Takes the lock at the first forward on the device; ends at the first one of training."""
        cuda = torch.cuda.is_available()
        if cuda and not any(isinstance(a, torch.Tensor) and a.is_cuda for a in args):
            return
        if not self._has_lock:
            fcntl.lockf(self._lock, fcntl.LOCK_EX)
            self._has_lock = True
            seconds = self._job["seconds"]
            end = threading.Timer(seconds, lambda: self.end(f"not done after {seconds} s"))
            end.daemon = True
            end.start()
        if torch.is_grad_enabled():
            self._hook.remove()
            self._before = peaks()
            forget_peaks()
            self._waited, self._began = 0.0, time.perf_counter()

    def _after_optimizer(self) -> None:
        if self._backward:
            self._stepped_in_backward = True
        elif self._losses:  # else of an optimizer whose steps were in the backward
            self._end_step()

    def _end_step(self, skipped: bool = False) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        loss = 0.0
        for value, scaler in self._losses:
            loss += float(value) / (scaler.get_scale() if scaler is not None else 1.0)
        allocated, reserved = peaks()
        self._steps.append(
            {
                "seconds": round(now - self._began, 6),
                "waited": round(self._waited, 6),
                "loss": loss,
                "allocated": allocated,
                "reserved": reserved,
                "skipped": skipped,
            }
        )
        self._losses.clear()
        if len(self._steps) == self._job["steps"]:
            self.end(None)
        forget_peaks()
        self._waited, self._began = 0.0, time.perf_counter()

    def end(self, error: str | None) -> None:
        fcntl.lockf(self._lock, fcntl.LOCK_UN)
        now = peaks()
        tops = [(step["allocated"], step["reserved"]) for step in self._steps]
        whole = [self._before, now, *tops]
        row: Row = {"error": error} if error else {}
        row.update(
            steps=self._steps,
            allocated=max((top[0] for top in tops), default=0),
            reserved=max((top[1] for top in tops), default=0),
            whole_allocated=max(top[0] for top in whole),
            whole_reserved=max(top[1] for top in whole),
            torch=torch.__version__,
        )
        if torch.cuda.is_available():
            statistics = torch.cuda.memory_stats()
            row["retries"] = statistics.get("num_alloc_retries", 0)
        Path(self._job["out"]).write_text(json.dumps(row))
        sys.stdout.flush()
        os._exit(0)


def peaks() -> tuple[int, int]:
    if not torch.cuda.is_available():
        return 0, 0
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def forget_peaks() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    training = Training(job)
    error = "the script ended before its steps were done"
    try:
        if torch.cuda.is_available():
            torch.cuda.init()
            if job["limit"]:
                total = torch.cuda.get_device_properties(0).total_memory
                torch.cuda.set_per_process_memory_fraction((job["limit"] + 0.5) / total)
        training.listen()
        runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException as raised:
        traceback.print_exc()
        error = f"{type(raised).__name__}: {raised}".splitlines()[0][:400]
    training.end(error)


if __name__ == "__main__":
    main()
