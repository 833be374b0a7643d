"""Waits for torch in a Python process of a job, and then loads plimsoll_recorder.py from its own
folder. Of `plimsoll run`, which comes by PYTHONPATH (sitecustomize.py), and of an environment with
`plimsoll hook install` (plimsoll_site.py).

A process that never imports torch pays for one more look at each import. Whatever goes wrong here
is a line in the run's log: the user's program must not notice.
"""

import os
import sys
from _thread import get_ident

_HERE = os.path.dirname(os.path.abspath(__file__))


class Run:
    """Where a process records to."""

    def __init__(self, folder, hook):
        self.folder = folder
        self.hook = hook  # the folder of `plimsoll run` for what it asks of its processes, or None

    def log(self, text):
        try:
            line = "process %d: %s\n" % (os.getpid(), text)
            folder = self.load("plimsoll_files").Folder(self.folder)
            folder.append("log.txt", line.encode("utf-8", "replace"))
        except Exception:
            pass

    def load(self, name):
        """Another file of the hook, which is not on the program's path."""
        if sys.modules.get(name):
            return sys.modules[name]
        from importlib import util

        spec = util.spec_from_file_location(name, os.path.join(_HERE, name + ".py"))
        module = util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    def attach(self, torch):
        try:
            self.load("plimsoll_recorder").attach(torch, self)
        except Exception as error:
            self.log("nothing is recorded: %s: %s" % (type(error).__name__, error))


class _TorchFinder:
    """Finds torch as the others do, and calls us once its module has run."""

    def __init__(self, run):
        self._run = run
        self._asking = set()

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or get_ident() in self._asking:
            return None
        self._asking.add(get_ident())
        try:
            return self._find(name, path, target)
        except Exception as error:
            self._run.log("torch could not be watched: %s" % error)
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
            self._run.attach(module)

        loader.exec_module = exec_module


class _PackageFinder:
    """Finds the package `plimsoll` inside the program where it is not installed: a script with
    `plimsoll.apply` in it, which was predicted with that very package, trains as well."""

    def __init__(self, run):
        self._run = run

    def find_spec(self, name, path=None, target=None):
        if name != "plimsoll":
            return None
        from importlib.machinery import PathFinder

        try:
            return PathFinder.find_spec(name, [self._unpacked()])
        except Exception as error:
            self._run.log("the package could not be unpacked: %s" % error)
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


def begin():
    """Once in a process, whoever comes first."""
    folder = os.environ.get("PLIMSOLL_RUN", "")
    # A run inside a run: the inner one records, and its variables are those of the environment.
    if not folder or getattr(sys, "_plimsoll_run", None):
        return
    sys._plimsoll_run = folder
    # Lets torch (2.10 and newer) keep what the nodes of its compiled graphs are called; so spelled.
    os.environ.setdefault("TORCH_ENRICH_RPOFILER_STACK_TRACE", "1")
    run = Run(os.path.abspath(folder), os.environ.get("PLIMSOLL_RUN_HOOK") or None)
    try:
        if run.hook:
            # Behind all others: an installed one comes first.
            sys.meta_path.append(_PackageFinder(run))
        if "torch" in sys.modules:
            run.attach(sys.modules["torch"])
        else:
            sys.meta_path.insert(0, _TorchFinder(run))
    except Exception as error:
        run.log("nothing is recorded: %s" % error)
