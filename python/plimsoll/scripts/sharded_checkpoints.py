"""torch.distributed.checkpoint, on the rank that is captured: its model is whole (stand_ins.py),
and what it would gather is as large as it."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from dataclasses import replace as with_fields
from typing import Any, Callable

import torch

from ..base.notes import Note
from ..base.places import current_line
from .files import all_on_device, largest_on_device
from .follower import Follower
from .stand_ins import ScriptSettings, gathered

#: Copies to the host that are under way while a file is written.
_AHEAD = 10_000_000


def sharded_checkpoints(
    replace: Callable[..., None], note: Note, follower: Follower, script: ScriptSettings
) -> None:
    """`replace`: takes a module, a name in it, and what makes a stand-in of the real thing."""
    package = sys.modules.get("torch.distributed.checkpoint")
    states = sys.modules.get("torch.distributed.checkpoint.state_dict")

    def saving(real: Any) -> Any:
        def save(state_dict: Any, *args: Any, **kwargs: Any) -> None:
            note(f"{current_line()}: nothing is saved")
            state = _of_objects(state_dict)
            follower.saves(min(largest_on_device(state) + _AHEAD, all_on_device(state)))

        return save

    def saving_beside(real: Any) -> Any:
        def async_save(state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            note(f"{current_line()}: nothing is saved")
            follower.saves(all_on_device(_of_objects(state_dict)))
            done: Future[None] = Future()
            done.set_result(None)
            return done

        return async_save

    def loading(real: Any) -> Any:
        def load(state_dict: Any, *args: Any, **kwargs: Any) -> None:
            """Into the tensors that are there, one after the other."""
            note(f"{current_line()}: nothing is loaded: what is there keeps its size")
            state = _of_objects(state_dict)
            with follower.loading(largest_on_device(state)):
                for name, value in state_dict.items():
                    if _has_state(value):
                        value.load_state_dict(state[name])

        return load

    replace(package, "save", saving)
    replace(package, "async_save", saving_beside)
    replace(package, "load", loading)
    for name in ("get_model_state_dict", "get_optimizer_state_dict", "get_state_dict"):
        replace(states, name, lambda real: _gathering(real, follower, script))


def _of_objects(state_dict: dict[str, Any]) -> dict[str, Any]:
    """What they would be saved as."""
    return {
        name: value.state_dict() if _has_state(value) else value
        for name, value in state_dict.items()
    }


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _gathering(real: Any, follower: Follower, script: ScriptSettings) -> Any:
    """Where a model is sharded, a whole state dict is gathered: one tensor after the other is made
    on the device and, if that is wanted, brought to the host."""

    def get(*args: Any, **kwargs: Any) -> Any:
        options: Any = kwargs.get("options")
        if not script.sharded or not getattr(options, "full_state_dict", False):
            return real(*args, **kwargs)
        follower.saves(0)  # which is what it is gathered for
        kwargs["options"] = with_fields(options, full_state_dict=False, cpu_offload=False)
        return _gathered(real(*args, **kwargs), bool(options.cpu_offload))

    return get


def _gathered(value: Any, to_host: bool) -> Any:
    if isinstance(value, torch.Tensor):
        whole = gathered(value)
        return whole.cpu() if to_host else whole
    if isinstance(value, dict):
        return {name: _gathered(one, to_host) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_gathered(one, to_host) for one in value)
    return value
