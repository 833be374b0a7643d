"""plimsoll.record: the allocator's history of this process, written where memory runs out and at
the end. Nothing that fails here reaches the program: it is told in a line."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable, TypeVar, overload

from .ranks import rank

ENTRIES = 200_000
# A job may survive many out-of-memory events. After the first ones, writing may take at most this
# share of the job's time; the snapshot at the end has them all.
_ALWAYS_WRITTEN = 3
_SHARE_OF_TIME = 0.02

_Item = TypeVar("_Item")
_Function = TypeVar("_Function", bound=Callable[..., Any])

_said: set[str] = set()


def _say(text: str) -> None:
    print(f"plimsoll: {text}", file=sys.stderr, flush=True)


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        _say(text)


@overload
def record(path: _Function) -> _Function: ...
@overload
def record(
    path: str | os.PathLike[str] = ...,
    *,
    max_entries: int = ...,
    steps: int | None = ...,
    explain: bool = ...,
) -> Recording: ...


def record(
    path: Any = "snapshot.pickle",
    *,
    max_entries: int = ENTRIES,
    steps: int | None = None,
    explain: bool = False,
) -> Any:
    """Records the history of PyTorch's allocator, and writes it when memory runs out and at exit.

    One line before the model is built. Rank 3 writes `snapshot.rank3.pickle`. `max_entries` bounds
    the history: of more the oldest are lost. After `steps` training steps, where they are told
    (`Recording.step`), it is written and the recording ends. `explain` prints the explanation too.
    Also `with plimsoll.record():` and, on a function, `@plimsoll.record`.

    Where there is no torch or no CUDA it says so and does nothing.
    """
    if callable(path):
        return Recording("snapshot.pickle", max_entries, steps, explain)(path)
    recording = Recording(path, max_entries, steps, explain)
    recording.start()
    return recording


class Recording(contextlib.ContextDecorator):
    """What `plimsoll.record` gives back: `.write()` writes it now, `.stop()` ends it."""

    def __init__(
        self, path: str | os.PathLike[str], max_entries: int, steps: int | None, explain: bool
    ) -> None:
        self._path = Path(path)
        self._max_entries = max_entries
        self._until = steps
        self._explain = explain
        self._torch: Any = None
        self._pid = os.getpid()
        self._observed = False
        self._ours = False  # the history was switched on here
        self._ran_out = 0
        self._begun = time.monotonic()
        self._seconds_writing = 0.0
        self._mark: Any = None
        self._at_failure: tuple[int, Any] | None = None
        #: Whether the allocator's history is being recorded, or will be when CUDA begins.
        self.active = False
        #: How many steps were told since it began.
        self.steps_done = 0
        #: Where the latest snapshot lies; None: none was written yet.
        self.written: Path | None = None

    @property
    def path(self) -> Path:
        """Where this process writes: with its rank in the name, if it has one."""
        number = rank()
        return self._path if number is None else _of_rank(self._path, number)

    # Beginning and end.

    def start(self) -> None:
        """Begins anew after `stop`; does nothing while it is active."""
        if self.active:
            return
        self._torch = _torch_with_cuda()
        if self._torch is None:
            return
        self.active = True
        self.steps_done = 0
        self._pid = os.getpid()
        atexit.register(self._at_exit)
        # At once if CUDA is in use, else when it begins: nobody gets a context by recording.
        self._torch.cuda._lazy_call(self._begin)

    def stop(self) -> None:
        """Ends the recording. What was not written is lost."""
        if not self._mine():
            return
        self.active = False
        atexit.unregister(self._at_exit)
        self._end_mark()
        if self._ours:
            self._ours = False
            with _told("the recording could not be ended"):
                _stop_history(self._torch)

    def __enter__(self) -> Recording:
        self.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._finish("an exception" if error is not None else "the end")

    def _begin(self) -> None:
        if not self._mine():
            return
        with _told("nothing is recorded"):
            self._ours = _start_history(self._torch, self._max_entries) or self._ours
            observe = getattr(self._torch._C, "_cuda_attach_out_of_memory_observer", None)
            if observe is not None and not self._observed:
                observe(self._on_out_of_memory)  # there is no way to take it back
                self._observed = True

    def _at_exit(self) -> None:
        self._finish("exit")

    def _finish(self, why: str) -> None:
        if not self._mine():
            return
        if self._only_unwound():
            _say(f"{self.written} has what was alive when memory ran out{_hint(self.written)}")
        elif self._torch.cuda.is_initialized():
            self.write(why)
        else:
            _say("CUDA was not used in this process: there is no snapshot")
        self.stop()
        self._tell_why()

    # Writing.

    def write(self, why: str = "on demand") -> Path | None:
        """Writes the snapshot now, and says where. None where there is nothing to write."""
        if not self._mine() or not self._torch.cuda.is_initialized():
            return None
        path = self.path
        begun = time.monotonic()
        with _told(f"{path} could not be written"):
            _dump(self._torch, path)
            self._seconds_writing += time.monotonic() - begun
            self.written = path
            self._at_failure = None
            _say(f"wrote {path} ({why}){_hint(path)}")
            return path
        return None

    def _on_out_of_memory(self, device: int, *figures: object) -> None:
        if not self._mine():
            return
        self._ran_out += 1
        self._at_failure = None
        allowed = _SHARE_OF_TIME * (time.monotonic() - self._begun)
        if self._ran_out > _ALWAYS_WRITTEN and self._seconds_writing > allowed:
            return
        if self.write("out of memory") is not None:
            self._at_failure = (device, self._allocations(device))

    def _allocations(self, device: int) -> Any:
        """How many were made so far."""
        with contextlib.suppress(Exception):
            return self._torch.cuda.memory_stats(device)["allocation.all.allocated"]
        return None

    def _only_unwound(self) -> bool:
        """Whether nothing was allocated since memory ran out: that snapshot shows more."""
        if self._at_failure is None:
            return False
        device, then = self._at_failure
        return then is not None and self._allocations(device) == then

    def _tell_why(self) -> None:
        # Ranks that ran out of memory, or else one for all.
        wanted = self._explain and (self._ran_out > 0 or rank() in (None, 0))
        if not wanted or self.written is None:
            return
        with _told("the snapshot could not be explained"):
            from ..answers.questions import explain

            print(explain(self.written), file=sys.stderr, flush=True)

    def _mine(self) -> bool:
        # A forked child cannot use CUDA, and must not write its parent's file.
        return self.active and self._pid == os.getpid()

    # Steps.

    def step(self) -> None:
        """Tells that a training step begins: it is marked in the record."""
        if not self._mine():
            return
        self._end_mark()
        if self._until is not None and self.steps_done >= self._until:
            self._finish(f"{self.steps_done} steps")
            return
        self._mark = self._torch.autograd.profiler.record_function(
            f"plimsoll.step#{self.steps_done}"
        )
        self._mark.__enter__()
        self.steps_done += 1

    def steps(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """The items of a loop, with a step for each: `for batch in recording.steps(loader)`."""
        for item in items:
            self.step()
            yield item
        self._end_mark()

    def _end_mark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)


def _of_rank(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.rank{number}{path.suffix}")


def _hint(path: Path | None) -> str:
    return f"; plimsoll explain {path}"


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """What fails inside is a line; a recording must not end the job that it is of."""
    try:
        yield
    except Exception as error:
        _say(f"{what}: {type(error).__name__}: {error}")


def _torch_with_cuda() -> Any:
    try:
        import torch
    except ImportError:
        _say_once("torch is not installed here: nothing is recorded")
        return None
    built = hasattr(torch._C, "_cuda_init")
    if not built or torch.cuda.device_count() == 0:
        _say_once(
            f"torch {torch.__version__} {'finds no GPU' if built else 'is built without CUDA'}: "
            "nothing is recorded"
        )
        return None
    return torch


def _start_history(torch: Any, max_entries: int) -> bool:
    """False where the script or `plimsoll run` has begun one, with options of its own."""
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if enabled is not None and enabled():
        return False
    begin = torch.cuda.memory._record_memory_history
    newer = {"context": "alloc", "stacks": "python", "max_entries": max_entries}
    older = {"trace_alloc_max_entries": max_entries, "trace_alloc_record_context": True}
    # As the releases spell it, the newest first.
    ways: tuple[Callable[[], None], ...] = (
        functools.partial(begin, "all", **newer),
        functools.partial(begin, True, **older),
    )
    for way in ways:
        with contextlib.suppress(TypeError):
            way()
            return True
    begin(True)
    return True


def _stop_history(torch: Any) -> None:
    begin = torch.cuda.memory._record_memory_history
    try:
        begin(None)
    except TypeError:  # before PyTorch 2.1
        begin(False)


def _dump(torch: Any, path: Path) -> None:
    """Beside the file and then renamed: one that is there stays whole until then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        torch.cuda.memory._dump_snapshot(str(part))
        os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
