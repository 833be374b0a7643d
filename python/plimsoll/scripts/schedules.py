"""Trainers evaluate every so many steps: a script is followed for a few, so that its evaluation is
brought forward to them."""

from __future__ import annotations

import sys
from typing import Any

from ..base.patching import Patch
from .follower import Follower


def brought_forward(follower: Follower) -> list[Patch]:
    """Of the libraries that the script has imported."""
    callbacks = sys.modules.get("transformers.trainer_callback")
    handler = getattr(callbacks, "CallbackHandler", None)
    return [] if handler is None else [_trainers_evaluation(handler, follower)]


def _trainers_evaluation(handler: Any, follower: Follower) -> Patch:
    """Of transformers' Trainer, after the last step that is wanted."""
    real = handler.on_step_end
    done = False

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        nonlocal done
        control = real(self, args, state, control, **kwargs)
        strategy = getattr(args, "eval_strategy", getattr(args, "evaluation_strategy", "no"))
        if follower.has_steps and not done and getattr(strategy, "value", strategy) != "no":
            done = control.should_evaluate = True
        return control

    return Patch(handler, "on_step_end", on_step_end)
