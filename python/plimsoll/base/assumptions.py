"""What the user says of values that a capture does not have: `routing=skewed:3,mask=0.25`.

The one place in Python that reads it; `src/launch/assumptions.cc` reads the same for the program.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Callable

from .errors import CaptureError
from .notes import Note, Notes

_FORMS = (
    "routing=balanced, routing=skewed:F (F from 1 on), routing=worst, "
    "mask=SHARE, outliers=SHARE (0 to 1)"
)
_NUMBER = re.compile(r"\d+(\.\d+)?", re.ASCII)
#: As many as a float keeps.
_MOST_DIGITS = 15
_WORST = math.inf


@dataclass(frozen=True)
class Assumptions:
    """What is not stated is None."""

    #: How many times its share the busiest expert gets, as far as there are tokens.
    skew: float | None = None
    #: How much a mask selects of which nothing is known.
    mask: float | None = None
    #: Of the columns that go into layers in 8 bits: those that are kept in 16.
    outliers: float | None = None
    #: What stated them, as notes name it.
    by: str = "`assume`"

    def note_mask(self, note: Note) -> None:
        note(self._of_mask())

    def note_routing(self, note: Note) -> None:
        note(self._of_routing())

    def note_outliers(self, note: Note) -> None:
        note(self._of_outliers())

    def note_unused(self, notes: Notes) -> None:
        """At the end: a user who states something should hear that it made no difference."""
        if self.mask is not None and self._of_mask() not in notes.texts:
            notes(
                f"what {self.by} says of masks changed nothing: no size was seen to depend on one "
                "whose values are not known"
            )
        if self.skew is not None and self._of_routing() not in notes.texts:
            notes(
                f"what {self.by} says of the routing changed nothing: no size was seen to depend "
                "on a choice among experts"
            )
        if self.outliers is not None and self._of_outliers() not in notes.texts:
            notes(f"what {self.by} says of outliers changed nothing: no layer in 8 bits was seen")

    def _of_outliers(self) -> str:
        if self.outliers is None:
            return (
                "what goes into layers in 8 bits is taken to have no outliers (values beyond the "
                "threshold): the columns that have some are kept in 16 bits too"
            )
        share = 100 * self.outliers
        return (
            f"{share:g} % of the columns that go into layers in 8 bits are taken to have outliers, "
            f"as {self.by} says"
        )

    def _of_mask(self) -> str:
        share = 100 * (self.mask or 0.0)
        return f"masks are taken to select {share:g} % of their elements, as {self.by} says"

    def _of_routing(self) -> str:
        if self.skew == _WORST:
            return f"one expert is taken to get every token, as {self.by} says"
        return (
            f"the busiest expert is taken to get {self.skew:g} times its share (every token at "
            f"most) and the others the rest in equal parts, as {self.by} says"
        )


def parse_assumptions(text: str, by: str = "`assume`") -> Assumptions:
    """Of parts with commas between them, each of which may stand there once."""
    if not isinstance(text, str):
        raise _refused(f"{by} is {text!r}")
    found: dict[str, float | None] = {}
    for part in text.split(",") if text else []:
        name, _, value = part.partition("=")
        read = _READERS.get(name)
        if read is None:
            raise _refused(f"{by} is {text!r}, and nothing can be assumed of {part!r}")
        if name in found:
            raise _refused(f"{by} is {text!r}, which says twice what {name} is")
        found[name] = read(value, by)
    return Assumptions(found.get("routing"), found.get("mask"), found.get("outliers"), by)


def _routing(value: str, by: str) -> float | None:
    kind, colon, factor = value.partition(":")
    if kind == "skewed" and colon:
        number = _number(factor)
        if number is not None and number >= 1:
            return number
    elif not colon and kind in ("balanced", "worst"):
        return None if kind == "balanced" else _WORST
    raise _refused(f"{by} has the routing {value!r}")


def _share(of: str) -> Callable[[str, str], float]:
    def read(value: str, by: str) -> float:
        number = _number(value)
        if number is None or number > 1:
            raise _refused(f"{by} has the {of} {value!r}")
        return number

    return read


def _number(text: str) -> float | None:
    short = len(text) <= _MOST_DIGITS
    return float(text) if short and _NUMBER.fullmatch(text) else None


def _refused(what: str) -> CaptureError:
    return CaptureError(what, hint=f"Give one or more of these, with commas: {_FORMS}")


_READERS: dict[str, Callable[[str, str], float | None]] = {
    "routing": _routing,
    "mask": _share("mask"),
    "outliers": _share("outliers"),
}
NOTHING_STATED = Assumptions()
