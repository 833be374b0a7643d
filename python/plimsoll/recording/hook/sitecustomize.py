"""What `plimsoll run` puts into every Python process of a job, by PYTHONPATH alone. What it does
there is in plimsoll_begin.py."""

import os
import sys


def _begin():
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        __import__("plimsoll_begin").begin()
    except Exception:
        pass  # the program must not notice
    # The program's own path is as it would be; PYTHONPATH still reaches its children.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]


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


_begin()
_run_next()
