"""A captured job, with what cuDNN says that its convolutions take.

Where a cuDNN of release 9.8 or newer lies beside the torch that captures, or in the folder that
`$PLIMSOLL_CUDNN` names ("none": ask nobody), it is asked about every convolution of the job, for
the card of the capture. What it says goes into the step file (docs/formats/step.md, "asked").
Without it, or where it fails, the rules of the reader answer.

Under `torch.backends.cudnn.benchmark` PyTorch goes through all plans of a convolution at its first
call: it takes the largest workspace of any, times the first ten, gives it back, empties its cache
and keeps the fastest. Then cuDNN is asked for all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..base.gpus import Gpu, named
from ..base.notes import Note
from .backend import Plan, Query
from .cards import Card, card_of
from .library import NoStandIn, find_library, stand_in_folder
from .questions import DIRECTIONS, LADDER, Asked, collect, query_of, step_outputs
from .recount import recounted
from .shapes import cell

#: Questions at most, some 2 ms each. What is asked first is what the job was captured at, and what
#: the user asks about.
MOST_QUERIES = 6000
#: Seconds for all of them, on a machine that is busy with other things, too.
_MOST_SECONDS = 120
_OLDEST = 90800
#: All plans take some 14 ms on a slow machine; their largest workspace is a straight line of the
#: batch over long stretches, so that fewer batches do.
_MOST_SEARCHES = 1200
_SEARCH_LADDER = tuple(n for n in LADDER if n in (1, 4, 16, 64, 256, 1024))
#: How many plans PyTorch times (torch.backends.cudnn.benchmark_limit, as it is by default).
_TIMED = 10


class NotAsked(Exception):
    """Why there is no answer, in words."""


def add_answers(document: dict[str, Any], note: Note, batch: int | None = None) -> None:
    """Puts the section into a step file's document. `batch` is one that will be asked about."""
    _add_section(document, note, batch)
    if _searches(document) and any("convolution" in text for text in document["strings"]):
        _note_search(document, note)


def _searches(document: dict[str, Any]) -> bool:
    return bool(document.get("settings", {}).get("cudnn_benchmark"))


def _note_search(document: dict[str, Any], note: Note) -> None:
    begin = (
        "torch.backends.cudnn.benchmark is on: at the first call of a convolution PyTorch takes "
        "the largest workspace of any way to compute it, as far as there is room, and gives it "
        "back"
    )
    if "searched" in document.get("asked", {}):
        note(
            f"{begin}; that is counted as cuDNN says it for the {document['gpu']}; for another "
            "card it is not. Which way is the fastest, and what that takes from then on, is not "
            "known: the first choice is assumed, the range has the largest of the ten that are "
            "timed"
        )
    else:
        note(
            f"{begin}; that is not counted, since cuDNN could not be asked, nor that the fastest "
            "may take another workspace than the first choice. What is reserved may be more than "
            "twice as much (ResNet-50 in fp32 on an H200: 7.50 GiB, 3.43 without)"
        )


def _add_section(document: dict[str, Any], note: Note, batch: int | None) -> None:
    library = find_library()
    gpu = named(document["gpu"])
    if library is None or gpu is None:
        return
    found = collect(document)
    if not found:
        return
    card = card_of(document["gpu"], gpu)
    wanted = [batch, document.get("own_batch")]
    batches = _batches(document, gpu, [n for n in wanted if n])
    try:
        section = _section(document, library, card, found, batches)
    except NotAsked as error:
        note(f"cuDNN at {library} could not be asked ({error}): workspaces are by rule")
        return
    document["asked"] = {"gpu": document["gpu"], **section}
    if card.clusters_are_estimated:
        note(
            f"how many clusters of thread blocks a {document['gpu']} holds is estimated, and with "
            "it what cuDNN keeps of split sums; plimsoll.calibrate asks the card"
        )


def _batches(document: dict[str, Any], gpu: Gpu, wanted: Sequence[int]) -> list[int]:
    """In the order in which they are asked: after what is wanted those that a card can hold. None
    of a job whose data decide its batches."""
    if "sequence" in document:
        return []
    each = step_outputs(document)
    most = gpu.memory / each if each else LADDER[-1]
    ladder = _SEARCH_LADDER if _searches(document) else LADDER
    return [*wanted, *(n for n in ladder if n <= most)]


class _Question(NamedTuple):
    key: str
    #: The first size of the input.
    size: int
    direction: str
    query: Query


def _questions(found: dict[str, Asked], batches: Sequence[int], most: int) -> list[_Question]:
    """Those of all convolutions at one batch stand together, so that of a job with too many the
    same batches are known of each."""
    rounds = [{key: {p.own for p in asked.places} for key, asked in found.items()}]
    rounds += [{key: set(asked.own_batches([n])) for key, asked in found.items()} for n in batches]
    questions: dict[tuple[str, int, str], _Question] = {}
    for sizes in rounds:
        for key, asked in found.items():
            for size in sorted(sizes[key]):
                for direction in DIRECTIONS:
                    query = query_of(asked.how, size, direction)
                    if direction in asked.directions and query is not None:
                        question = _Question(key, size, direction, query)
                        questions.setdefault((key, size, direction), question)
        if len(questions) > most:
            break
    return [*questions.values()][:most]


