"""Python's own functions for files, made to leave the files as they are: changes.py has them.

It holds back `open`, `os`, and what is made of them: pathlib, shutil, tempfile, numpy. Other
programs, and libraries in C that open files themselves, are not held back; namespaces.py does that.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import glob
import importlib
import io
import os
import pathlib
import shutil
import sqlite3
import stat
import tarfile
import threading
import tokenize
from collections.abc import Iterator
from typing import Any, Callable

from ..base.patching import Patch
from .changes import Changes

#: A layer of the kernel's cannot copy files of users that it does not know, rename folders, or
#: write to some file systems.
_NOT_BY_THE_KERNEL = (errno.EOVERFLOW, errno.EROFS, errno.EXDEV)

_Action = Callable[..., Any]
_NOT_DONE = object()


class Guard:
    def __init__(self, changes: Changes, after_kernel: bool = False) -> None:
        """`after_kernel`: the files are in a layer of the kernel's, and what it cannot do is done
        here."""
        self._changes = changes
        self._after_kernel = after_kernel
        self._state = threading.local()
        self._lock = threading.RLock()

    def patches(self) -> list[Patch]:
        opened = self._opened()
        found = [Patch(owner, "open", opened) for owner in (builtins, io)]
        found.append(Patch(tarfile, "bltn_open", opened))
        found += [Patch(os, name, call) for name, call in self._of_os().items()]
        # They go by open folders, which are of one of two places.
        found.append(Patch(shutil, "_use_fd_functions", False))
        connect = self._connected(sqlite3.connect)
        found += [Patch(owner, "connect", connect) for owner in (sqlite3, sqlite3.dbapi2)]
        return [*found, *self._of_pathlib(opened), *self._of_imports(opened)]

    def _of_imports(self, opened: _Action) -> list[Patch]:
        """Modules that a script writes can be imported. Imports have functions of their own."""
        calls = self._of_os()
        external: Any = importlib.import_module("importlib._bootstrap_external")
        own = {
            name: calls[name] for name in ("open", "stat", "listdir", "mkdir", "replace", "unlink")
        }

        def file_of(file: Any, mode: str = "r") -> Any:
            return io.FileIO(file, mode) if isinstance(file, int) else opened(file, mode + "b", 0)

        files = _Instead(external._io, open_code=lambda path: opened(path, "rb"), FileIO=file_of)
        return [
            Patch(external, "_os", _Instead(external._os, **own)),
            Patch(external, "_io", files),
            Patch(tokenize, "_builtin_open", opened),
        ]

    def _of_pathlib(self, opened: _Action) -> list[Patch]:
        """It has functions of os in tables of its own: before Python 3.11, and for patterns."""
        calls = self._of_os()
        found = [
            Patch(kind, "scandir", staticmethod(calls["scandir"]))
            for kind in vars(glob).values()
            if isinstance(kind, type) and getattr(kind, "scandir", None) is os.scandir
        ]
        table = getattr(pathlib, "_NormalAccessor", None)
        if table is not None and table.open is builtins.open:  # 3.9 has that of os
            calls["open"] = opened
        names = [name for name in calls if table is not None and name in vars(table)]
        return [*found, *(Patch(table, name, staticmethod(calls[name])) for name in names)]

    def _of_os(self) -> dict[str, Any]:
        do = self._changes
        changing = {
            "open": self._wrapped("open", self._open),
            "mkdir": self._one("mkdir", do.make_folder, follow=False),
            "remove": self._one("remove", do.remove, follow=False),
            "unlink": self._one("unlink", do.remove, follow=False),
            "rmdir": self._one("rmdir", do.remove_folder, follow=False),
            "mkfifo": self._one("mkfifo", self._made("mkfifo"), follow=False),
            "mknod": self._one("mknod", self._made("mknod"), follow=False),
            "truncate": self._one("truncate", self._brought("truncate")),
            "rename": self._two("rename", do.rename),
            "replace": self._two("replace", do.rename),
            "link": self._two("link", do.link),
            "symlink": self._wrapped("symlink", self._symlink),
        }
        for name in ("chmod", "chown", "lchown", "utime", "setxattr", "removexattr"):
            if hasattr(os, name):
                changing[name] = self._one(name, self._brought(name))
        reading = {
            name: self._one(name, self._read(name), writes=False)
            for name in ("stat", "access", "getxattr", "listxattr")
            if hasattr(os, name)
        }
        for name in ("lstat", "readlink"):
            reading[name] = self._one(name, self._read(name), follow=False, writes=False)
        reading["listdir"] = self._one("listdir", do.names_in, writes=False, default=".")
        reading["scandir"] = self._wrapped("scandir", self._scanned, writes=False)
        reading["chdir"] = self._one("chdir", self._entered, writes=False)
        return {**changing, **reading}

    # How a call comes to the changes, or to the real function.

    def _wrapped(self, name: str, action: _Action, writes: bool = True) -> _Action:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            only_reads = not writes and self._changes.is_empty
            if getattr(self._state, "inside", False) or only_reads:
                return real(*args, **kwargs)
            with self._inside():
                return action(real, *args, **kwargs)

        call.__name__ = name
        return call

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """Our own calls are real ones."""
        with self._lock:
            self._state.inside = True
            try:
                yield
            except OSError as error:
                self._changes.explain(error)
                raise
            finally:
                self._state.inside = False

    def _one(
        self,
        name: str,
        action: _Action,
        follow: bool = True,
        writes: bool = True,
        default: Any = None,
    ) -> _Action:
        """Of a function with one path, which may be an open file."""

        def act(
            real: _Action,
            path: Any = default,
            *args: Any,
            dir_fd: int | None = None,
            follow_symlinks: bool = True,
            **kwargs: Any,
        ) -> Any:
            path = path if path is not None else default
            more = {} if dir_fd is None else {"dir_fd": dir_fd}
            if follow and not follow_symlinks:
                more["follow_symlinks"] = False
            known = None
            if not isinstance(path, int):
                known = self._changes.known(path, follow and follow_symlinks, dir_fd)
            if known is None or (not writes and not self._changes.concerns(known)):
                return real(path, *args, **kwargs, **more)
            done = self._by_kernel(lambda: real(path, *args, **kwargs, **more), known)
            more.pop("dir_fd", None)
            return action(known, *args, **kwargs, **more) if done is _NOT_DONE else done

        return self._wrapped(name, act, writes)

    def _two(self, name: str, action: _Action) -> _Action:
        """Of a function with two paths."""

        def act(
            real: _Action,
            src: Any,
            dst: Any,
            *,
            src_dir_fd: int | None = None,
            dst_dir_fd: int | None = None,
            **kwargs: Any,
        ) -> None:
            kwargs |= {"src_dir_fd": src_dir_fd, "dst_dir_fd": dst_dir_fd}
            known = self._changes.known
            old, new = known(src, False, src_dir_fd), known(dst, False, dst_dir_fd)
            if old is None or new is None:
                real(src, dst, **kwargs)
            elif self._by_kernel(lambda: real(src, dst, **kwargs), old, new) is _NOT_DONE:
                action(old, new)

        return self._wrapped(name, act)

    def _by_kernel(self, call: Callable[[], Any], *known: str) -> Any:
        """What its layer makes of the call; _NOT_DONE where that is for the changes."""
        if not self._after_kernel or any(map(self._changes.concerns, known)):
            return _NOT_DONE
        try:
            return call()
        except OSError as error:
            if error.errno not in _NOT_BY_THE_KERNEL:
                raise
            return _NOT_DONE

    # What the functions do.

    def _open(
        self, real: _Action, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        follow = not flags & os.O_NOFOLLOW
        known = self._changes.known(path, follow, dir_fd)
        if known is None:
            return int(real(path, flags, mode, dir_fd=dir_fd))
        done = self._by_kernel(lambda: real(path, flags, mode, dir_fd=dir_fd), known)
        return self._changes.open(known, flags, mode) if done is _NOT_DONE else int(done)

    def _symlink(
        self,
        real: _Action,
        src: Any,
        dst: Any,
        target_is_directory: bool = False,
        *,
        dir_fd: int | None = None,
    ) -> None:
        known = self._changes.known(dst, False, dir_fd)
        if known is None:
            real(src, dst, dir_fd=dir_fd)
        elif self._by_kernel(lambda: real(src, dst, dir_fd=dir_fd), known) is _NOT_DONE:
            self._changes.new_link(src, known)

    def _made(self, name: str) -> _Action:
        real = getattr(os, name)
        return lambda known, *args, **kwargs: real(self._changes.make_way(known), *args, **kwargs)

    def _brought(self, name: str) -> _Action:
        real = getattr(os, name)
        return lambda known, *args, **kwargs: real(self._changes.bring(known), *args, **kwargs)

    def _read(self, name: str) -> _Action:
        real = getattr(os, name)
        return lambda known, *args, **kwargs: real(self._changes.place(known), *args, **kwargs)

    def _entered(self, known: str) -> None:
        """Where it really is, if it is there: other programs are started in it."""
        place = self._changes.place(known)
        real = place != known and os.path.isdir(known) and os.path.isdir(place)
        os.chdir(known if real else place)

    def _scanned(self, real: _Action, path: Any = ".") -> Any:
        known = None if isinstance(path, int) else self._changes.known(path or ".")
        if known is None or not self._changes.concerns(known):
            return real(path)
        return _Entries(os.fsdecode(path or "."), known, self._changes)

    def _opened(self) -> _Action:
        """Python's `open`, which asks for the number of a file."""
        real, number = builtins.open, self._of_os()["open"]

        def open_file(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: str | None = None,
            errors: str | None = None,
            newline: str | None = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            writes = any(sign in mode for sign in "wax+")
            looked_after = writes or not self._changes.is_empty
            if opener is None and looked_after and not isinstance(file, int):
                opener = _with_mode(number)
            return real(file, mode, buffering, encoding, errors, newline, closefd, opener)

        return open_file

    def _connected(self, real: _Action) -> _Action:
        """Databases of SQLite, which opens files itself."""

        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            text = os.fsdecode(database) if isinstance(database, (str, bytes, os.PathLike)) else ""
            if text in ("", ":memory:") or kwargs.get("uri") or self._after_kernel:
                return real(database, *args, **kwargs)
            with self._inside():
                known = self._changes.known(text)
                if known is not None:
                    exists = self._changes.exists(known)
                    bring = self._changes.bring if exists else self._changes.make_way
                    database = bring(known)
                return real(database, *args, **kwargs)

        return connect


class _Instead:
    """A module, with some functions in place of its own."""

    def __init__(self, real: Any, **own: Any) -> None:
        self.__dict__.update(own)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _with_mode(number: _Action) -> _Action:
    return lambda path, flags: number(path, flags, 0o666)


class _Entries:
    """What os.scandir gives, of a folder with changes."""

    def __init__(self, path: str, known: str, changes: Changes) -> None:
        names = changes.names_in(known)
        places = [changes.place(os.path.join(known, name)) for name in names]
        paths = [os.path.join(path, name) for name in names]
        self._entries = iter([_Entry(*one) for one in zip(names, paths, places)])

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter([])


class _Entry:
    """As os.DirEntry. `place`: where it really is."""

    def __init__(self, name: str, path: str, place: str) -> None:
        self.name, self.path = name, path
        self._own = os.lstat(place)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path) if follow_symlinks and self.is_symlink() else self._own

    def inode(self) -> int:
        return self._own.st_ino

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._own.st_mode)

    def is_junction(self) -> bool:
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks)

    def _is(self, kind: Callable[[int], bool], follow_symlinks: bool) -> bool:
        try:
            return kind(self.stat(follow_symlinks=follow_symlinks).st_mode)
        except OSError:
            return False  # a link to nothing
