"""What a job finds around it while it is captured: values that are not there, loaders without
processes."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from ..base.notes import Note
from ..base.patching import Patch, patched
from ..base.places import current_line
from ..knowledge.facts import facts_of


@contextlib.contextmanager
def surroundings(note: Note, compilers: list[Patch]) -> Iterator[None]:
    """`compilers`: what torch.compile does."""
    patches = [
        *_values(note),
        *_pinning(),
        *_no_inference(),
        *_no_nested(note),
        *_loaders(),
        *compilers,
    ]
    with patched(patches):
        yield


def _values(note: Note) -> list[Patch]:
    tensor = torch.Tensor
    numpy, array, form = tensor.numpy, tensor.__array__, tensor.__format__

    def ones(self: torch.Tensor) -> Any:
        values = facts_of(self).values
        if values is not None:
            return values
        note(f"{current_line()}: the values of a tensor are read; ones are assumed")
        with no_dispatch():
            return torch.ones(tuple(self.shape), dtype=self.dtype)

    def to_numpy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return numpy(ones(self) if isinstance(self, FakeTensor) else self, *args, **kwargs)

    def to_array(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return array(ones(self) if isinstance(self, FakeTensor) else self, *args, **kwargs)

    def to_list(self: torch.Tensor) -> Any:
        """One number is read, and the others are taken to be the same, unless they are known."""
        values = facts_of(self).values
        number: Any = 0
        if (values is None or facts_of(self).routed) and self.numel():  # reading is noted
            one = self
            while one.dim():
                one = one[0]
            number = one.item()
        with no_dispatch():
            if values is None:
                values = torch.full(tuple(self.shape), number, dtype=self.dtype)
            return values.tolist()

    def formatted(self: torch.Tensor, spec: str) -> str:
        if isinstance(self, FakeTensor) and self.dim() == 0:
            return format(self.item(), spec)
        return str(form(self, spec))

    return [
        Patch(tensor, "numpy", to_numpy),
        Patch(tensor, "__array__", to_array),
        Patch(FakeTensor, "tolist", to_list),
        Patch(tensor, "__format__", formatted),
    ]


def _pinning() -> list[Patch]:
    def same(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self

    tensor = torch.Tensor
    return [
        Patch(tensor, "pin_memory", same),
        Patch(tensor, "record_stream", lambda *args: None),
        Patch(tensor, "share_memory_", same),
    ]


def _no_inference() -> list[Patch]:
    """Inference mode passes by the level at which operators are told apart. Without gradients it
    is the same operators."""

    def enter(self: Any) -> None:
        self.prev = torch.is_grad_enabled()
        torch.set_grad_enabled(not self.mode)

    def leave(self: Any, *args: object) -> None:
        torch.set_grad_enabled(self.prev)

    mode = torch.inference_mode
    return [Patch(mode, "__enter__", enter), Patch(mode, "__exit__", leave)]


def _no_nested(note: Note) -> list[Patch]:
    """In an evaluation with padding an encoder leaves the padding out, by tensors of another kind.
    With it, it needs more."""

    def never(*args: Any, **kwargs: Any) -> bool:
        note(f"{current_line()}: an encoder may leave padding out; here it is computed, too")
        return False

    name = "_nested_tensor_from_mask_left_aligned"
    return [Patch(torch, name, never)] if hasattr(torch, name) else []


def _loaders() -> list[Patch]:
    def alone(self: DataLoader[Any]) -> Any:
        """A worker is another process, where tensors are real; pinning asks for a device."""
        loader = copy.copy(self)
        loader.__dict__.update(num_workers=0, pin_memory=False, timeout=0)
        iterator = _SingleProcessDataLoaderIter(loader)
        iterator.__dict__["loader"] = self  # as it was told to be
        return iterator

    return [Patch(DataLoader, "_get_iterator", alone)]
