#!/usr/bin/env python3
"""The same question, asked in two ways, has one answer: tests/two_ways/two_ways_test.py PROGRAM [CHECK...]

Questions are drawn over all step files in tests/data. Each contradiction is printed as two commands to paste, with the
figures that differ. Named checks alone are drawn where any are named.

PLIMSOLL_TWO_WAYS=8000       draws so many questions; else as many as fit into 20 s of processor time
PLIMSOLL_TWO_WAYS_SEED=text  draws others (by night the date); question N of a seed is always the same
PLIMSOLL_TWO_WAYS_FIRST=N    begins with question N
PLIMSOLL_TWO_WAYS_JOBS=N     asks N at a time
"""

from __future__ import annotations

import collections
import json
import os
import random
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from checks import CHECKS, Refused
from contradictions import Contradiction
from drawing import Draws, has_length, step_files
from program import Crash, Program

ROOT = Path(__file__).resolve().parents[2]
#: Of the processor, unless a number of questions is given.
SECONDS = 20.0
MOST_SHOWN = 40
#: Of words that the program refuses, others are drawn.
MOST_DRAWS = 8


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seed_of_today() -> str:
    by_night = "PLIMSOLL_TWO_WAYS" in os.environ
    return os.environ.get("PLIMSOLL_TWO_WAYS_SEED") or (
        time.strftime("%Y-%m-%d") if by_night else "day"
    )


class Questions:
    def __init__(self, program: Program, seed: str, only: list[str]) -> None:
        self.program, self.seed = program, seed
        self.refused: collections.Counter[str] = collections.Counter()
        self.names = only or [name for name, (_, times) in CHECKS.items() for _ in range(times)]
        os.chdir(ROOT)
        self.files = step_files(Path("tests/data"))
        self.with_length = [file for file in self.files if has_length(file)]
        self.cards = [gpu["name"] for gpu in json.loads(program.ask("gpus", "--json").out)["gpus"]]

    def name(self, number: int) -> str:
        # By turns, so that a short sample has some of each.
        round_, place = divmod(number, len(self.names))
        order = random.Random(f"{self.seed} {round_}").sample(self.names, len(self.names))
        return order[place]

    def ask(self, number: int) -> tuple[str, list[Contradiction] | str]:
        name = self.name(number)
        draws = Draws(self.files, self.with_length, self.cards, f"{self.seed} {number}")
        for _ in range(MOST_DRAWS):
            try:
                return name, CHECKS[name][0](self.program, draws)
            except Refused as refused:
                self.refused[str(refused).split(":")[-1].strip()[:60]] += 1
            except (Crash, KeyError, ValueError) as error:
                return name, f"{type(error).__name__}: {error}"
        return name, []


def numbers(first: int, most: int | None) -> range:
    return range(first, first + (most if most is not None else 1_000_000))


def main() -> int:
    program = Program(str(Path(sys.argv[1]).resolve()))
    seed = seed_of_today()
    most = int(os.environ["PLIMSOLL_TWO_WAYS"]) if "PLIMSOLL_TWO_WAYS" in os.environ else None
    first = int(os.environ.get("PLIMSOLL_TWO_WAYS_FIRST", "0"))
    jobs = int(os.environ.get("PLIMSOLL_TWO_WAYS_JOBS", "1"))
    questions = Questions(program, seed, sys.argv[2:])
    asked: collections.Counter[str] = collections.Counter()
    wrong: collections.Counter[str] = collections.Counter()
    with ThreadPoolExecutor(jobs) as pool:
        remaining = iter(numbers(first, most))
        spent = most is None
        while batch := [n for _, n in zip(range(jobs * 4 if most else 1), remaining, strict=False)]:
            for number, (name, found) in zip(batch, pool.map(questions.ask, batch), strict=True):
                asked[name] += 1
                if not found:
                    continue
                wrong[name] += 1
                if wrong.total() <= MOST_SHOWN or most:
                    texts = (
                        found if isinstance(found, str) else "\n".join(one.text() for one in found)
                    )
                    print(f"question {number} of seed {seed}, {name}: {texts}", flush=True)
            if spent and processor_seconds() > SECONDS:
                break
    kinds = ", ".join(f"{name} {wrong[name]} of {asked[name]}" for name in sorted(asked))
    print(f"seed {seed}: {asked.total()} questions, {wrong.total()} with two answers ({kinds})")
    if "PLIMSOLL_TWO_WAYS_REFUSED" in os.environ:
        print(*questions.refused.most_common(30), sep="\n")
    print(f"{program.runs} runs of the program, {processor_seconds():.0f} s of the processor")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
