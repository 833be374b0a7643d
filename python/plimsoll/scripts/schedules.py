"""Trainers evaluate and save every so many steps, and end after very many: a script is followed for
a few, so that all of that is brought forward to them."""

from __future__ import annotations

import sys
from typing import Any

from ..base.patching import Patch
from .follower import Follower

#: After the last one that is wanted: one with the batch that is fetched already, one with the
#: heaviest of the data.
_MORE_STEPS = 2


def brought_forward(follower: Follower) -> list[Patch]:
    """Of the libraries that the script has imported."""
    callbacks = sys.modules.get("transformers.trainer_callback")
    handler = getattr(callbacks, "CallbackHandler", None)
    patches = [] if handler is None else [_trainers_schedule(handler, follower)]
    for package in ("lightning.pytorch", "pytorch_lightning"):
        patches += _lightnings_schedule(package, follower)
    return patches


def _trainers_schedule(handler: Any, follower: Follower) -> Patch:
    """Of transformers' Trainer: the evaluation and the save after the last step that is wanted. It
    ends a few steps later, so that what the script does with the best model is seen too."""
    real = handler.on_step_end
    steps = 0

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        nonlocal steps
        control = real(self, args, state, control, **kwargs)
        if not follower.has_steps:
            return control
        steps += 1
        evaluates = getattr(args, "eval_strategy", getattr(args, "evaluation_strategy", "no"))
        if steps == 1 and _name(evaluates) != "no":
            control.should_evaluate = True
        if steps == 1 and _name(getattr(args, "save_strategy", "no")) == "steps":
            control.should_save = True
        if steps > _MORE_STEPS and not follower.is_wanted:
            control.should_training_stop = True
        return control

    return Patch(handler, "on_step_end", on_step_end)


def _name(strategy: Any) -> Any:
    return getattr(strategy, "value", strategy)


# Lightning.


def _lightnings_schedule(package: str, follower: Follower) -> list[Patch]:
    loops = sys.modules.get(f"{package}.loops.training_epoch_loop")
    loop = getattr(loops, "_TrainingEpochLoop", None)
    callbacks = sys.modules.get(f"{package}.callbacks.model_checkpoint")
    checkpoint = getattr(callbacks, "ModelCheckpoint", None)
    strategies = sys.modules.get(f"{package}.strategies.strategy")
    strategy = getattr(strategies, "Strategy", None)
    patches = [] if strategy is None else [_teardown(strategy, follower)]
    if hasattr(loop, "_should_check_val_fx"):
        patches.append(_validation(loop, follower))
    for name in ("on_train_batch_end", "on_validation_end", "on_train_epoch_end"):
        if hasattr(checkpoint, name):
            patches.append(_checkpoint(checkpoint, name, follower))
    return patches


def _validation(loop: Any, follower: Follower) -> Patch:
    """After the last step that is wanted; a few steps later the training ends."""
    real = loop._should_check_val_fx
    steps = 0

    def should_check(self: Any, *args: Any, **kwargs: Any) -> bool:
        nonlocal steps
        should = bool(real(self, *args, **kwargs))
        if not follower.has_steps:
            return should
        steps += 1
        trainer = self.trainer
        if steps > _MORE_STEPS and not follower.is_wanted:
            trainer.should_stop = True
        return should or (steps == 1 and bool(getattr(trainer, "enable_validation", False)))

    return Patch(loop, "_should_check_val_fx", should_check)


def _teardown(strategy: Any, follower: Follower) -> Patch:
    """At the end of a fit or a test the model goes to the host."""
    real = strategy.teardown

    def teardown(self: Any) -> None:
        follower.leaves()
        real(self)

    return Patch(strategy, "teardown", teardown)


#: Of ModelCheckpoint: in place of which the schedule has 1 there.
_EVERY = ("_every_n_train_steps", "_every_n_epochs")


def _checkpoint(checkpoint: Any, name: str, follower: Follower) -> Patch:
    """Where one is saved every so many steps or epochs, or after so much time, it is now."""
    real = getattr(checkpoint, name)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not follower.has_steps:
            return real(self, *args, **kwargs)
        told = {every: getattr(self, every, 0) for every in _EVERY}
        for every in _EVERY:
            setattr(self, every, min(told[every], 1))
        if getattr(self, "_train_time_interval", None) is not None:
            self._every_n_train_steps = 1
        try:
            return real(self, *args, **kwargs)
        finally:
            for every, value in told.items():
                setattr(self, every, value)

    return Patch(checkpoint, name, call)
