"""Sizes and shares: as people write them, and as the program prints them."""

from __future__ import annotations

import re
from typing import Union

Size = Union[int, str]

_BINARY = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS = {**_BINARY, **_DECIMAL}


def size(of: Size) -> int:
    """Bytes of "6 GiB", "500MB" or a whole number of bytes."""
    if isinstance(of, int) and not isinstance(of, bool) and of >= 0:
        return of
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*", str(of))
    unit = _UNITS.get(found.group(2).lower()) if found else None
    if found is None or unit is None:
        raise ValueError(f"{of!r} is no size: write 6GiB or 500MiB, or a number for bytes")
    return round(float(found.group(1)) * unit)


def whole_number(text: str) -> int | None:
    """From 0 on, in the digits of ASCII: "²" is a digit to Python, and no number."""
    short = text.isascii() and text.isdigit() and len(text) <= 18
    return int(text) if short else None


def share(text: str) -> float:
    """0.05 of "5%"."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if found is None:
        raise ValueError(f"{text!r} is no share: write 5%")
    return float(found.group(1)) / 100


def shown(count: int) -> str:
    """As "6.00 GiB"."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(count) >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} B"
