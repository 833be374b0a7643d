"""What the program answers, as objects: the main figures are attributes, `.document` is all of it
(docs/json.md), `str()` is what the program prints in a terminal."""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar

from ..base.errors import ProgramError
from . import answer_html
from .figures import (
    Finding,
    Holder,
    PlannedWay,
    Range,
    account_of,
    finding_of,
    holders_of,
    range_of,
    way_of,
)
from .program import Answered


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
        return account_of(self.rank)

    @property
    def holders(self) -> list[Holder]:
        """The largest first."""
        return holders_of(self.rank)

    @property
    def findings(self) -> list[Finding]:
        """The gravest first."""
        return [finding_of(finding) for finding in self.document["findings"]]

    def _repr_html_(self) -> str:
        return answer_html.explanation(
            self.verdict, self.account, self.findings, self.holders, self.problems
        )


class Prediction(Answer):
    """How much memory a training step will need."""

    schema = "plimsoll.predict/1"

    @property
    def verdict(self) -> str:
        """ "fits", "does_not_fit" or "unknown"."""
        return str(self.document["verdict"])

    @property
    def unknown(self) -> list[dict[str, Any]]:
        """Why it is unknown: what, file and line of each part that was not followed, then the
        figure that decides."""
        return list(self.document["unknown"])

    @property
    def fits(self) -> bool:
        """With the best figures. `verdict` says whether that is certain."""
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
        return range_of(self.document["ranges"]["allocated"])

    @property
    def reserved(self) -> Range:
        """What PyTorch will hold from the driver at most."""
        return range_of(self.document["ranges"]["reserved"])

    @property
    def device(self) -> Range:
        """Reserved, and what lies outside of PyTorch: as `nvidia-smi` shows it."""
        return range_of(self.document["ranges"]["device"])

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
        return account_of(self.document)

    @property
    def holders(self) -> list[Holder]:
        return holders_of(self.document)

    @property
    def assumptions(self) -> list[str]:
        return list(self.document["assumptions"])

    def _repr_html_(self) -> str:
        return answer_html.prediction(
            self.text,
            {
                "allocated at most": self.allocated,
                "reserved at most": self.reserved,
                "on the device": self.device,
            },
            self.account,
            self.holders,
            self.assumptions,
        )


class Plan(Answer):
    """What to change so that a training step fits, and the fastest way."""

    schema = "plimsoll.plan/1"

    @property
    def ways(self) -> list[PlannedWay]:
        """Those that fit for certain, the fastest first."""
        return [way_of(way) for way in self.document["ways"]]

    @property
    def best(self) -> PlannedWay | None:
        """The fastest that fits for certain; None if nothing does."""
        return self.ways[0] if self.ways else None

    @property
    def otherwise(self) -> PlannedWay | None:
        """What is faster and trains otherwise, if anything is."""
        found = self.document["otherwise"]
        return way_of(found) if found else None

    @property
    def closest(self) -> PlannedWay | None:
        """Where nothing fits for certain: what takes least."""
        found = self.document["closest"]
        return way_of(found) if found else None

    @property
    def as_captured(self) -> PlannedWay:
        return way_of(self.document["as_captured"])

    @property
    def smallest_card(self) -> str | None:
        """Where nothing fits for certain: the smallest card that would hold it."""
        found: str | None = self.document["smallest_card"]
        return found

    @property
    def gpu(self) -> str:
        return str(self.document["gpu"])

    def _repr_html_(self) -> str:
        return answer_html.plan(self.text, self.ways)
