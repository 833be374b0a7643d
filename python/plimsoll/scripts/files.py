"""Files of a script that is followed beyond its steps: nothing on the disk is changed by it, and
what it saves it can load again, as far as memory is concerned."""

from __future__ import annotations

import builtins
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from ..base.patching import Patch
from ..events.recorder import on_device
from .follower import Follower
from .made import MadePaths


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
#: How names of files end that have settings.
_SETTINGS = (".json", ".txt", ".yaml", ".yml")


class SavedFiles:
    """By path."""

    def __init__(self, made: MadePaths) -> None:
        self._files: dict[str, Any] = {}
        #: The script looks into them.
        self.made = made
        #: By path: where a text that was written beyond the steps is in truth.
        self._texts: dict[str, str] = {}
        self._texts_in = ""

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

    def exists(self, file: Any) -> bool:
        """For the script."""
        return self.has(file) or self.text_at(file) is not None

    def is_foreign(self, file: Any) -> bool:
        """Another run of the script made it: to this one it is not there."""
        path = _path(file)
        return path is not None and self.made.of_others_alone(path)

    def text_at(self, file: Any) -> str | None:
        """Where to read it."""
        return self._texts.get(_path(file) or "") if self._texts else None

    def place_of_text(self, file: Any) -> str | None:
        """Where to write one that libraries read again: settings beside weights."""
        path = _path(file)
        if path is None or not path.endswith(_SETTINGS):
            return None
        if not self._texts_in:
            self._texts_in = tempfile.mkdtemp(prefix="plimsoll-texts-")
        return self._texts.setdefault(path, os.path.join(self._texts_in, str(len(self._texts))))

    def move(self, source: Any, target: Any) -> None:
        """A file, or all that is in a folder."""
        old, new = _path(source), _path(target)
        if old is None or new is None:
            return
        for known in (self._files, self._texts):
            for path in list(known):
                if path == old or path.startswith(old + os.sep):
                    known[new + path[len(old) :]] = known.pop(path)

    def remove_texts(self) -> None:
        if self._texts_in:
            shutil.rmtree(self._texts_in, ignore_errors=True)

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


def untouched_files(follower: Follower, files: SavedFiles) -> list[Patch]:
    """Beyond the steps what is written goes nowhere, and nothing is moved or removed."""
    open_real = builtins.open

    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        writes = any(sign in mode for sign in "wax+")
        if writes and follower.is_beyond_steps and not isinstance(file, int):
            file = (files.place_of_text(file) if mode in ("w", "wt") else None) or os.devnull
            mode = mode.replace("x", "w")
        elif not writes:
            file = files.text_at(file) or file
        return open_real(file, mode, *args, **kwargs)

    def unless_beyond(owner: Any, name: str) -> Patch:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return None if follower.is_beyond_steps else real(*args, **kwargs)

        return Patch(owner, name, call)

    def moved(owner: Any, name: str) -> Patch:
        real = getattr(owner, name)

        def call(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            if follower.is_beyond_steps:
                return files.move(source, target)
            return real(source, target, *args, **kwargs)

        return Patch(owner, name, call)

    patches = [Patch(builtins, "open", open_file), Patch(io, "open", open_file)]
    for name in ("remove", "unlink", "rmdir", "removedirs", "truncate", "chmod", "link", "symlink"):
        patches.append(unless_beyond(os, name))
    for name in ("rmtree", "copy", "copy2", "copyfile", "copytree"):
        patches.append(unless_beyond(shutil, name))
    patches += [moved(os, "rename"), moved(os, "replace"), moved(shutil, "move")]
    return [*patches, *_making(follower, files), *_existing(files)]


def _making(follower: Follower, files: SavedFiles) -> list[Patch]:
    """Folders are made, since scripts list what is in them, and so are temporary files, which have
    nothing in them: all of them go when the script ends."""
    make_folder, open_real, is_folder = os.mkdir, os.open, os.path.isdir

    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        known = _path(path)
        if not follower.is_beyond_steps or known is None:
            return make_folder(path, *args, **kwargs)
        with files.made.alone():
            # What is there already was removed, as the script has it, or is another run's.
            if not (is_folder(known) and files.made.has(known)):
                make_folder(path, *args, **kwargs)
            files.made.add(known)

    def open_new(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        known = _path(path)
        is_new = follower.is_beyond_steps and bool(flags & os.O_CREAT) and known is not None
        is_new = is_new and not os.path.lexists(path)
        number = open_real(path, flags, *args, **kwargs)
        if is_new and known is not None:
            files.made.add(known)
        return number

    return [Patch(os, "mkdir", mkdir), Patch(os, "open", open_new)]


def _existing(files: SavedFiles) -> list[Patch]:
    """A script that loads what it saved asks first whether that is there."""

    def asked(owner: Any, name: str, of_files: bool = True) -> Patch:
        real = getattr(owner, name)

        def call(path: Any, *args: Any, **kwargs: Any) -> bool:
            if of_files and files.exists(path):
                return True
            return bool(real(path, *args, **kwargs)) and not files.is_foreign(path)

        return Patch(owner, name, call)

    names_in = os.listdir

    def listed(path: Any = None) -> list[Any]:
        names = names_in(path)
        if isinstance(path, (int, bytes)):
            return names
        return [one for one in names if not files.is_foreign(os.path.join(path or "", one))]

    return [
        *(asked(os.path, name) for name in ("exists", "lexists", "isfile")),
        *(asked(Path, name) for name in ("exists", "is_file")),
        asked(os.path, "isdir", of_files=False),
        asked(Path, "is_dir", of_files=False),
        Patch(os, "listdir", listed),
    ]
