"""Parts of the program's answers as plain data, and how they are read from a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Range:
    """Of a predicted figure, in bytes."""

    low: int
    best: int
    high: int


@dataclass(frozen=True)
class Holder:
    """Who holds memory at the instant that an answer is about."""

    where: str
    module: str
    category: str
    bytes: int
    count: int


@dataclass(frozen=True)
class Remedy:
    """What to change. `saves` is None where no figure can be given, and an upper bound with
    `at_most`; `basis` says how it is known."""

    change: str
    saves: int | None
    at_most: bool
    basis: str
    costs: str
    code: list[str]


@dataclass(frozen=True)
class Finding:
    """A cause, with its evidence. What would make it worse is in the document alone."""

    id: str
    severity: str
    title: str
    evidence: list[str]
    remedies: list[Remedy]


@dataclass(frozen=True)
class PlannedWay:
    """One way of a plan.

    `changes` is in words, `levers` as `plimsoll.apply` sets them, `code` to be typed. `device` is
    the likely figure in bytes; its upper end is None where it was not asked for.
    """

    batch: int
    passes: int
    samples_per_second: float
    step_seconds: float
    device: int
    device_at_most: int | None
    surely_fits: bool
    numerics: str
    changes: list[str]
    levers: dict[str, str]
    code: list[str]


def range_of(of: Mapping[str, Any]) -> Range:
    return Range(**_named(Range, of))


def account_of(of: Mapping[str, Any]) -> dict[str, int]:
    return {line["what"]: line["bytes"] for line in of["account"]}


def holders_of(of: Mapping[str, Any]) -> list[Holder]:
    return [Holder(**_named(Holder, one)) for one in of["holders"]]


def _named(kind: type[Any], of: Mapping[str, Any]) -> dict[str, Any]:
    """What the document has under the names of the fields."""
    return {field.name: of[field.name] for field in fields(kind)}


def finding_of(of: Mapping[str, Any]) -> Finding:
    remedies = [Remedy(**_named(Remedy, one)) for one in of["remedies"] if not one["avoid"]]
    return Finding(of["id"], of["severity"], of["title"], list(of["evidence"]), remedies)


def way_of(of: Mapping[str, Any]) -> PlannedWay:
    return PlannedWay(
        of["batch"],
        of["passes"],
        of["samples_per_second"],
        of["step_us"] / 1e6,
        of["device"]["best"],
        of["device"]["high"],
        of["surely_fits"],
        of["numerics"],
        [lever["words"] for lever in of["levers"]],
        dict(of["set"]),
        [line for lever in of["levers"] for line in lever["code"]],
    )
