"""JSON from files of others, within bounds of size and depth."""

from __future__ import annotations

import json
import os
from typing import Any

_LARGEST = 64 << 20
# Python's own parser and whoever walks through the result call themselves for each level.
_DEEPEST = 64


class BadJson(ValueError):
    """Why a text is not taken, in words that follow "it is no JSON:"."""


def read_json_file(path: str | os.PathLike[str]) -> Any:
    """Raises OSError or BadJson."""
    with open(path, "rb") as file:
        return parse_json(file.read(_LARGEST + 1))


def parse_json(text: str | bytes) -> Any:
    """Raises BadJson."""
    if len(text) > _LARGEST:
        raise BadJson(f"it is larger than {_LARGEST >> 20} MiB")
    try:
        document = json.loads(text)
    except RecursionError:
        raise BadJson(f"it is nested more than {_DEEPEST} levels deep") from None
    except ValueError as error:  # UnicodeDecodeError is one
        raise BadJson(str(error)) from None
    _check_depth(document)
    return document


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(_DEEPEST):
        level = [
            part
            for value in level
            if isinstance(value, (dict, list))
            for part in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise BadJson(f"it is nested more than {_DEEPEST} levels deep")
