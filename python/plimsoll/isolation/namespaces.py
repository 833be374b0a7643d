"""Namespaces of Linux: a process with files and a network of its own, if the kernel allows it."""

from __future__ import annotations

import os
from typing import Callable

from . import kernel
from .layers import Layers


def isolate(scratch: str, keep: str, as_root: bool, files: bool, network: bool) -> list[str]:
    """`scratch`: an empty folder for what is changed. `keep`: a folder that stays as it is, where
    results go. `as_root`: by the rights of root, else in a user namespace, which most may make.
    Which file systems can be read alone; OSError where the kernel refuses."""
    flags = (kernel.NEW_MOUNTS if files else 0) | (kernel.NEW_NETWORK if network else 0)
    if as_root:
        kernel.unshare(flags)
    else:
        _unshare_as_user(flags)
    read_only: list[str] = []
    if files:
        kernel.follow_no_mounts_back()
        layers = Layers(scratch)
        layers.enter(keep)
        read_only = layers.read_only
    if network:
        kernel.loopback_up()
    if not as_root and os.geteuid() != 0:
        kernel.drop_capabilities()
    return read_only


def _unshare_as_user(flags: int) -> None:
    """The same user as before. Root stays every user that it is here: only a process that is
    outside the new namespace may say so."""
    user, group = os.geteuid(), os.getegid()
    if user != 0:
        kernel.unshare(kernel.NEW_USERS | flags)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
        return
    maps = {name: _same_ids(name) for name in ("uid_map", "gid_map")}
    inside = os.getpid()

    def map_ids() -> None:
        for name, text in maps.items():
            _write(f"/proc/{inside}/{name}", text)

    with_helper(map_ids, lambda: kernel.unshare(kernel.NEW_USERS | flags))


def _same_ids(name: str) -> str:
    with open(f"/proc/self/{name}") as file:
        ranges = [line.split() for line in file]
    return "".join(f"{first} {first} {count}\n" for first, _, count in ranges)


def with_helper(helps: Callable[[], None], call: Callable[[], None]) -> None:
    """Runs `helps` in another process once `call` is done."""
    wait, go = os.pipe()
    helper = os.fork()
    if helper == 0:
        code = 1
        try:
            os.close(go)
            if os.read(wait, 1):
                helps()
                code = 0
        finally:
            os._exit(code)
    os.close(wait)
    try:
        call()
        os.write(go, b"1")
    finally:
        os.close(go)
        done = os.waitpid(helper, 0)[1]
    if done:
        raise OSError("the users of this machine cannot be taken over into a namespace")


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
