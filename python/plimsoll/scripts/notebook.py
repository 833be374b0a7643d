"""The code of a notebook (.ipynb), run cell by cell as Jupyter would, without what only Jupyter
understands. A place in it is told as "train.ipynb cell 3:7": the cell and its line.
"""

from __future__ import annotations

import ast
import builtins
import json
import linecache
import os
import re
import sys
import types
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

from ..base.errors import CaptureError

ENDING = ".ipynb"
#: `%%time` stands above code that runs; what stands below others is text, or another language.
_ABOVE_CODE = ("%%time", "%%timeit", "%%capture", "%%prun")
_MAGIC = re.compile(r"^(\s*)(?:%|!|\?|.*\?\s*$)")
_TAKES_MAGIC = re.compile(r"^(\s*[\w, ]+=\s*)(?:%|!).*$")


class Cell(NamedTuple):
    #: As Jupyter numbers what it has run from top to bottom.
    name: str
    source: str


def is_notebook(path: str) -> bool:
    return path.endswith(ENDING)


def cells_of(path: str) -> list[Cell]:
    """Those with code, counted with all others from 1 on."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        sheets = document.get("worksheets") or [document]
        cells = [cell for sheet in sheets for cell in sheet["cells"]]
        return list(_with_code(cells, os.path.basename(path)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CaptureError(
            f"{path} is no notebook", hint="Save it in Jupyter, or give a script"
        ) from error


def _with_code(cells: list[Any], name: str) -> Iterator[Cell]:
    for number, cell in enumerate(cells, 1):
        source = cell.get("source", cell.get("input", ""))
        if cell["cell_type"] == "code":
            text = source if isinstance(source, str) else "".join(source)
            yield Cell(f"{name} cell {number}", without_magics(text))


def without_magics(source: str) -> str:
    """With the same lines. `x = !ls` makes an empty list."""
    lines = source.split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if lines[first].startswith("%%"):
        if not lines[first].startswith(_ABOVE_CODE):
            return ""
        lines[first] = ""
    if _is_python("\n".join(lines)):
        return "\n".join(lines)
    return "\n".join(_MAGIC.sub(r"\1pass  # ", _TAKES_MAGIC.sub(r"\1[]", line)) for line in lines)


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


def run_notebook(path: str, code_of: Callable[[bytes, str], types.CodeType | None]) -> None:
    """`code_of`: a cell as it is to be run, by its source and name; None where it is as it is."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    builtins.__dict__.setdefault("display", lambda *args, **kwargs: None)
    builtins.__dict__.setdefault("get_ipython", _Shell)
    for cell in cells_of(path):
        source = cell.source.encode()
        lines = cell.source.splitlines(keepends=True)
        # For whoever asks for the text of a function.
        linecache.cache[cell.name] = (len(source), None, lines, cell.name)
        exec(code_of(source, cell.name) or compile(source, cell.name, "exec"), main.__dict__)


class _Shell:
    """What a notebook asks of Jupyter, and does not get."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None
