"""The callback among those of the real Trainer, where transformers is here."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import plimsoll


def test_trainer_calls_it(capsys):
    from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

    callback = plimsoll.callbacks.TrainerCallback("never.pickle", explain=True)
    handler = CallbackHandler([callback], torch.nn.Linear(2, 2), None, None, None)
    state, control = TrainerState(), TrainerControl()
    for event in ("on_init_end", "on_train_begin", "on_step_begin", "on_train_end"):
        control = getattr(handler, event)(None, state, control)
    assert callback.recording is not None and not callback.recording.active
