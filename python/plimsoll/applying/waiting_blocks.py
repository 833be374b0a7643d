"""Blocks whose results wait on the host until their backward.

What a block saves for its backward is copied to pinned memory in a stream of its own while the
next blocks are computed, and back while those have their backward. Its memory is free when another
module, which comes after it, is done, at the same place in every step, and it comes back when the
backward of that one begins.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import nn

#: What is smaller than this part of a block's largest result is not worth a copy.
_SMALL = 64


def wait_on_host(model: nn.Module, until: dict[str, str]) -> None:
    """What each of these modules saves waits on the host from the end of another one, which comes
    after it, to that one's backward. The model's state_dict keeps its names. The graph can be gone
    through once: no `retain_graph`."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper

    class WaitingBlock(ActivationWrapper):
        def __init__(self, block: nn.Module, waiting: _Waiting) -> None:
            super().__init__(block)
            self.waiting = waiting

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            block = self._checkpoint_wrapped_module
            if not torch.is_grad_enabled():
                return block(*args, **kwargs)
            results = self.waiting.begin(block, (args, kwargs))
            with torch.autograd.graph.saved_tensors_hooks(results.pack, _unpack):
                output = block(*args, **kwargs)
            results.leave(_storages_of(output))
            return output

    copies = _Copies()
    others = {other: model.get_submodule(other) for other in until.values()}
    wrappers = {}
    for name, other in until.items():
        waiting = _Waiting(copies)
        others[other].register_forward_hook(waiting.free)
        block = model.get_submodule(name)
        wrappers[id(block)] = WaitingBlock(block, waiting)
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if id(child) in wrappers:
                setattr(parent, name, wrappers[id(child)])


class _Copies:
    """Copies beside the kernels of one device."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._pinned: dict[int, list[torch.Tensor]] = {}

    def moves(self, tensor: torch.Tensor) -> bool:
        return type(tensor) is torch.Tensor and tensor.is_cuda

    def beside(self) -> AbstractContextManager[Any]:
        """What is issued in it begins when all that was issued before is done."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._stream)

    def mark(self) -> torch.cuda.Event | None:
        """The copies so far."""
        return None if self._stream is None else self._stream.record_event()

    def wait(self, event: torch.cuda.Event | None) -> None:
        if event is not None:
            torch.cuda.current_stream().wait_event(event)

    def take_host(self, size: int) -> torch.Tensor:
        """Used again in the order of the copies, so that none is overwritten too early."""
        free = self._pinned.get(size)
        if free:
            return free.pop()
        return torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())

    def give_host(self, buffer: torch.Tensor) -> None:
        self._pinned.setdefault(buffer.numel(), []).append(buffer)


class _CopiesInPlace(_Copies):
    """Without a GPU, for tests: the same, one after the other."""

    def moves(self, tensor: torch.Tensor) -> bool:
        return type(tensor) is torch.Tensor

    def beside(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def wait(self, event: torch.cuda.Event | None) -> None:
        return None


class _Saved(NamedTuple):
    """A tensor that autograd saved, as a view of a storage."""

    results: _Results
    key: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Results:
    """What one forward of a block saved."""

    def __init__(self, copies: _Copies, stays: set[int], cast: set[tuple[int, ...]]) -> None:
        self.copies = copies
        self._stays = stays
        self._cast = cast
        self._here: dict[int, torch.UntypedStorage] = {}
        self._there: dict[int, torch.Tensor] = {}
        #: How often each is still asked for.
        self._left: dict[int, int] = {}
        self._copied: Any = None
        self._device: torch.device | None = None
        self._asked = False

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | _Saved:
        if not self.copies.moves(tensor) or (tensor.is_leaf and tensor.requires_grad):
            return tensor
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key in self._stays or not key:
            return tensor
        if torch.is_autocast_enabled() and tuple(sorted(tensor.shape)) in self._cast:
            return tensor  # a weight that autocast holds anyway
        self._here[key] = storage
        self._left[key] = self._left.get(key, 0) + 1
        self._device = tensor.device
        return _Saved(
            self, key, tensor.dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset())
        )

    def leave(self, outputs: set[int]) -> None:
        """Begins to copy what nobody else holds."""
        if not self._here:
            return
        largest = max(storage.nbytes() for storage in self._here.values())
        with self.copies.beside():
            for key, storage in self._here.items():
                if key in outputs or storage.nbytes() * _SMALL < largest:
                    continue
                host = self.copies.take_host(storage.nbytes())
                host.copy_(_bytes_of(storage, self._device), non_blocking=True)
                self._there[key] = host
        self._copied = self.copies.mark()

    def free(self) -> None:
        """Once it is copied."""
        self.copies.wait(self._copied)
        for key in self._there:
            self._here.pop(key, None)

    def bring(self) -> None:
        """Begins to copy back what is not here."""
        missing = [key for key in self._there if key not in self._here and self._left.get(key)]
        if not missing:
            return
        back = {
            key: torch.empty(self._there[key].numel(), dtype=torch.uint8, device=self._device)
            for key in missing
        }
        with self.copies.beside():
            for key, tensor in back.items():
                tensor.copy_(self._there[key], non_blocking=True)
                self._here[key] = tensor.untyped_storage()
        self._copied = self.copies.mark()

    def ask(self, saved: _Saved) -> torch.Tensor:
        key = saved.key
        if not self._left.get(key):
            raise RuntimeError(
                "plimsoll: a block whose results wait on the host was gone through backward twice; "
                "take it out of wait_on_host, or leave out retain_graph"
            )
        if not self._asked:
            self._asked = True
            self.bring()
            self.copies.wait(self._copied)
        storage = self._here[key]
        self._left[key] -= 1
        if not self._left[key]:
            del self._here[key]
            if key in self._there:
                self.copies.give_host(self._there.pop(key))
        empty = torch.empty(0, dtype=saved.dtype, device=self._device)
        return empty.set_(storage, saved.offset, saved.size, saved.stride)


class _Waiting:
    """A block whose results wait for another module."""

    def __init__(self, copies: _Copies) -> None:
        self._copies = copies
        self._last: _Results | None = None

    def begin(self, block: nn.Module, inputs: Any) -> _Results:
        stays = _storages_of(inputs) | {p.untyped_storage().data_ptr() for p in block.parameters()}
        stays |= {b.untyped_storage().data_ptr() for b in block.buffers()}
        cast = {tuple(sorted(p.shape)) for p in block.parameters() if p.dim() > 1}
        self._last = _Results(self._copies, stays, cast)
        return self._last

    def free(self, module: nn.Module, args: Any, output: Any) -> None:
        """The other module is done; its backward begins when the gradient of what it gave is
        there."""
        results, self._last = self._last, None
        if results is None:
            return
        results.free()
        for tensor in _tensors_of(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: results.bring())
                return


def _unpack(saved: torch.Tensor | _Saved) -> torch.Tensor:
    return saved.results.ask(saved) if isinstance(saved, _Saved) else saved


def _bytes_of(storage: torch.UntypedStorage, device: torch.device | None) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)  # type: ignore[call-overload,no-any-return]


def _tensors_of(value: Any) -> list[torch.Tensor]:
    """In arguments or results, however they are put together."""
    leaves, _ = torch.utils._pytree.tree_flatten(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _storages_of(value: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in _tensors_of(value)}