def _section(
    document: dict[str, Any],
    library: Path,
    card: Card,
    found: dict[str, Asked],
    batches: Sequence[int],
) -> dict[str, Any]:
    searches = _searches(document)
    questions = _questions(found, batches, _MOST_SEARCHES if searches else MOST_QUERIES)
    settings = document.get("settings", {})
    version, plans = ask(
        library,
        card,
        [question.query for question in questions],
        tf32=settings.get("cudnn_tf32", True),
        deterministic=settings.get("deterministic", False),
        most_plans=None if searches else 1,
    )
    told: dict[str, _Told] = {name: {} for name in _TABLES[: None if searches else 1]}
    for question, found_plans in zip(questions, plans):
        for name, size in zip(told, _sizes(question.query, found_plans, card)):
            if size is not None:
                directions = told[name].setdefault(question.key, {})
                directions.setdefault(question.direction, {})[question.size] = size
    if not told["convolutions"]:
        raise NotAsked("it has no plan for any of them")
    major, rest = divmod(version, 10000)
    lists: list[list[int]] = []
    tables = {name: _lines(table, lists) for name, table in told.items()}
    return {"cudnn": f"{major}.{rest // 100}.{rest % 100}", "batches": lists, **tables}


#: Bytes, by key, direction and first size of the input.
_Told = dict[str, dict[str, dict[int, int]]]
#: What the first choice takes, what any of those that are timed does, and the largest of all.
_TABLES = ("convolutions", "timed", "searched")


def _sizes(query: Query, plans: Sequence[Plan], card: Card) -> list[int | None]:
    """In the order of the tables."""
    if not plans:
        return []
    sizes = [recounted(query, plan, card) for plan in plans]
    known = [plan.workspace if size is None else size for plan, size in zip(plans, sizes)]
    return [sizes[0], max(known[:_TIMED]), max(known)]


def _lines(told: _Told, lists: list[list[int]]) -> list[str]:
    """As a calibration file has them; new lists of batches are added."""
    lines: list[str] = []
    for key, directions in sorted(told.items()):
        # A line has one list of batches: what is not known at all of them is left to the rules.
        longest = max(directions, key=lambda name: len(directions[name]))
        known = sorted(directions[longest])
        if known not in lists:
            lists.append(known)
        cells = [
            cell([(n, series[n]) for n in known]) if series.keys() >= set(known) else ""
            for series in (directions.get(name, {}) for name in DIRECTIONS)
        ]
        lines.append("\t".join([key, str(lists.index(known)), *cells]))
    return lines


def ask(
    library: Path,
    card: Card,
    queries: Iterable[Query],
    tf32: bool = True,
    deterministic: bool = False,
    most_plans: int | None = 1,
) -> tuple[int, list[list[Plan]]]:
    """cuDNN's version, and the first so many plans of each, or all; none where it has none."""
    questions = list(queries)
    asked = {
        "library": str(library),
        "device": card.description,
        "tf32": tf32,
        "deterministic": deterministic,
        "most_plans": most_plans,
        "queries": questions,
    }
    try:
        environment = _environment(library)
    except (NoStandIn, OSError) as error:
        raise NotAsked(str(error)) from error
    try:
        done = subprocess.run(
            [sys.executable, "-m", "plimsoll.asking.process"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=_MOST_SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise NotAsked(f"no answer in {_MOST_SECONDS} s") from error
    except OSError as error:
        raise NotAsked(str(error)) from error
    return _read(done.stdout.splitlines(), len(questions), done.returncode)


def _read(lines: list[str], count: int, code: int) -> tuple[int, list[list[Plan]]]:
    try:
        head, *rows = map(json.loads, lines)
        if "error" in head:
            raise NotAsked(head["error"])
        version = int(head["version"])
        plans = [[Plan(plan[0], plan[1], dict(plan[2])) for plan in row] for row in rows]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise NotAsked(f"its process ended with {code}") from error
    if version < _OLDEST:
        raise NotAsked(f"it is release {version // 10000}.{version % 10000 // 100}, 9.8 is needed")
    if len(plans) != count:
        raise NotAsked(f"its process ended with {code} after {len(plans)} of {count} answers")
    return version, plans


def _environment(library: Path) -> dict[str, str]:
    """The stand-in for cuBLASLt comes before any real one, then what cuDNN itself loads."""
    folders = [str(stand_in_folder()), str(library.parent)]
    here = str(Path(__file__).resolve().parents[2])
    paths = {"LD_LIBRARY_PATH": folders, "PYTHONPATH": [here]}
    joined = {
        name: os.pathsep.join([*first, *filter(None, [os.environ.get(name)])])
        for name, first in paths.items()
    }
    # What the user's own process is set to log or to hook into has no place in this one.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUDNN_", "LD_PRELOAD"))}
    return {**kept, **joined}
