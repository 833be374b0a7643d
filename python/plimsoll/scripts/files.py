"""Files of a script that is followed beyond its steps: what it saves it can load again, as far as
memory is concerned. That nothing on the disk is changed is the work of isolation."""

from __future__ import annotations

import builtins
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from ..base.patching import Patch
from ..events.recorder import on_device
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
    #: Of a small one that has values: the state of a generator, how many steps there were.
    values: torch.Tensor | None = None


#: Elements of such.
_SMALL = 1 << 14


class SavedFiles:
    """By path."""

    def __init__(self) -> None:
        self._files: dict[str, Any] = {}

    def save(self, obj: Any, file: Any) -> None:
        path = _path(file)
        if path is not None and not isinstance(obj, nn.Module):
            self._files[path] = _described(obj)

    def save_apart(self, tensors: dict[str, torch.Tensor], file: Any) -> None:
        """Each with memory of its own, and on the host unless it is asked for elsewhere: a file of
        safetensors has neither storages nor devices."""
        path = _path(file)
        if path is not None:
            told = enumerate(tensors.items())
            self._files[path] = {name: _alone(tensor, number) for number, (name, tensor) in told}

    def has(self, file: Any) -> bool:
        return bool(self._files) and _path(file) in self._files

    def forget(self, file: Any) -> None:
        """A file, or all that is in a folder."""
        for path in self._below(file):
            del self._files[path]

    def copy(self, source: Any, target: Any) -> None:
        old, new = _path(source), _path(target)
        if old is None or new is None:
            return
        if os.path.isdir(new) and not os.path.isdir(old):
            new = os.path.join(new, os.path.basename(old))
        for path in self._below(source):
            self._files[new + path[len(old) :]] = self._files[path]

    def move(self, source: Any, target: Any) -> None:
        self.copy(source, target)
        self.forget(source)

    def _below(self, file: Any) -> list[str]:
        path = _path(file)
        if path is None:
            return []
        return [one for one in self._files if one == path or one.startswith(path + os.sep)]

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
                if value.values is not None and device == "cpu":
                    return value.values.clone()
                key = value.storage, device
                if key not in storages:
                    storages[key] = torch.empty(value.elements, dtype=value.dtype, device=device)
                whole = storages[key]
                return whole.as_strided(value.size, value.stride, value.offset)
            return _mapped(value, made)

        return made(self._files[_path(file) or ""])


def _path(file: Any) -> str | None:
    if not isinstance(file, (str, os.PathLike)):
        return None
    path = os.fspath(file)
    return os.path.abspath(path) if isinstance(path, str) else None


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
        _values_of(value),
    )


def _values_of(tensor: torch.Tensor) -> torch.Tensor | None:
    if isinstance(tensor, FakeTensor) or on_device(tensor) or tensor.numel() > _SMALL:
        return None
    with no_dispatch():  # it is not the script's
        return tensor.detach().clone()


def _alone(tensor: torch.Tensor, number: int) -> _Tensor:
    """`number`: of its storage."""
    size, dtype = tuple(tensor.shape), tensor.dtype
    packed = tuple(torch.empty(size, dtype=dtype, device="meta").stride())
    return _Tensor(number, size, packed, 0, tensor.numel(), dtype, "cpu")


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


# What goes through the host on the way to a file.


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for element in value:
            yield from tensors_in(element)


def largest_on_device(value: Any) -> int:
    """torch.save brings one storage after the other."""
    return max(_storages(value, whole=False).values(), default=0)


def all_on_device(value: Any) -> int:
    """Where the copies are kept until all of them are there."""
    return sum(_storages(value, whole=False).values())


def as_bytes(value: Any) -> int:
    """Written into memory: everything, and the copy of one storage beside it."""
    return sum(_storages(value, whole=True).values()) + largest_on_device(value)


def _storages(value: Any, whole: bool) -> dict[int, int]:
    """Those on the device, or `whole`: those on the host too. Their bytes."""
    storages = [one.untyped_storage() for one in tensors_in(value) if whole or on_device(one)]
    return {storage._cdata: storage.nbytes() for storage in storages}


#: Bytes of a file that are written beyond the steps.
_FIRST_BYTES = 64 << 20


class _FirstBytes(io.RawIOBase):
    """A file that keeps what is written at its beginning, and nothing more."""

    def __init__(self, file: Any) -> None:
        self._file = file
        likewise = ("name", "mode", "readable", "writable", "seekable", "readinto")
        for name in (*likewise, "seek", "tell", "truncate", "fileno"):
            setattr(self, name, getattr(file, name))

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        is_beginning = self._file.tell() + size <= _FIRST_BYTES
        return (self._file.write(data) or 0) if is_beginning else size

    def close(self) -> None:
        super().close()
        self._file.close()


def files_of_scripts(follower: Follower, files: SavedFiles) -> list[Patch]:
    """Beyond the steps large files are not written. What is asked of files that are not there, as
    they were saved, is taken to be done."""
    open_real = builtins.open

    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        # A file of its own opens what has a name already: temporary ones.
        has_name = not isinstance(file, int) and "opener" not in kwargs
        is_new = "b" in mode and any(sign in mode for sign in "wx")
        if not (is_new and has_name and follower.is_beyond_steps) or args or kwargs:
            return open_real(file, mode, *args, **kwargs)
        raw: Any = _FirstBytes(open_real(file, mode, 0))
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    def is_not_there(path: Any) -> bool:
        return (follower.is_beyond_steps or files.has(path)) and _is_missing(path)

    def taking(paths: int, done: Callable[..., None], owner: Any, *names: str) -> list[Patch]:
        """Functions whose first arguments are so many paths."""

        def patch(name: str) -> Patch:
            real = getattr(owner, name)

            def call(path: Any, *args: Any, **kwargs: Any) -> Any:
                missing = is_not_there(path)
                if len(args) >= paths - 1:
                    done(path, *args[: paths - 1])
                return None if missing else real(path, *args, **kwargs)

            return Patch(owner, name, call)

        return [patch(name) for name in names]

    return [
        Patch(builtins, "open", open_file),
        Patch(io, "open", open_file),
        *taking(1, lambda path: None, os, "rmdir", "removedirs", "truncate", "chmod"),
        *taking(1, files.forget, os, "remove", "unlink"),
        *taking(1, files.forget, shutil, "rmtree"),
        *taking(2, files.move, os, "rename", "replace"),
        *taking(2, files.move, shutil, "move"),
        *taking(2, files.copy, os, "link"),
        *taking(2, files.copy, shutil, "copy", "copy2", "copyfile", "copytree"),
        *_existing(files),
    ]


def _is_missing(path: Any) -> bool:
    """On the disk, whatever was saved."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except (OSError, TypeError, ValueError):
        return False  # the real function says what is wrong
    return False


def _existing(files: SavedFiles) -> list[Patch]:
    """A script that loads what it saved asks first whether that is there."""

    def asked(owner: Any, name: str) -> Patch:
        real = getattr(owner, name)

        def call(path: Any, *args: Any, **kwargs: Any) -> bool:
            return files.has(path) or bool(real(path, *args, **kwargs))

        return Patch(owner, name, call)

    return [
        *(asked(os.path, name) for name in ("exists", "lexists", "isfile")),
        *(asked(Path, name) for name in ("exists", "is_file")),
    ]
