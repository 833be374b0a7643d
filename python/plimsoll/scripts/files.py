"""Files of a script that is followed beyond its steps: nothing on the disk is changed by it, and
what it saves with torch it can load again, as far as memory is concerned."""

from __future__ import annotations

import builtins
import io
import os
import shutil
from typing import Any, NamedTuple

import torch
from torch import nn

from ..base.patching import Patch
from .follower import Follower


class _Tensor(NamedTuple):
    """What is kept of a tensor that was saved: holding it would keep its memory."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    elements: int
    dtype: torch.dtype
    device: str


class SavedFiles:
    """By path."""

    def __init__(self) -> None:
        self._files: dict[str, Any] = {}

    def save(self, obj: Any, file: Any) -> None:
        path = _path(file)
        if path is not None and not isinstance(obj, nn.Module):
            self._files[path] = _described(obj)

    def has(self, file: Any) -> bool:
        return _path(file) in self._files

    def largest_through_host(self, file: Any, map_location: Any) -> int:
        """Of what a load brings to a device: one storage after the other is read to the host."""
        most = 0

        def look(value: Any) -> Any:
            nonlocal most
            if isinstance(value, _Tensor) and _device_for(value.device, map_location) != "cpu":
                most = max(most, value.elements * value.dtype.itemsize)
            return _mapped(value, look)

        look(self._files[_path(file) or ""])
        return most

    def load(self, file: Any, map_location: Any) -> Any:
        """A storage for each that was saved, in their order, where `map_location` wants it."""
        storages: dict[tuple[int, str], torch.Tensor] = {}

        def made(value: Any) -> Any:
            if isinstance(value, _Tensor):
                device = _device_for(value.device, map_location)
                key = value.storage, device
                if key not in storages:
                    storages[key] = torch.empty(value.elements, dtype=value.dtype, device=device)
                whole = storages[key]
                return whole.as_strided(value.size, value.stride, value.offset)
            return _mapped(value, made)

        return made(self._files[_path(file) or ""])


def _path(file: Any) -> str | None:
    return os.path.abspath(os.fspath(file)) if isinstance(file, (str, os.PathLike)) else None


def _described(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return _mapped(value, _described)
    storage = value.untyped_storage()
    return _Tensor(
        storage._cdata,
        tuple(value.shape),
        tuple(value.stride()),
        int(value.storage_offset()),
        storage.nbytes() // value.element_size(),
        value.dtype,
        str(value.device),
    )


def _mapped(value: Any, function: Any) -> Any:
    if isinstance(value, dict):
        return type(value)((key, function(element)) for key, element in value.items())
    if type(value) in (list, tuple):
        return type(value)(function(element) for element in value)
    return value


def _device_for(saved: str, map_location: Any) -> str:
    if map_location is None:
        return saved
    if isinstance(map_location, dict):
        return str(map_location.get(saved, saved))
    # `lambda storage, location: storage` is how people say that it stays on the host.
    return "cpu" if callable(map_location) else str(map_location)


def untouched_files(follower: Follower) -> list[Patch]:
    """Beyond the steps what is written goes nowhere, and nothing is moved or removed."""
    open_real = builtins.open

    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        writes = any(sign in mode for sign in "wax+")
        if writes and follower.is_beyond_steps and not isinstance(file, int):
            file = os.devnull
            mode = mode.replace("x", "w")
        return open_real(file, mode, *args, **kwargs)

    def unless_beyond(owner: Any, name: str) -> Patch:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return None if follower.is_beyond_steps else real(*args, **kwargs)

        return Patch(owner, name, call)

    patches = [Patch(builtins, "open", open_file), Patch(io, "open", open_file)]
    for name in ("remove", "unlink", "rename", "replace", "rmdir", "removedirs", "truncate"):
        patches.append(unless_beyond(os, name))
    for name in ("rmtree", "move", "copy", "copy2", "copyfile", "copytree"):
        patches.append(unless_beyond(shutil, name))
    return patches
