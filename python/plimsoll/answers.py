"""What the program answers, as objects: the main figures are attributes, `.document` is all of it
(docs/json.md), `str()` is what the program prints in a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from . import answer_html
from .errors import ProgramError
from .program import Answered


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


class Answer:
    """An answer of the program."""

    schema: ClassVar[str]

    def __init__(self, answered: Answered) -> None:
        self.document = answered.document
        self.text = answered.text
        #: Files that could not be used, a line each; the answer is about the others.
        self.problems = answered.problems
        if self.document.get("schema") != self.schema:
            raise ProgramError(
                f"the program answered with {self.document.get('schema')!r} "
                f"instead of {self.schema!r}"
            )

    def write(self, path: str | os.PathLike[str]) -> None:
        """The document, as JSON."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.document, file, indent=1)
            file.write("\n")

    def __str__(self) -> str:
        return self.text.rstrip("\n")

    def __repr__(self) -> str:
        return str(self)


class Explanation(Answer):
    """Why a job ran out of memory, or what its peak is made of."""

    schema = "plimsoll.explain/1"

    @property
    def verdict(self) -> str:
        return str(self.document["verdict"])

    @property
    def rank(self) -> dict[str, Any]:
        """What the document holds of the rank that the verdict is about."""
        shown: dict[str, Any] = self.document["ranks"][self.document["shown"]]
        return shown

    @property
    def out_of_memory(self) -> bool:
        """Whether a rank ran out of memory and did not go on."""
        return any(oom["fatal"] for rank in self.document["ranks"] for oom in rank["ooms"])

    @property
    def peak_allocated(self) -> int | None:
        """Bytes; None where the record does not say, as an error text."""
        found: int | None = self.rank["peak_allocated"]
        return found

    @property
    def peak_reserved(self) -> int | None:
        """Bytes; None where the record does not say."""
        found: int | None = self.rank["peak_reserved"]
        return found

    @property
    def account(self) -> dict[str, int]:
        """Bytes by what they are for, at the out-of-memory or the peak."""
        return _account(self.rank)

    @property
    def holders(self) -> list[Holder]:
        """The largest first."""
        return _holders(self.rank)

    @property
    def findings(self) -> list[Finding]:
        """The gravest first."""
        return [_finding(finding) for finding in self.document["findings"]]

    def _repr_html_(self) -> str:
        return answer_html.explanation(self)


class Prediction(Answer):
    """How much memory a training step will need."""

    schema = "plimsoll.predict/1"

    @property
    def fits(self) -> bool:
        return bool(self.document["fits"])

    @property
    def surely_fits(self) -> bool:
        """Also with the upper end of the range."""
        return bool(self.document["surely_fits"])

    @property
    def batch(self) -> int:
        """The batch that the figures are about."""
        return int(self.document["batch"])

    @property
    def gpu(self) -> str:
        return str(self.document["gpu"])

    @property
    def room(self) -> int:
        """What PyTorch can get of the card, or the limit."""
        return int(self.document["room"])

    @property
    def allocated(self) -> Range:
        return _range(self.document["ranges"]["allocated"])

    @property
    def reserved(self) -> Range:
        """What PyTorch will hold from the driver at most."""
        return _range(self.document["ranges"]["reserved"])

    @property
    def device(self) -> Range:
        """Reserved, and what lies outside of PyTorch: as `nvidia-smi` shows it."""
        return _range(self.document["ranges"]["device"])

    @property
    def step_seconds(self) -> float | None:
        """An estimate; None where there is none, as for recorded runs."""
        found = int(self.document["step_us"])
        return found / 1e6 if found else None

    @property
    def samples_per_second(self) -> float | None:
        samples = self.batch * int(self.document.get("passes", 1))
        return samples / self.step_seconds if self.step_seconds else None

    @property
    def max_batch(self) -> int | None:
        """The largest that may fit; None unless it was asked for."""
        found: int | None = self.document["max_batch"]
        return found

    @property
    def safe_max_batch(self) -> int | None:
        """The largest that fits for certain; None unless it was asked for, 0: none does."""
        found: int | None = self.document["safe_max_batch"]
        return found

    @property
    def account(self) -> dict[str, int]:
        """Bytes by what they are for, at the peak; they add up to `device.best`."""
        return _account(self.document)

    @property
    def holders(self) -> list[Holder]:
        return _holders(self.document)

    @property
    def assumptions(self) -> list[str]:
        return list(self.document["assumptions"])

    def _repr_html_(self) -> str:
        return answer_html.prediction(self)


class Plan(Answer):
    """What to change so that a training step fits, and the fastest way."""

    schema = "plimsoll.plan/1"

    @property
    def ways(self) -> list[PlannedWay]:
        """Those that fit for certain, the fastest first."""
        return [_way(way) for way in self.document["ways"]]

    @property
    def best(self) -> PlannedWay | None:
        """The fastest that fits for certain; None if nothing does."""
        return self.ways[0] if self.ways else None

    @property
    def closest(self) -> PlannedWay | None:
        """Where nothing fits for certain: what takes least."""
        found = self.document["closest"]
        return _way(found) if found else None

    @property
    def as_captured(self) -> PlannedWay:
        return _way(self.document["as_captured"])

    @property
    def smallest_card(self) -> str | None:
        """Where nothing fits for certain: the smallest card that would hold it."""
        found: str | None = self.document["smallest_card"]
        return found

    @property
    def gpu(self) -> str:
        return str(self.document["gpu"])

    def _repr_html_(self) -> str:
        return answer_html.plan(self)


def _range(of: Mapping[str, Any]) -> Range:
    return Range(**_named(Range, of))


def _account(of: Mapping[str, Any]) -> dict[str, int]:
    return {line["what"]: line["bytes"] for line in of["account"]}


def _holders(of: Mapping[str, Any]) -> list[Holder]:
    return [Holder(**_named(Holder, one)) for one in of["holders"]]


def _named(kind: type[Any], of: Mapping[str, Any]) -> dict[str, Any]:
    """What the document has under the names of the fields."""
    return {field.name: of[field.name] for field in fields(kind)}


def _finding(of: Mapping[str, Any]) -> Finding:
    remedies = [Remedy(**_named(Remedy, one)) for one in of["remedies"] if not one["avoid"]]
    return Finding(of["id"], of["severity"], of["title"], list(of["evidence"]), remedies)


def _way(of: Mapping[str, Any]) -> PlannedWay:
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
