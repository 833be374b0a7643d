"""Changes of files in a folder of their own, by path, over files that stay as they are.

What overlayfs does in the kernel (layers.py), for processes that have none. A path is looked up in
the folder first, then among the paths that were removed, then where it really is. Not thread-safe.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from typing import Any, NoReturn

#: Larger files are not copied: opening them for writing is an error.
MOST_COPIED = 1 << 30
#: Files below are not the machine's own: devices, processes.
_SYSTEM = ("/proc", "/sys", "/dev")
_MOST_LINKS = 40
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Changes:
    def __init__(self, folder: str, leave: tuple[str, ...] = ()) -> None:
        """`leave`: folders that are not looked after, besides those of the system."""
        self._folder = os.path.realpath(folder)
        self._left = (*_SYSTEM, self._folder, *map(os.path.realpath, leave))
        #: What is there in truth is not there any more: at these paths, and below.
        self._removed: set[str] = set()
        self.is_empty = True

    # Paths. A "known" path is absolute, and has no link in it.

    def known(self, path: Any, follow: bool = True, dir_fd: int | None = None) -> str | None:
        """None for what is not looked after. `follow`: the last part too may be a link."""
        text = os.fsdecode(path)
        if not text:
            self._fail(errno.ENOENT, text)
        base = os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
        parts = os.path.join(self._shown(base), text).split("/")[::-1]
        current, links = "/", 0
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if part == "..":
                current = os.path.dirname(current)
                continue
            there = os.path.join(current, part)
            if self._is_left(there):
                return None
            target = self._link(there) if follow or any(parts) else None
            if target is None:
                current = there
                continue
            links += 1
            if links > _MOST_LINKS:
                self._fail(errno.ELOOP, text)
            parts += target.split("/")[::-1]
            current = "/" if target.startswith("/") else current
        return current

    def _shown(self, path: str) -> str:
        """As the script knows it."""
        inside = path == self._folder or path.startswith(self._folder + "/")
        return path[len(self._folder) :] or "/" if inside else path

    def _is_left(self, path: str) -> bool:
        return any(path == one or path.startswith(one + "/") for one in self._left)

    def _link(self, known: str) -> str | None:
        try:
            return os.readlink(self.place(known))
        except OSError:
            return None

    def changed(self, known: str) -> str:
        """Where the path is once it is changed."""
        return self._folder + known

    def place(self, known: str) -> str:
        """Where the path is now; a path at which nothing is, if it was removed."""
        changed = self.changed(known)
        return changed if os.path.lexists(changed) or self._is_hidden(known) else known

    def _is_hidden(self, known: str) -> bool:
        if not self._removed:
            return False
        while known not in self._removed:
            if known == "/":
                return False
            known = os.path.dirname(known)
        return True

    def exists(self, known: str) -> bool:
        return os.path.lexists(self.place(known))

    def concerns(self, known: str) -> bool:
        """Whether it is changed, what is right in it, or the folder that it is in."""
        if self.is_empty:
            return False
        above = os.path.dirname(known)
        changed = any(os.path.lexists(self.changed(path)) for path in (known, above))
        removed = any(os.path.dirname(path) == known for path in self._removed)
        return changed or removed or self._is_hidden(known)

    def names_in(self, known: str) -> list[str]:
        place = self.place(known)
        names = set(os.listdir(place))
        if place != known and not self._is_hidden(known) and os.path.isdir(known):
            names.update(os.listdir(known))
        return sorted(name for name in names if self.exists(os.path.join(known, name)))

    # Changes.

    def bring(self, known: str, content: bool = True) -> str:
        """Copies the path into the folder, unless it is there. Where it is then."""
        changed = self.changed(known)
        place = self.place(known)
        if place == changed:
            return changed
        found = os.lstat(place)
        self.make_way(known, own=True)
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(place), changed)
        elif stat.S_ISDIR(found.st_mode):
            os.mkdir(changed)
            shutil.copystat(place, changed)
        elif stat.S_ISREG(found.st_mode):
            self._copy(place, changed, found, content)
        else:
            return place  # a pipe, a socket
        return changed

    def _copy(self, place: str, changed: str, found: os.stat_result, content: bool) -> None:
        if content and found.st_size > MOST_COPIED:
            raise OSError(
                errno.EFBIG,
                f"plimsoll predict --run copies no file of more than {MOST_COPIED >> 30} GiB to "
                "keep it from a script's changes",
                self._shown(place),
            )
        if content:
            shutil.copyfile(place, changed)
        else:
            os.close(os.open(changed, os.O_WRONLY | os.O_CREAT, 0o600))
        shutil.copystat(place, changed)

    def bring_all(self, known: str) -> str:
        """With all that is below."""
        changed = self.bring(known)
        if os.path.isdir(changed) and not os.path.islink(changed):
            for name in self.names_in(known):
                self.bring_all(os.path.join(known, name))
        return changed

    def make_way(self, known: str, own: bool = False) -> str:
        """The folder above is there for a change. `own`: the change is none of the script's."""
        above = os.path.dirname(known)
        place = self.place(above)
        if not own and os.path.isdir(place) and not os.access(place, os.W_OK | os.X_OK):
            self._fail(errno.EACCES, known)
        if os.path.isdir(place) and place != self.changed(above):
            if above != "/":
                self.make_way(above, own=True)
            os.makedirs(self.changed(above), exist_ok=True)
            shutil.copystat(place, self.changed(above))
        self.is_empty = False
        return self.changed(known)

    def hide(self, known: str) -> None:
        self._removed.add(known)
        self.is_empty = False

    # What a script does. Paths are known ones.

    def open(self, known: str, flags: int, mode: int) -> int:
        if not flags & _WRITES or flags & os.O_TMPFILE == os.O_TMPFILE:
            return os.open(self.place(known), flags, mode)
        if not self.exists(known):
            there = self.make_way(known) if flags & os.O_CREAT else self.place(known)
            return os.open(there, flags, mode)
        if flags & os.O_CREAT and flags & os.O_EXCL:
            self._fail(errno.EEXIST, known)
        place = self.place(known)
        if os.path.isdir(place):
            self._fail(errno.EISDIR, known)
        if not os.access(place, os.W_OK):
            self._fail(errno.EACCES, known)
        return os.open(self.bring(known, content=not flags & os.O_TRUNC), flags & ~os.O_EXCL, mode)

    def make_folder(self, known: str, mode: int = 0o777) -> None:
        if self.exists(known):
            self._fail(errno.EEXIST, known)
        os.mkdir(self.make_way(known), mode)

    def remove(self, known: str) -> None:
        self._check_there(known)
        if os.path.isdir(self.place(known)) and not os.path.islink(self.place(known)):
            self._fail(errno.EISDIR, known)
        there = self.make_way(known)
        if os.path.lexists(there):
            os.unlink(there)
        self.hide(known)

    def remove_folder(self, known: str) -> None:
        self._check_there(known)
        if os.path.islink(self.place(known)) or not os.path.isdir(self.place(known)):
            self._fail(errno.ENOTDIR, known)
        if self.names_in(known):
            self._fail(errno.ENOTEMPTY, known)
        there = self.make_way(known)
        if os.path.isdir(there):
            os.rmdir(there)
        self.hide(known)

    def rename(self, source: str, target: str) -> None:
        self._check_there(source)
        if source == target:
            return
        self._check_replaceable(source, target)
        moved, there = self.bring_all(source), self.make_way(target)
        os.rename(moved, there)
        # What was removed below moves with it, and needs no note: all of it was copied.
        self.hide(source)
        self.hide(target)

    def _check_replaceable(self, source: str, target: str) -> None:
        """What is there gives way: a file to a file, an empty folder to a folder."""
        if not self.exists(target):
            return

        def is_folder(known: str) -> bool:
            place = self.place(known)
            return os.path.isdir(place) and not os.path.islink(place)

        if is_folder(target) and not is_folder(source):
            self._fail(errno.EISDIR, target)
        if is_folder(source) and not is_folder(target):
            self._fail(errno.ENOTDIR, target)
        if is_folder(target) and self.names_in(target):
            self._fail(errno.ENOTEMPTY, target)

    def link(self, source: str, target: str) -> None:
        self._check_there(source)
        self._check_not_there(target)
        os.link(self.bring(source), self.make_way(target), follow_symlinks=False)

    def new_link(self, text: Any, known: str) -> None:
        self._check_not_there(known)
        os.symlink(text, self.make_way(known))

    def _check_there(self, known: str) -> None:
        os.lstat(self.place(known))

    def _check_not_there(self, known: str) -> None:
        if self.exists(known):
            self._fail(errno.EEXIST, known)

    def _fail(self, number: int, path: str) -> NoReturn:
        raise OSError(number, os.strerror(number), path)

    def explain(self, error: OSError) -> None:
        """Names the script's files in place of ours."""
        for name in ("filename", "filename2"):
            path = getattr(error, name, None)
            if isinstance(path, str):
                setattr(error, name, self._shown(path))
