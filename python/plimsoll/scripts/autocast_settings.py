"""Libraries that run a script's loop, and put it into autocast by a setting of their own. Nothing
here needs torch."""

from __future__ import annotations

import functools
import importlib.machinery
import inspect
import sys
from importlib.abc import MetaPathFinder
from typing import Any, NamedTuple

#: As captures name it.
NAME = "amp_bf16"
#: These have a setting too, and make more of it than autocast: they are not followed with it.
NOT_FOLLOWED = ("fastai", "deepspeed")


class Setting(NamedTuple):
    library: str
    #: Whoever is made of this class runs the loop, and takes the setting then.
    made: str
    argument: str
    value: str


_ACCELERATOR = Setting("accelerate", "Accelerator", "mixed_precision", "bf16")
_TRAINER = Setting("lightning", "Trainer", "precision", "bf16-mixed")
_FABRIC = Setting("lightning", "Fabric", "precision", "bf16-mixed")
#: By the module that has the class. Lightning is installed under two names.
_SETTINGS = {
    "accelerate.accelerator": _ACCELERATOR,
    "lightning.pytorch.trainer.trainer": _TRAINER,
    "pytorch_lightning.trainer.trainer": _TRAINER,
    "lightning.fabric.fabric": _FABRIC,
    "lightning_fabric.fabric": _FABRIC,
}
#: What the setting is in a script in float32. Whoever asks for autocast asks what would be if it
#: were another there, also where the script gives it.
_OF_FLOAT32 = ("None", "no", "32", "32-true")


class OwnSettings(MetaPathFinder):
    """Sees who is made, and, where that is wanted, gives them the setting. A class is known as soon
    as its module is imported: whoever runs the loop is made before any model's forward."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._made = ""

    @property
    def set_by(self) -> str:
        """The library whose setting it is in this process; empty where the loop is the script's."""
        found = [name for name in NOT_FOLLOWED if name in sys.modules]
        return found[0] if found else self._made

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        setting = _SETTINGS.get(name)
        if setting is None:
            return None  # Python's own finders go on
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_watch(module: Any) -> None:
            execute(module)
            if hasattr(module, setting.made):
                self._watch(getattr(module, setting.made), setting)

        spec.loader.exec_module = execute_and_watch  # type: ignore[method-assign]
        return spec

    def _watch(self, cls: Any, setting: Setting) -> None:
        real = cls.__init__

        @functools.wraps(real)
        def init(*args: Any, **kwargs: Any) -> None:
            self._made = setting.library
            given = inspect.signature(real).bind(*args, **kwargs)
            is_float32 = str(given.arguments.get(setting.argument)) in _OF_FLOAT32
            if self._is_wanted and is_float32:
                given.arguments[setting.argument] = setting.value
            real(*given.args, **given.kwargs)

        cls.__init__ = init
