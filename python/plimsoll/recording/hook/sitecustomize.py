"""What `plimsoll run` puts into every Python process of a job, by PYTHONPATH alone.

It waits for torch to be imported, and then loads plimsoll_recorder.py from its own folder. A
process that never imports torch pays for one more look at each import. Whatever goes wrong here is
a line in the run's log: the user's program must not notice.
"""

import os
import sys
from _thread import get_ident

_HERE = os.path.dirname(os.path.abspath(__file__))
_RUN = os.environ.get("PLIMSOLL_RUN", "")
# Lets torch (2.10 and newer) keep what the nodes of its compiled graphs are called; so spelled.
os.environ.setdefault("TORCH_ENRICH_RPOFILER_STACK_TRACE", "1")


def _log(text):
    try:
        # One write each, at the end, so that the lines of several processes stay whole.
        with open(os.path.join(_RUN, "log.txt"), "ab", buffering=0) as log:
            log.write(("process %d: %s\n" % (os.getpid(), text)).encode("utf-8", "replace"))
    except Exception:
        pass


def _load(name):
    """Another file of the hook, which is not on the program's path."""
    from importlib import util

    spec = util.spec_from_file_location(name, os.path.join(_HERE, name + ".py"))
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _attach(torch):
    try:
        _load("plimsoll_recorder").attach(torch, _RUN, _log, _load)
    except Exception as error:
        _log("nothing is recorded: %s: %s" % (type(error).__name__, error))


class _TorchFinder:
    """Finds torch as the others do, and calls us once its module has run."""

    def __init__(self):
        self._asking = set()

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or get_ident() in self._asking:
            return None
        self._asking.add(get_ident())
        try:
            return self._find(name, path, target)
        except Exception as error:
            _log("torch could not be watched: %s" % error)
            return None
        finally:
            self._asking.discard(get_ident())

    def _find(self, name, path, target):
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                self._watch(spec.loader)
                return spec
        return None

    def _watch(self, loader):
        # On this one loader, whose type stays what others expect of it.
        execute = loader.exec_module

        def exec_module(module):
            loader.__dict__.pop("exec_module", None)
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _attach(module)

        loader.exec_module = exec_module


class _PackageFinder:
    """Finds the package `plimsoll` inside the program where it is not installed: a script with
    `plimsoll.apply` in it, which was predicted with that very package, trains as well."""

    def find_spec(self, name, path=None, target=None):
        if name != "plimsoll":
            return None
        from importlib.machinery import PathFinder

        try:
            return PathFinder.find_spec(name, [self._unpacked()])
        except Exception as error:
            _log("the package could not be unpacked: %s" % error)
            return None

    def _unpacked(self):
        folder = os.path.join(_HERE, "package")
        if not os.path.isdir(folder):
            import zipfile

            # Several processes may do so at a time: each renames what is whole.
            own = "%s.%d" % (folder, os.getpid())
            with zipfile.ZipFile(folder + ".zip") as archive:
                archive.extractall(own)
            try:
                os.rename(own, folder)
            except OSError:
                if not os.path.isdir(folder):
                    raise
        return folder


def _run_next():
    """The sitecustomize that Python would have imported without us."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    # What it raises is reported by Python, as it would be without us.
    spec.loader.exec_module(module)


def _begin():
    # A run inside a run: the inner one records, and its variables are those of the environment.
    if not _RUN or getattr(sys, "_plimsoll_run", None):
        return
    sys._plimsoll_run = _RUN
    # Behind all others: an installed one comes first.
    sys.meta_path.append(_PackageFinder())
    if "torch" in sys.modules:
        _attach(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, _TorchFinder())


try:
    # The program's own path is as it would be; PYTHONPATH still reaches its children.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    _begin()
except Exception as _error:
    _log("nothing is recorded: %s" % _error)
_run_next()
