"""`plimsoll.record` as a callback of Hugging Face's Trainer and of Lightning.

    Trainer(..., callbacks=[plimsoll.callbacks.TrainerCallback(explain=True)])
    lightning.Trainer(..., callbacks=[plimsoll.callbacks.LightningCallback(steps=5)])

The arguments are those of `plimsoll.record`. The classes are made when they are first asked for:
neither library is needed, or imported, before. A loop of one's own has `Recording.steps`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .recording.record import Recording, record

if TYPE_CHECKING:
    TrainerCallback: Any
    LightningCallback: Any

__all__ = ["LightningCallback", "TrainerCallback"]


class _Recorded:
    """Begins where the training begins, before the model moves to the GPU if the library allows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self._arguments = (args, kwargs)
        self.recording: Recording | None = None

    def _begin(self) -> None:
        if self.recording is None:
            args, kwargs = self._arguments
            self.recording = record(*args, **kwargs)
        else:
            self.recording.start()

    def _step(self) -> None:
        if self.recording is not None:
            self.recording.step()

    def _end(self, error: BaseException | None = None) -> None:
        if self.recording is not None:
            self.recording.__exit__(type(error), error, None)


def _trainer_callback() -> type:
    base: Any = import_module("transformers").TrainerCallback

    class TrainerCallback(_Recorded, base):  # type: ignore[misc, unused-ignore]
        """Of transformers. An exception ends a Trainer without a word to its callbacks: what was
        alive when memory ran out is written at once, the rest at exit."""

        def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._begin()

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._begin()

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._step()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._end()

    return TrainerCallback


def _lightning_callback() -> type:
    base: Any = _lightning().Callback

    class LightningCallback(_Recorded, base):  # type: ignore[misc, unused-ignore]
        """Of Lightning. A batch is a step; with accumulation several of them are one of the
        optimizer."""

        def setup(self, trainer: Any, pl_module: Any, stage: Any = None) -> None:
            if stage in (None, "fit"):
                self._begin()

        def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
            self._step()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self._end(exception)

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            self._end()

    return LightningCallback


def _lightning() -> Any:
    try:
        return import_module("lightning.pytorch")
    except ModuleNotFoundError:
        return import_module("pytorch_lightning")  # its name before 2.0, and still installed


_MADE = {"TrainerCallback": _trainer_callback, "LightningCallback": _lightning_callback}


def __getattr__(name: str) -> Any:
    make = _MADE.get(name)
    if make is None:
        raise AttributeError(f"module 'plimsoll.callbacks' has no attribute {name!r}")
    globals()[name] = made = make()
    return made
