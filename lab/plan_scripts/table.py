"""What drive.py found, as markdown: plans beside what was measured, and the clauses of issue 46."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from running import seconds_of_a_step
from scripts import SCRIPTS, Script
from twins import Row, configurations, plain

_GIB = 2**30
_ROLES = ("first", "below", "above")
#: Of the losses, as parts of the plain script's: of the first step, and of all.
_SAME, _ROUNDING, _LATER = 1e-5, 2e-3, 2e-2


@dataclass
class Clause:
    bar: str
    n: int = 0
    misses: list[str] = field(default_factory=list)
    worst: float = 0.0
    #: How the worst is written.
    form: Callable[[float], str] = "{:.2f} %".format

    def add(self, what: str, holds: bool, by: float = 0.0) -> None:
        self.n += 1
        if abs(by) > abs(self.worst):
            self.worst = by
        if not holds:
            self.misses.append(what)

    def line(self) -> str:
        told = "; ".join(self.misses) or "none"
        worst = self.form(self.worst) if self.n else ""
        return f"| {self.bar} | {self.n} | {worst} | {len(self.misses)} | {told} |"


class Found:
    """All rows of a script and a limit."""

    def __init__(self, out: Path, results: Path) -> None:
        self._out = out
        self._rows = list(lines(results))

    def measured(self, training: str, role: str, limit: float) -> Row | None:
        """Of the same training: a neighbour without a limit may have been run for another plan."""
        with_limit = role == "first"
        good = [
            row
            for row in self._rows
            if row["training"] == training
            and (row["role"] == "first") == with_limit
            and (not with_limit or row["limit"] == limit)
        ]
        done = [row for row in good if "error" not in row]
        best = done or good
        return best[-1] if best else None

    def edited(self, script: Script, limit: float) -> Row | None:
        path = self._out / f"{script.name}@{limit:.2f}.edited.json"
        return json.loads(path.read_text()) if path.exists() else None


def lines(path: Path) -> Iterator[Row]:
    if path.exists():
        for line in path.read_text().splitlines():
            yield json.loads(line)


def plans(out: Path) -> Iterator[tuple[Script, Row]]:
    for name, script in SCRIPTS.items():
        path = out / f"{name}.json"
        if path.exists():
            for plan in json.loads(path.read_text())["plans"]:
                yield script, plan


def percent(found: float, told: float) -> float:
    return 100 * (found / told - 1)


def table(out: Path, results: Path) -> int:
    found = Found(out, results)
    equal = Clause("plan equals predict, to the byte", form=lambda _: "")
    leak = Clause("no false leak", form=lambda _: "")
    fits = Clause("never 'does not fit' if one sample a pass fits", form=lambda _: "")
    allocated = Clause("edited as told: allocated within 0.1 %", form="{:+.3f} %".format)
    reserved = Clause("edited as told: reserved within 0.5 %", form="{:+.3f} %".format)
    trained = Clause("first trained within the limit", form=lambda _: "")
    memory = Clause("first: reserved, measured beside predicted (no bar)", form="{:+.2f} %".format)
    losses = Clause("losses as said", form="{:.1e} of the loss".format)
    fastest = Clause("first within 5 % of the fastest that fits", form="{:+.1f} %".format)
    print(
        "| script | limit | first | results | reserved, GiB: plan | edited | measured | allocated"
        " | ms: plan | measured | below | above | loss |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for script, plan in plans(out):
        name = f"{script.name}@{plan['limit']:.2f}"
        every = plan.get("ways", []) + plan.get("others", [])
        for way in every:
            words = f"{name} {way['passes']} x {way['batch']}: {'; '.join(way['differs'])[:120]}"
            equal.add(words, not way["differs"])
        grows = bool(plan.get("growth")) or any(way.get("growth") for way in every)
        leak.add(name, not grows)
        one = plan.get("one_sample") or {}
        says_not = plan.get("verdict") == "does_not_fit"
        fits.add(f"{name}: {plan.get('error', '')[:80]}", not (says_not and one.get("fits")))
        if not plan.get("ways"):
            verdict = plan.get("verdict", "error")
            print(f"| {script.name} | {plan['limit']:.2f} | {verdict} |" + " |" * 10)
            continue
        first, *neighbours = configurations(script, out, plan)
        told = plan["ways"][0]
        edited = found.edited(script, plan["limit"])
        captured = (edited or {}).get("captured", {})
        cells = {"edited": ""}
        if edited is not None and "error" in captured:
            reserved.add(f"{name}: {captured['error'][-80:]!r}", False)
            cells["edited"] = "error"
        elif edited is not None:
            cells["edited"] = f"{captured['reserved']['best'] / _GIB:.3f}"
            for clause, what, bar in ((allocated, "allocated", 0.1), (reserved, "reserved", 0.5)):
                by = percent(captured["training"][what], told["training"][what])
                clause.add(f"{name}: {by:+.2f} %", abs(by) <= bar, by)
        run = found.measured(first.same_training(), "first", plan["limit"])
        times: dict[str, float] = {}
        fitting: list[float] = []
        cells.update(measured="", allocated="", loss="")
        if run is not None and "error" in run:
            trained.add(f"{name}: {run['error'][:80]}", False)
            cells["measured"] = "error"
        elif run is not None:
            within = run["whole_reserved"] <= plan["limit"] * _GIB
            trained.add(name, within)
            by = percent(run["whole_reserved"], told["reserved"]["best"])
            memory.add(name, True, by)
            cells["measured"] = f"{run['whole_reserved'] / _GIB:.3f} ({by:+.2f} %)"
            cells["allocated"] = f"{run['whole_allocated'] / _GIB:.3f}"
            if "allocated" in told:
                by = percent(run["whole_allocated"], told["allocated"]["best"])
                cells["allocated"] += f" ({by:+.2f} %)"
            times["first"] = 1000 * seconds_of_a_step(run)
            stock = found.measured(plain(script, plan["limit"]).same_training(), "plain", 0)
            if stock is not None and "error" not in stock:
                cells["loss"] = compare_losses(losses, name, script, told, run, stock)
        for other in neighbours:
            beside = found.measured(other.same_training(), other.role, plan["limit"])
            if beside is not None and "error" not in beside:
                times[other.role] = 1000 * seconds_of_a_step(beside)
                if beside["whole_reserved"] <= plan["limit"] * _GIB:
                    fitting.append(times[other.role])
        if "first" in times and times.keys() > {"first"}:
            best = min([times["first"], *fitting])
            by = percent(times["first"], best)
            fastest.add(f"{name}: {by:+.1f} %", by <= 5, by)
        changes = ", ".join(f"{k}={v}"[:30] for k, v in told["set"].items())
        print(
            f"| {script.name} | {plan['limit']:.2f} | {told['passes']} x {told['batch']} {changes} "
            f"| {told['numerics']} | {told['reserved']['best'] / _GIB:.3f} | {cells['edited']} "
            f"| {cells['measured']} | {cells['allocated']} | {told['step_us'] / 1000:.0f} | "
            + " | ".join(f"{times[r]:.0f}" if r in times else "" for r in _ROLES)
            + f" | {cells['loss']} |"
        )
    print("\n| clause | n | worst | misses | which |\n|---|---|---|---|---|")
    for clause in (equal, allocated, reserved, trained, memory, losses, fastest, leak, fits):
        print(clause.line())
    planned = {script.name for script, _ in plans(out)}
    unplanned = [name for name in SCRIPTS if name not in planned]
    if unplanned:
        print(f"\nNot planned: {', '.join(unplanned)}")
    return 0


def compare_losses(
    clause: Clause, name: str, script: Script, told: Row, run: Row, stock: Row
) -> str:
    pairs = [
        (a["loss"], b["loss"])
        for a, b in zip(run["steps"], stock["steps"])
        if not a["skipped"] and not b["skipped"]
    ]
    apart = [abs(a - b) / max(abs(b), 1e-6) for a, b in pairs]
    if not apart or not all(map(math.isfinite, apart)):
        clause.add(f"{name}: no losses", False)
        return "none"
    words = f"{apart[0]:.0e}, {max(apart):.0e}"
    as_cut = told["batch"] == script.batch
    if told["numerics"] == "other" or (script.random and not as_cut):
        return f"({words})"
    first = _SAME if told["numerics"] == "same" and as_cut else _ROUNDING
    holds = apart[0] <= first and max(apart) <= _LATER
    clause.add(f"{name}, {told['numerics']}: {words}", holds, apart[0])
    return words
