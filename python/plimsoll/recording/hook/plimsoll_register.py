"""The register of runs that are under way, in which `plimsoll watch` looks: a link for each, named
by its process, to the folder in which its processes report. src/launch/live.cc reads it."""

import os
import stat

_OTHERS = 0o077


def _places():
    own = os.environ.get("PLIMSOLL_RUNS")
    if own:
        return [own]
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    found = [os.path.join(session, "plimsoll")] if session.startswith("/") else []
    return found + [
        "/run/user/%d/plimsoll" % os.geteuid(),
        "/tmp/plimsoll-%d" % os.geteuid(),
    ]


def _is_owners_alone(place):
    found = os.lstat(place)
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & _OTHERS
    )


def enter(folder):
    """The entry that was made; None where none could be."""
    for place in _places():
        try:
            os.makedirs(place, mode=0o700, exist_ok=True)
            if not _is_owners_alone(place):
                continue
            entry = os.path.join(place, str(os.getpid()))
            if os.path.lexists(entry):
                os.unlink(entry)  # of a run that was killed and had the same number
            os.symlink(folder, entry)
            return entry
        except OSError:
            continue
    return None


def leave(entry, pid):
    try:
        if os.getpid() == pid:
            os.unlink(entry)
    except OSError:
        pass
