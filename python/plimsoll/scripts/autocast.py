"""A script in float32, run as if its forwards and losses stood in `torch.autocast`: what a plan
compares the script as written with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..base.patching import Patch, patched
from ..events.event import Parameter, Recorded

_FLOATS = ("float", "bfloat", "double", "half")


class Autocast:
    """Of one run."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._context: torch.autocast | None = None
        #: The script has it by itself.
        self.is_used = False

    def begin(self, trains: bool) -> None:
        """A model's forward begins. An evaluation stays as it is."""
        if not self._is_wanted or self._context or not trains or not torch.is_grad_enabled():
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
            self.is_used |= context is not self._context and _is_on(context)
            return enter(context)

        def ended(*args: Any, **kwargs: Any) -> Any:
            # A checkpoint's own backward is inside another.
            if torch._C._current_autograd_node() is None:
                self.end()
            return backward(*args, **kwargs)

        with patched(
            [
                Patch(torch.autocast, "__enter__", entered),
                Patch(torch.autograd, "backward", ended),
            ]
        ):
            yield

    def may_be_put_in(self, run: Recorded) -> bool:
        """Whether the script is in float32, as far as its own lines go."""
        types = {run.layouts[e.layout].dtype for e in run.events if isinstance(e, Parameter)}
        floats = {name for name in types if name.startswith(_FLOATS)}
        return floats == {"float32"} and not self.is_used


def _is_on(context: Any) -> bool:
    return context.device == "cuda" and bool(context._enabled)
