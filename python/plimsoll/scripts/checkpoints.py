"""Checkpoints that libraries write past torch.save: safetensors, Lightning, torch.distributed.

None of them is written, and what was saved can be loaded again. Each is told as the library does
it: how much of it is on the host at a time, and what is made on the device for it.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..base.notes import Note
from ..base.patching import Patch
from ..base.places import current_line
from .files import SavedFiles, all_on_device, as_bytes
from .follower import Follower
from .sharded_checkpoints import sharded_checkpoints
from .stand_ins import ScriptSettings

#: In safetensors' headers.
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class LibrariesFiles:
    """Stand-ins for what they write and read with."""

    def __init__(
        self, note: Note, follower: Follower, files: SavedFiles, script: ScriptSettings
    ) -> None:
        self._given = note, follower, files
        self._script = script
        #: Modules, and names in them, that are stood in for.
        self._done: set[tuple[str, str]] = set()

    def patches(self) -> list[Patch]:
        """Of the libraries that the script has imported since the last time."""
        replaced: dict[int, Any] = {}

        def replace(module: Any, name: str, make: Callable[[Any], Any]) -> None:
            real = getattr(module, name, None)
            key = getattr(module, "__name__", ""), name
            if real is not None and key not in self._done:
                self._done.add(key)
                replaced[id(real)] = make(real)

        was_done = bool(self._done)
        note, follower, files = self._given
        _safetensors(replace, note, follower, files)
        _lightning(replace, note, follower, files)
        sharded_checkpoints(replace, note, follower, self._script)
        if not replaced:
            return []
        once = [] if was_done else [*_addresses(), *_found_by_lightning(files)]
        return [*_everywhere(replaced), *once]


def _everywhere(replaced: dict[int, Any]) -> list[Patch]:
    """Also where others have imported them by their names."""
    found = []
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        for name, value in list(names.items()) if isinstance(names, dict) else []:
            if id(value) in replaced:
                found.append(Patch(module, name, replaced[id(value)]))
    return found


# safetensors.


def _safetensors(
    replace: Callable[..., None], note: Note, follower: Follower, files: SavedFiles
) -> None:
    package, of_torch = sys.modules.get("safetensors"), sys.modules.get("safetensors.torch")

    def saving(real: Any) -> Any:
        def save_file(tensors: Any, filename: Any, metadata: Any = None) -> None:
            note(f"{current_line()}: nothing is saved")
            # Copies of all tensors are kept on the host until the file is written.
            follower.saves(all_on_device(tensors))
            files.save_apart(tensors, filename)

        return save_file

    def in_memory(real: Any) -> Any:
        def save(tensors: Any, metadata: Any = None) -> bytes:
            note(f"{current_line()}: nothing is saved")
            follower.saves(all_on_device(tensors) + as_bytes(tensors))
            return b""

        return save

    def loading(real: Any) -> Any:
        def load_file(filename: Any, device: Any = "cpu", **kwargs: Any) -> Any:
            if not files.has(filename):
                return real(filename, device, **kwargs)
            with follower.loading(files.largest_through_host(filename, _device(device))):
                return files.load(filename, _device(device))

        return load_file

    def opening(real: Any) -> Any:
        def safe_open(filename: Any, *args: Any, **kwargs: Any) -> Any:
            if not files.has(filename):
                return real(filename, *args, **kwargs)
            device = kwargs.get("device", args[1] if len(args) > 1 else "cpu")
            return _Opened(filename, _device(device), follower, files)

        return safe_open

    replace(of_torch, "save_file", saving)
    replace(of_torch, "save", in_memory)
    replace(of_torch, "load_file", loading)
    replace(package, "safe_open", opening)


def _device(given: Any) -> str:
    return f"cuda:{given}" if isinstance(given, int) else str(given)


class _Opened:
    """In place of safetensors' safe_open. All of it is there at once: transformers takes tensors
    out in threads of its own, which are not followed."""

    def __init__(self, file: Any, device: str, follower: Follower, files: SavedFiles) -> None:
        with follower.loading(files.largest_through_host(file, device)):
            self._tensors: dict[str, torch.Tensor] = files.load(file, device)

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *args: object) -> None:
        self._tensors = {}

    def metadata(self) -> dict[str, str]:
        return {"format": "pt"}

    def keys(self) -> list[str]:
        return list(self._tensors)

    offset_keys = keys

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return dict(self._tensors)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._tensors[name])


class _Slice:
    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        return _NAMES.get(self._tensor.dtype, str(self._tensor.dtype))

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._tensor[index]


# Lightning writes a checkpoint into memory, and that into a file of whatever file system.


def _lightning(
    replace: Callable[..., None], note: Note, follower: Follower, files: SavedFiles
) -> None:
    def saving(real: Any) -> Any:
        def atomic_save(checkpoint: Any, filepath: Any) -> None:
            note(f"{current_line()}: nothing is saved")
            follower.saves(as_bytes(checkpoint))
            files.save(checkpoint, filepath)

        return atomic_save

    def loading(real: Any) -> Any:
        def load(path_or_url: Any, map_location: Any = None, **kwargs: Any) -> Any:
            if files.has(path_or_url):
                return torch.load(path_or_url, map_location)
            return real(path_or_url, map_location, **kwargs)

        return load

    for package in ("lightning.fabric", "lightning_fabric"):
        module = sys.modules.get(f"{package}.utilities.cloud_io")
        replace(module, "_atomic_save", saving)
        replace(module, "_load", loading)


def _found_by_lightning(files: SavedFiles) -> list[Patch]:
    """It asks its file system for a checkpoint before it loads it."""
    local = getattr(sys.modules.get("fsspec.implementations.local"), "LocalFileSystem", None)

    def also(name: str) -> Patch:
        real = getattr(local, name)

        def call(self: Any, path: Any, *args: Any, **kwargs: Any) -> bool:
            return files.has(path) or bool(real(self, path, *args, **kwargs))

        return Patch(local, name, call)

    return [] if local is None else [also("exists"), also("isfile")]


# Which tensors share their memory is asked before they are saved.

_ASK = ("safetensors.", "transformers.", "accelerate.", "huggingface_hub.", "diffusers.", "peft.")
#: These read what is there.
_READ = ("_to_ndarray", "_tobytes")


def _addresses() -> list[Patch]:
    """Tensors without memory have no addresses. Those who compare them get some: of each storage
    one. Nobody else does, who may want to read there."""
    of_tensor, of_storage = FakeTensor.data_ptr, torch.UntypedStorage.data_ptr

    def asks() -> bool:
        caller = sys._getframe(2)
        name = str(caller.f_globals.get("__name__"))
        return name.startswith(_ASK) and caller.f_code.co_name not in _READ

    def tensor_address(self: Any) -> int:
        if not asks():
            return int(of_tensor(self))
        begin = self.untyped_storage()._cdata << 12  # no two within what a page has
        return int(begin + self.storage_offset() * self.element_size())

    def storage_address(self: Any) -> int:
        if self.device.type != "meta" or not asks():
            return int(of_storage(self))
        return int(self._cdata << 12)

    return [
        Patch(FakeTensor, "data_ptr", tensor_address),
        Patch(torch.UntypedStorage, "data_ptr", storage_address),
    ]
