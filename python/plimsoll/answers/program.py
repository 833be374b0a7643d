"""The `plimsoll` program: where it is, and what it answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..base.errors import ProgramError

NAME = "plimsoll"


class Answered(NamedTuple):
    """One question, answered as a document and as text."""

    document: dict[str, Any]
    text: str
    #: Files that could not be used while others could, a line each.
    problems: list[str]


def find() -> str:
    """The program: the one that $PLIMSOLL names, the one that was installed with this Python, or
    the one on the PATH."""
    named = os.environ.get("PLIMSOLL")
    if named:
        if shutil.which(named) is None:
            raise ProgramError(
                f"PLIMSOLL names {named}, which is no program",
                hint="Give the path of the plimsoll program, or unset the variable",
            )
        return named
    scripts = {sysconfig.get_path("scripts"), str(Path(sys.executable).parent)}
    found = shutil.which(NAME, path=os.pathsep.join(sorted(scripts))) or shutil.which(NAME)
    if found is None:
        raise ProgramError(
            "the plimsoll program is neither beside this Python nor on the PATH",
            hint="Install it (pip install . in its repository), or name it in the variable "
            "PLIMSOLL",
        )
    return found


def arguments(flags: Mapping[str, Any]) -> list[str]:
    """Flags as the program takes them: max_batch=True is --max-batch, set={"tf32": "on"} is
    --set tf32=on, batches=(8, 16) is --batches 8,16. None and False are left out."""
    made: list[str] = []
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            made.append(flag)
        elif isinstance(value, Mapping):
            for key, setting in value.items():
                made += [flag, f"{key}={setting}"]
        elif isinstance(value, (list, tuple)):
            made += [flag, ",".join(map(str, value))]
        else:
            made += [flag, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return made


def ask(command: str, files: Sequence[str], flags: Mapping[str, Any]) -> Answered:
    """Runs the program for the document and, at the same time, for the text: the files may be
    others a moment later."""
    for name in ("json", "events", "quiet", "help"):
        if flags.get(name):
            raise ProgramError(f"`{name}` is not for here", hint="Use the program in a shell")
    start = [find(), command, *arguments(flags), "--quiet"]
    paths = ["--", *files]
    as_text = _started([*start, *paths])
    as_document = _started([*start, "--json", *paths])
    text, _ = as_text.communicate()
    printed, errors = as_document.communicate()
    lines = [line for line in errors.splitlines() if line.strip()]
    try:
        document = json.loads(printed)
    except ValueError:
        raise ProgramError(_reason(lines, command, as_document.returncode)) from None
    return Answered(document, text, lines)


def _started(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "NO_COLOR": "1"},
    )


def _reason(lines: list[str], command: str, code: int) -> str:
    if lines:
        return "; ".join(line.removeprefix(f"{NAME}: ") for line in lines)
    ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"plimsoll {command} {ended} and said nothing"
