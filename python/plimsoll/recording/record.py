"""plimsoll.record: the allocator's history of this process, written where memory runs out and at
the end. Nothing that fails here reaches the program: it is told in a line."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable, TypeVar, overload

from .hook.plimsoll_files import replace
from .hook.plimsoll_history import ENTRIES, History, rank
from .hook.plimsoll_owners import find

_Item = TypeVar("_Item")
_Function = TypeVar("_Function", bound=Callable[..., Any])

_RAN_OUT = "out of memory"
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
        self._history: Any = None
        self._pid = os.getpid()
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
        if self._history is None:
            self._history = History(self._torch, self._max_entries)
        self._check_folder()
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
        with _or_say("the recording could not be ended"):
            self._history.end()

    def __enter__(self) -> Recording:
        self.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._finish("an exception" if error is not None else "the end")

    def _begin(self) -> None:
        if not self._mine():
            return
        with _or_say("nothing is recorded"):
            self._history.begin(self._on_out_of_memory)

    def _at_exit(self) -> None:
        self._finish("exit")

    def _finish(self, why: str) -> None:
        if not self._mine():
            return
        if self._history.only_unwound():
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
        with _or_say(f"{path} could not be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            names = _owners(self._torch) if why == _RAN_OUT else None
            self._history.write(functools.partial(replace, str(path)), names)
            self.written = path
            _say(f"wrote {path} ({why}){_hint(path)}")
            return path
        return None

    def _on_out_of_memory(self, may_write: bool) -> None:
        if self._mine() and may_write and self.write(_RAN_OUT) is not None:
            self._history.wrote_out_of_memory()

    def _check_folder(self) -> None:
        """Said at once, and not after a night."""
        folder = os.path.dirname(os.path.abspath(self.path))
        while not os.path.exists(folder):  # write makes it
            folder = os.path.dirname(folder)
        if os.path.isdir(self.path) or not os.access(folder, os.W_OK):
            _say(f"{self.path} cannot be written: no snapshot will be kept unless that changes")

    def _tell_why(self) -> None:
        # Ranks that ran out of memory, or else one for all.
        wanted = self._explain and (self._history.ooms > 0 or rank() in (None, 0))
        if not wanted or self.written is None:
            return
        with _or_say("the snapshot could not be explained"):
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
        if self._until is not None and self.steps_done >= self._until:
            self._finish(f"{self.steps_done} steps")
            return
        self._history.begin_step(self.steps_done)
        self.steps_done += 1

    def steps(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """The items of a loop, with a step for each: `for batch in recording.steps(loader)`."""
        for item in items:
            self.step()
            yield item
        if self._history is not None:
            self._history.end_step()


def _owners(torch: Any) -> Any:
    with _or_say("what keeps tensors could not be named"):
        return find(torch)
    return None


def _of_rank(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.rank{number}{path.suffix}")


def _hint(path: Path | None) -> str:
    return f"; plimsoll explain {path}"


@contextlib.contextmanager
def _or_say(what: str) -> Iterator[None]:
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
