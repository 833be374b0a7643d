"""The nineteen scripts edited as `plan` tells, and how each configuration of a plan is started."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts import HERE, Script

Row = dict[str, Any]
#: The package beside these scripts: what `plimsoll run` would bring.
PACKAGE = HERE.parents[1] / "python"


def patched(text: str, patch: str) -> str:
    """By a unified diff of this very text; `patch` is not on every machine."""
    lines, made, at = text.splitlines(True), [], 0
    for line in patch.splitlines(True)[2:]:
        hunk = re.match(r"@@ -(\d+)", line)
        if hunk:
            start = int(hunk[1]) - 1
            made += lines[at:start]
            at = start
        elif line[0] == "+":
            made.append(line[1:])
        else:
            if lines[at] != line[1:]:
                raise ValueError(f"line {at + 1} is {lines[at]!r} and not {line[1:]!r}")
            if line[0] == " ":
                made.append(line[1:])
            at += 1
    return "".join(made + lines[at:])


def write_twin(script: Script, folder: Path) -> Path:
    """The edited script, under its own name."""
    folder.mkdir(parents=True, exist_ok=True)
    twin = folder / f"{script.name}.py"
    twin.write_text(patched(script.path.read_text(), script.edit.read_text()))
    return twin


@dataclass(frozen=True)
class Configuration:
    """One way of a plan, or one made of it."""

    script: Script
    limit: float
    #: first, below or above (in micro-batch), plain (the unedited script).
    role: str
    batch: int
    passes: int
    #: The document that `plimsoll.apply` gets, with this way alone.
    document: Row

    @property
    def name(self) -> str:
        return f"{self.script.name}@{self.limit:.2f}.{self.role}"

    @property
    def way(self) -> Row:
        way: Row = self.document["ways"][0]
        return way

    def same_training(self) -> str:
        """Equal for two configurations that train alike."""
        told = [self.script.name, self.batch, self.passes, self.way["set"]]
        return json.dumps(told, sort_keys=True)

    def arguments(self, batch: str = "") -> list[str]:
        """Of the twin: its loader gives a step, or a micro-batch where it accumulates itself."""
        script = self.script
        if self.role == "plain":
            return [script.flag, str(script.batch)]
        whole = str(self.batch if script.by_pass else self.batch * self.passes)
        own = [script.passes_flag, str(self.passes)] if script.passes_flag else []
        return [script.flag, batch or whole, *own]

    def environment(self, folder: Path) -> dict[str, str]:
        if self.role == "plain":
            return {}
        plan = folder / f"{self.name}.plan.json"
        plan.write_text(json.dumps(self.document))
        told = self.way["set"]
        share = re.search(r"batch/(\d+)", told.get("evaluation", ""))
        setting = {"PYTORCH_CUDA_ALLOC_CONF": told["allocator"]} if "allocator" in told else {}
        return {
            "PLIMSOLL_PLAN": str(plan),
            "PLIMSOLL_WAY": "0",
            "PLIMSOLL_EVALUATION": share[1] if share else "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGE), os.getenv("PYTHONPATH")])),
            **setting,
        }


def configurations(script: Script, out: Path, plan: Row) -> list[Configuration]:
    """The first way of a plan and its neighbours in micro-batch."""
    if not plan.get("ways"):
        return []
    document = json.loads((out / plan["file"]).read_text())
    way = document["ways"][0]
    document = {**document, "ways": [way]}
    first = Configuration(script, plan["limit"], "first", way["batch"], way["passes"], document)
    found = [first]
    divisors = [n for n in range(1, script.samples + 1) if script.samples % n == 0]
    at = divisors.index(first.batch)
    if at > 0:
        found.append(_cut_otherwise(first, "below", divisors[at - 1]))
    if at + 1 < len(divisors):
        found.append(_cut_otherwise(first, "above", divisors[at + 1]))
    return found


def _cut_otherwise(first: Configuration, role: str, batch: int) -> Configuration:
    """The same changes, with another micro-batch."""
    passes = first.batch * first.passes // batch
    document = copy.deepcopy(first.document)
    way = document["ways"][0]
    way["batch"], way["passes"] = batch, passes
    way["set"].pop("accumulation", None)
    way["levers"] = [lever for lever in way["levers"] if lever["lever"] != "accumulation"]
    if passes != first.script.accumulation:
        way["set"]["accumulation"] = str(passes)
        value = {"passes": passes}
        way["levers"].append(
            {"lever": "accumulation", "set_to": str(passes), "value": value, "code": []}
        )
    return dataclasses.replace(first, role=role, batch=batch, passes=passes, document=document)


def plain(script: Script, limit: float) -> Configuration:
    document: Row = {"ways": [{"set": {}}]}
    return Configuration(script, limit, "plain", script.batch, script.accumulation, document)
