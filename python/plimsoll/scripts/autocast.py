"""A script in float32, run as if its forwards and losses stood in `torch.autocast`: what a plan
compares the script as written with."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ..base.patching import Patch, patched
from .autocast_settings import OwnSettings


class Autocast:
    """Of one run."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._context: torch.autocast | None = None
        self._settings = OwnSettings(is_wanted)
        #: Something was computed in it: by the script's own lines, by a library, or because it is
        #: wanted.
        self.is_used = False

    @property
    def set_by(self) -> str:
        """The library whose setting it is; empty where the script's loop is its own."""
        return self._settings.set_by

    def begin(self, trains: bool) -> None:
        """A model's forward begins. An evaluation stays as it is."""
        if not self._is_wanted or self._context or not trains or not torch.is_grad_enabled():
            return
        if self.set_by:
            return
        self._context = torch.autocast("cuda", dtype=torch.bfloat16)
        self._context.__enter__()

    def end(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(None, None, None)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside what marks where a backward begins: autocast ends before that."""
        enter, backward = torch.autocast.__enter__, torch.autograd.backward

        def entered(context: Any) -> Any:
            self.is_used |= _is_on(context)
            return enter(context)

        def ended(*args: Any, **kwargs: Any) -> Any:
            # A checkpoint's own backward is inside another.
            if torch._C._current_autograd_node() is None:
                self.end()
            return backward(*args, **kwargs)

        sys.meta_path.insert(0, self._settings)
        try:
            with patched(
                [
                    Patch(torch.autocast, "__enter__", entered),
                    Patch(torch.autograd, "backward", ended),
                ]
            ):
                yield
        finally:
            sys.meta_path.remove(self._settings)


def _is_on(context: Any) -> bool:
    return context.device == "cuda" and bool(context._enabled)
