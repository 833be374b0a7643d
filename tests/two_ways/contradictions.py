"""What differs between two answers to one question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from program import Answer


@dataclass
class Contradiction:
    kind: str
    first: Answer
    second: Answer
    #: Name, what the first command says, what the second one says.
    figures: list[tuple[str, Any, Any]] = field(default_factory=list)
    remark: str = ""

    def text(self) -> str:
        lines = [f"{self.kind}: two answers to one question"]
        lines += [f"  {answer.command}" for answer in (self.first, self.second)]
        lines += [f"    {name}: {one} and {other}" for name, one, other in self.figures[:12]]
        if len(self.figures) > 12:
            lines.append(f"    and {len(self.figures) - 12} more figures")
        if self.remark:
            lines.append(f"    {self.remark}")
        return "\n".join(lines)


def differing(one: object, other: object, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The leaves of two documents that differ, by their path."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from differing(
                one.get(key), other.get(key), f"{name}.{key}" if name else str(key)
            )
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differing(left, right, f"{name}[{at}]")
    elif one != other:
        yield name, one, other


def compare(
    kind: str, first: Answer, second: Answer, figures: Iterable[tuple[str, Any, Any]]
) -> list[Contradiction]:
    """A contradiction where any of the pairs of figures differ."""
    wrong = [(name, one, other) for name, one, other in figures if one != other]
    return [Contradiction(kind, first, second, wrong)] if wrong else []


def compare_documents(
    kind: str, first: Answer, second: Answer, without: set[str]
) -> list[Contradiction]:
    one = {key: value for key, value in first.document.items() if key not in without}
    other = {key: value for key, value in second.document.items() if key not in without}
    return compare(kind, first, second, differing(one, other))
