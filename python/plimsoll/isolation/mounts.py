"""The file systems that are mounted, as /proc/self/mountinfo lists them."""

from __future__ import annotations

import re
from typing import NamedTuple

#: File systems that hold no files of anybody.
_NO_FILES = {
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts",
    "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore",
    "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
}  # fmt: skip


class Mount(NamedTuple):
    number: int
    parent: int
    path: str
    kind: str
    read_only: bool

    @property
    def has_files(self) -> bool:
        return self.kind not in _NO_FILES

    def is_below(self, folder: str) -> bool:
        return self.path != folder and self.path.startswith(folder.rstrip("/") + "/")


def read_mounts(path: str = "/proc/self/mountinfo") -> list[Mount]:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return visible([_parsed(line) for line in file])


def visible(mounts: list[Mount]) -> list[Mount]:
    """Without those that a later mount hides. `mounts`: in the order in which they were made."""
    hidden: set[int] = set()
    shown: dict[str, Mount] = {}
    for mount in mounts:
        below = shown.get(mount.path)
        if mount.parent in hidden or (below and below.number != mount.parent):
            hidden.add(mount.number)  # made below a mount that was there already
            continue
        for path in [path for path, one in shown.items() if _hides(mount, one)]:
            hidden.add(shown.pop(path).number)
        shown[mount.path] = mount
    return list(shown.values())


def _hides(mount: Mount, other: Mount) -> bool:
    return other.path == mount.path or other.is_below(mount.path)


def _parsed(line: str) -> Mount:
    """Of `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`."""
    words = line.split(" ")
    kind, _, options = words[words.index("-") + 1 :][:3]
    read_only = "ro" in words[5].split(",") or "ro" in options.strip().split(",")
    return Mount(int(words[0]), int(words[1]), _unescaped(words[4]), kind, read_only)


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)
