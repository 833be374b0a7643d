"""Puts the hook into the environment of the Python that runs this, looks for it, or takes it out:
plimsoll_install.py install|status|remove [FILE], as `plimsoll hook` calls it. Plain Python 3.7."""

import os
import shutil
import site
import sys
import sysconfig

_HERE = os.path.dirname(os.path.abspath(__file__))
_NAME = "plimsoll_hook"
# Python runs lines of a .pth that begin with "import"; os is there already.
_LINE = 'import os; os.environ.get("PLIMSOLL_RUN") and __import__("%s")\n' % _NAME
_FILES = {
    "__init__.py": "plimsoll_site.py",
    "plimsoll_begin.py": "plimsoll_begin.py",
    "plimsoll_recorder.py": "plimsoll_recorder.py",
    "plimsoll_history.py": "plimsoll_history.py",
    "plimsoll_signals.py": "plimsoll_signals.py",
    "plimsoll_modules.py": "plimsoll_modules.py",
    "plimsoll_owners.py": "plimsoll_owners.py",
    "plimsoll_objects.py": "plimsoll_objects.py",
    "plimsoll_inside.py": "plimsoll_inside.py",
    "plimsoll_graphs.py": "plimsoll_graphs.py",
    "plimsoll_nameless.py": "plimsoll_nameless.py",
    "plimsoll_register.py": "plimsoll_register.py",
    "plimsoll_files.py": "plimsoll_files.py",
    "plimsoll_work.py": "plimsoll_work.py",
    "plimsoll_status.py": "plimsoll_status.py",
}


class _Refusal(Exception):
    pass


def _environment():
    """The folder that Python looks into for .pth files of this environment."""
    folder = sysconfig.get_paths()["purelib"]
    if not any(os.path.realpath(folder) == os.path.realpath(one) for one in _site_folders()):
        raise _Refusal("%s reads no .pth files from %s" % (sys.executable, folder))
    return folder


def _site_folders():
    own = getattr(site, "getsitepackages", None)
    return own() if own else sys.path  # virtualenv before 20 has a site of its own


def _text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def _state(folder):
    """None where it is not there, else whether it is what this version installs."""
    line = os.path.join(folder, _NAME + ".pth")
    if not os.path.exists(line):
        return None
    try:
        return _text(line) == _LINE and all(
            _text(os.path.join(folder, _NAME, name)) == _text(os.path.join(_HERE, source))
            for name, source in _FILES.items()
        )
    except OSError:
        return False


def install(folder):
    own = os.path.join(folder, _NAME)
    part = "%s.%d.part" % (own, os.getpid())
    try:
        os.mkdir(part)
        for name, source in _FILES.items():
            shutil.copyfile(os.path.join(_HERE, source), os.path.join(part, name))
        _compile(part)
        with open(part + ".pth.part", "w", encoding="utf-8") as file:
            file.write(_LINE)
        # The line last, so that no process imports what is not there.
        shutil.rmtree(own, ignore_errors=True)
        os.rename(part, own)
        os.replace(part + ".pth.part", own + ".pth")
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        if os.path.exists(part + ".pth.part"):
            os.unlink(part + ".pth.part")
        raise _Refusal(
            "%s cannot be written: %s; give a Python of your own with --python, or make a virtual "
            "environment" % (folder, error.strerror)
        ) from None
    _say("installed for %s, in %s" % (sys.executable, folder))
    _say("a process of it records where PLIMSOLL_RUN names a folder, and does nothing otherwise")
    return 0


def _compile(folder):
    """Processes that may not write there would compile it each time."""
    import compileall

    compileall.compile_dir(folder, quiet=2, ddir=_NAME)


def remove(folder):
    if _state(folder) is None and not os.path.exists(os.path.join(folder, _NAME)):
        _say("it was not installed for %s" % sys.executable)
        return 0
    try:
        if os.path.exists(os.path.join(folder, _NAME + ".pth")):
            os.unlink(os.path.join(folder, _NAME + ".pth"))
        shutil.rmtree(os.path.join(folder, _NAME), ignore_errors=True)
    except OSError as error:
        raise _Refusal("%s cannot be changed: %s" % (folder, error.strerror)) from None
    _say("removed from %s" % folder)
    return 0


def status(folder):
    state = _state(folder)
    if state is None:
        _say("not installed for %s" % sys.executable)
        return 1
    _say("installed for %s, in %s" % (sys.executable, folder))
    if not state:
        _say("by another version of plimsoll, or in part: plimsoll hook install makes it whole")
    run = os.environ.get("PLIMSOLL_RUN")
    _say("PLIMSOLL_RUN is %s" % ("not set here: nothing is recorded" if not run else run))
    return 0


def _say(text):
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Nobody reads on (head -1). Python would try again, and complain, at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def main(arguments):
    if len(arguments) > 1:
        # By this file `plimsoll hook` sees that a Python ran, and no other program.
        open(arguments[1], "w").close()
    actions = {"install": install, "status": status, "remove": remove}
    try:
        return actions[arguments[0]](_environment())
    except _Refusal as refusal:
        print("plimsoll: %s" % refusal, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
