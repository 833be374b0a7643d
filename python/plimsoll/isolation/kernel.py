"""System calls of Linux that Python has no function for: mounts and namespaces, by ctypes."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import socket
import struct

# From linux/sched.h, sys/mount.h, linux/mount.h and linux/if.h.
NEW_MOUNTS = 0x00020000
NEW_USERS = 0x10000000
NEW_NETWORK = 0x40000000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SLAVE = 0x80000
_MNT_DETACH = 2
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x41
_MOUNT_SETATTR = 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITIES_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    texts = [os.fsencode(text) or None for text in (source, target, kind, options)]
    done = _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    _check(done, f"mount of {kind or source} at {target}")


def follow_no_mounts_back() -> None:
    """Mounts of this process stay here. New ones of the machine still come in."""
    _mount("", "/", "", _MS_SLAVE | _MS_REC)


def bind(source: str, target: str, whole: bool = True) -> None:
    """`whole`: with what is mounted below."""
    _mount(source, target, "", _MS_BIND | (_MS_REC if whole else 0))


def mount_memory(target: str, size: int, mode: int = 0o755) -> None:
    _mount("tmpfs", target, "tmpfs", 0, f"size={size},mode={mode:o}")


def mount_overlay(lower: str, upper: str, work: str, target: str, options: str) -> None:
    layers = {"lowerdir": lower, "upperdir": upper, "workdir": work}
    told = [f"{name}={_escaped(path)}" for name, path in layers.items()]
    _mount("overlay", target, "overlay", 0, ",".join([*told, *filter(None, [options])]))


def _escaped(path: str) -> str:
    for sign in "\\:,":
        path = path.replace(sign, "\\" + sign)
    return path


def make_read_only(target: str) -> None:
    """With what is mounted below."""
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    done = _libc.syscall(
        _MOUNT_SETATTR,
        _AT_FDCWD,
        os.fsencode(target),
        _AT_RECURSIVE,
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    _check(done, f"{target} cannot be made read-only")


def unmount(target: str) -> None:
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH), f"umount of {target}")


def change_root(folder: str) -> None:
    """The old root is nowhere afterwards."""
    number = _PIVOT_ROOT.get(platform.machine())
    os.chdir(folder)
    if number is None:
        os.chroot(".")
        return
    _check(_libc.syscall(number, b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP_RUNNING))


def drop_capabilities() -> None:
    """Those that a new user namespace gives."""
    number = _CAPSET.get(platform.machine())
    if number is not None:
        head, none = struct.pack("Ii", _CAPABILITIES_3, 0), bytes(24)
        _check(_libc.syscall(number, head, none), "capset")
