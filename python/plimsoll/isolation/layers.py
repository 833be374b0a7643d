"""The machine's files as a process sees them whose changes go into a layer of its own.

Linux's overlayfs copies a file into the layer when it is first written, by path. Reading copies
nothing. The layer is a folder, or memory where no folder can hold one (inside containers).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat

from . import kernel
from .mounts import Mount, read_mounts

#: What a layer in memory holds at most; a quarter of the memory that is free, if that is less.
_MOST_MEMORY = 4 << 30
#: Below these no file is anybody's.
_SYSTEM = ("/proc", "/sys", "/dev")
_SHARED_MEMORY = "/dev/shm"
_READ_ONLY = ("/sys", "/proc/sys")
_SEMAPHORES_ANYWHERE = (2, 34)
#: Tried in turn: renamed folders and changed modes without a copy, and nothing brought to the disk,
#: are for newer kernels and root alone.
_OPTIONS = (
    "volatile,redirect_dir=on,metacopy=on",
    "volatile,userxattr",
    "userxattr",
    "",
)


class Layers:
    """Makes a root folder in which all changes go to `scratch`. In a mount namespace of its own."""

    def __init__(self, scratch: str) -> None:
        self._scratch = scratch
        self._mounts = read_mounts()
        self._number = 0
        self._options = ""
        #: File systems of which no layer can be made: they can be read alone.
        self.read_only: list[str] = []

    def enter(self, keep: str) -> None:
        """This process is in that root afterwards. `keep`: a folder that stays the real one."""
        here = os.getcwd()
        root = self._folder("root")
        self._choose()
        self._build("/", root)
        kernel.bind(keep, root + keep)
        for path in _READ_ONLY:
            with contextlib.suppress(OSError):
                kernel.bind(path, root + path)
                kernel.make_read_only(root + path)
        kernel.change_root(root)
        os.chdir(here)

    def _folder(self, name: str) -> str:
        path = os.path.join(self._scratch, name)
        os.makedirs(path)
        return path

    def _choose(self) -> None:
        """Where layers can be, and with which options."""
        try:
            self._try_options()
        except OSError:
            kernel.mount_memory(self._scratch, _memory_for_layers())
            self._folder("root")
            self._try_options()

    def _try_options(self) -> None:
        for number, options in enumerate(_OPTIONS):
            try:
                self._options = options
                self._try(self._folder(f"try{number}"))
                return
            except OSError:
                if options == _OPTIONS[-1]:
                    raise

    def _try(self, folder: str) -> None:
        """Does what some kernels cannot: a folder that is removed and made again."""
        lower, upper = os.path.join(folder, "lower"), os.path.join(folder, "merged")
        os.makedirs(os.path.join(lower, "inner", "more"))
        os.mkdir(upper)
        self._overlay(lower, upper)
        try:
            inner = os.path.join(upper, "inner")
            shutil.rmtree(inner)
            os.mkdir(inner)
            if os.listdir(inner):
                raise OSError("what was removed is there again")
        finally:
            kernel.unmount(upper)

    def _overlay(self, lower: str, target: str) -> None:
        self._number += 1
        layer = self._folder(f"layer{self._number}")
        upper, work = os.path.join(layer, "upper"), os.path.join(layer, "work")
        os.mkdir(upper)
        os.mkdir(work)
        with contextlib.suppress(OSError):
            shutil.copystat(lower, upper)
        kernel.mount_overlay(lower, upper, work, target, self._options)

    def _build(self, path: str, target: str) -> None:
        """What is at `path` now, with a layer, at `target`, which is there."""
        mount = next((one for one in self._mounts if one.path == path), None)
        if path in _SYSTEM or (mount and not mount.has_files):
            kernel.bind(path, target)
            if path == os.path.dirname(_SHARED_MEMORY) and os.path.isdir(_SHARED_MEMORY):
                self._share_memory(target)
            return
        below = self._right_below(path)
        if not os.path.isdir(path):
            self._bind_read_only(path, target)
            return
        if mount and mount.read_only:
            kernel.bind(path, target)
        else:
            try:
                self._overlay(path, target)
            except OSError:
                if not below:
                    self._bind_read_only(path, target)
                    self.read_only.append(path)
                    return
                # Without root, Linux makes no layer over a folder that has mounts below.
                self._take_apart(path, target)
                return
        for one in below:
            # Those that this user cannot look into are not there then.
            with contextlib.suppress(OSError):
                self._build(one.path, target.rstrip("/") + one.path[len(path.rstrip("/")) :])

    def _right_below(self, path: str) -> list[Mount]:
        """Mounts below, without those that are below others."""
        below = [one for one in self._mounts if one.is_below(path)]
        return [one for one in below if not any(one.is_below(other.path) for other in below)]

    def _bind_read_only(self, path: str, target: str) -> None:
        kernel.bind(path, target)
        kernel.make_read_only(target)

    def _share_memory(self, devices: str) -> None:
        """Semaphores and tensors of processes. An older glibc finds them in no layer."""
        target = devices + _SHARED_MEMORY[len(os.path.dirname(_SHARED_MEMORY)) :]
        if os.listdir(_SHARED_MEMORY) and _glibc() >= _SEMAPHORES_ANYWHERE:
            self._overlay(_SHARED_MEMORY, target)
        else:
            kernel.mount_memory(target, _memory_for_layers(), 0o1777)

    def _take_apart(self, path: str, target: str) -> None:
        """Each folder in it gets a layer of its own. Files right in it can be read alone."""
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except PermissionError:  # nor can the script look into it
            self._bind_read_only(path, target)
            return
        kernel.mount_memory(target, _memory_for_layers())
        for entry in entries:
            there = os.path.join(target, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), there)
            elif entry.is_dir():
                os.mkdir(there, stat.S_IMODE(entry.stat().st_mode) | stat.S_IRWXU)
                self._build(entry.path, there)
            else:
                os.close(os.open(there, os.O_CREAT | os.O_WRONLY, 0o600))
                self._bind_read_only(entry.path, there)


def _memory_for_layers() -> int:
    with open("/proc/meminfo") as file:
        kilobytes = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    return min(_MOST_MEMORY, kilobytes * 1024 // 4)


def _glibc() -> tuple[int, ...]:
    """(2, 36); (0,) where the C library is another."""
    with contextlib.suppress(ValueError, OSError):
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return tuple(int(number) for number in version.split("."))
    return (0,)


def remove_layers(scratch: str) -> None:
    """By whom has waited for the process. overlayfs leaves folders that nobody may enter."""
    for folder, names, _ in os.walk(scratch):
        for name in names:
            with contextlib.suppress(OSError):
                path = os.path.join(folder, name)
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
    shutil.rmtree(scratch, ignore_errors=True)
