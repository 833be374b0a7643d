"""Writes files into a folder that other users may have been to: no link is followed, no fifo is
waited for, and a file is there whole or not at all.

The folder is opened anew for each file and held for no longer. A daemon closes all its files, and
one that was held would then be a file of the program. Plain Python 3.7, with nothing else needed.
"""

import fcntl
import itertools
import os
import resource
import stat

_close = os.close  # what a program closes may be another function (plimsoll_signals.py)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
_MODE = 0o666  # less the umask
# open() takes the lowest free number. Programs rely on that, and close what they did not open.
_HIGHEST_NUMBER = 1024
_NUMBERS_OF_OURS = 64
_numbers = itertools.count(1)


def high(file):
    """The same open file under a number that no file of the program gets. Closes the given one."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or limit > _HIGHEST_NUMBER:
        limit = _HIGHEST_NUMBER
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, max(limit - _NUMBERS_OF_OURS, 3))
    finally:
        _close(file)


def replace(path, save):
    """Writes a file by `save(file)` and then gives it its name. Its size in bytes."""
    folder, name = os.path.split(os.path.abspath(path))
    at = high(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
    try:
        return _replace(at, name, save)
    finally:
        _close(at)


def _new(folder, name):
    """A file that nobody else has made, and its name."""
    while True:
        part = "%s.%d-%d.part" % (name, os.getpid(), next(_numbers))
        try:
            return os.open(part, _NEW, _MODE, dir_fd=folder), part
        except FileExistsError:
            continue


def _replace(folder, name, save):
    number, part = _new(folder, name)
    try:
        with os.fdopen(high(number), "wb") as file:
            save(file)
            size = file.tell()
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        return size
    except BaseException:
        # A full disk: half a file would take more of it.
        if part in os.listdir(folder):
            os.unlink(part, dir_fd=folder)
        raise


class Folder:
    """The folder of a record. Each use checks that it still is one which only its owner, or members
    of its group, can change: by a umask of 002 groups of one person can write to what they make."""

    def __init__(self, path):
        self.path = path

    def make(self):
        os.makedirs(self.path, mode=0o700, exist_ok=True)

    def check(self):
        """Raises OSError where nothing may be written here."""
        _close(self._open())

    def inside(self, name):
        """A folder in this one, made if it is not there."""
        with _Opened(self._open()) as folder:
            try:
                os.mkdir(name, 0o700, dir_fd=folder)
            except FileExistsError:
                pass
        return Folder(os.path.join(self.path, name))

    def create(self, name):
        """A file that was not there: FileExistsError otherwise."""
        with _Opened(self._open()) as folder:
            _close(os.open(name, _NEW, _MODE, dir_fd=folder))

    def replace(self, name, save):
        """Writes a file by `save(file)` and then gives it its name. Its size in bytes."""
        with _Opened(self._open()) as folder:
            return _replace(folder, name, save)

    def replace_text(self, name, text):
        self.replace(name, lambda file: file.write(text.encode("utf-8", "replace")))

    def append(self, name, data):
        """In one write, so that lines of several processes stay whole."""
        with _Opened(self._open()) as folder:
            with _Opened(high(os.open(name, _APPEND, _MODE, dir_fd=folder))) as file:
                found = os.fstat(file)
                # A second name of a file, which another user may have given it.
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                    os.write(file, data)

    def move(self, name, into, as_name):
        """Into another folder."""
        with _Opened(self._open()) as folder, _Opened(into._open()) as there:
            os.replace(name, as_name, src_dir_fd=folder, dst_dir_fd=there)

    def remove(self, name):
        with _Opened(self._open()) as folder:
            os.unlink(name, dir_fd=folder)

    def _open(self):
        link = os.lstat(self.path)
        path = self.path
        if stat.S_ISLNK(link.st_mode) and link.st_uid == os.geteuid():
            path = os.path.realpath(path)
        try:
            folder = high(os.open(path, _FOLDER))
        except NotADirectoryError:
            raise OSError("%s is no folder, or another user's link" % self.path) from None
        why_not = _why_not(folder)
        if why_not:
            _close(folder)
            raise OSError("%s %s" % (self.path, why_not))
        return folder


def _why_not(folder):
    """Why nothing may be written into an open folder; None where it may."""
    found = os.fstat(folder)
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return "can be written by every user"
    if found.st_uid not in (os.geteuid(), 0) and found.st_uid != _owner_of_new(folder):
        return "belongs to another user"
    return None


def _owner_of_new(folder):
    """Network file systems may give whatever is made to one user (root_squash)."""
    try:
        file, name = _new(folder, "owner")
    except OSError:
        return None
    try:
        return os.fstat(file).st_uid
    finally:
        _close(file)
        os.unlink(name, dir_fd=folder)


class _Opened:
    def __init__(self, file):
        self._file = file

    def __enter__(self):
        return self._file

    def __exit__(self, *_):
        _close(self._file)
