"""`python -m plimsoll.script -o job.step.json.gz -- python train.py --batch-size {batch}`

Runs an unedited training script on fake tensors, once for each of two batch sizes, and writes the
step file that plimsoll.capture would. `plimsoll predict --run` starts this. docs/predict_run.md.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple, NoReturn

from ..asking.answers import add_answers
from ..base.assumptions import NOTHING_STATED, Assumptions, parse_assumptions
from ..base.errors import CaptureError, in_a_line, in_two_lines
from ..base.lists import of_all
from ..base.notes import Notes
from ..base.output import check_output
from ..base.sizes import shown, whole_number
from ..events import counted, gradient_uses
from ..events.event import HostPeak, Parameter, PartBegin, Recorded, StepBegin, varying
from ..events.inputs import changing_sizes
from ..events.merge import NOTHING_COMPILED, is_compiled, merged, steps_of
from ..events.points import LENGTHS, Points, lengths_for
from ..events.sequence import head_of, sequence_of
from ..events.step_file import Tables
from ..isolation.filling import ended_before_full
from ..isolation.means import Means, choose, enter, scratch_folder, weaker
from ..knowledge.selections import selected_at
from .asked_batch import at_asked
from .autocast_settings import NAME, NOT_FOLLOWED
from .epoch import data_section
from .keeper import end_with_parent, how_it_ended, run_beside
from .launchers import PLACE, at_point, name_of_length, ranks_of, script_of
from .progress import Progress, said
from .run import HostPeaks, NotFollowed, Run, RunResult, Stretch, read_outcome

#: Small, for the host: data sets of examples have few samples.
BATCHES = (4, 8)
_LAST_LINES = 15


class Sizes(NamedTuple):
    """At which to capture; what is not given is chosen."""

    batches: tuple[int, int] | None = None
    lengths: tuple[int, int, int] | None = None
    #: Those which are asked about.
    length: int | None = None
    batch: int | None = None
    #: To look through an epoch's data, where all its sizes are wanted.
    data_seconds: float = 0.0


def capture_script(
    command: list[str],
    sizes: Sizes,
    gpu: str,
    stated: Assumptions = NOTHING_STATED,
    every_precision: bool = False,
    allow_network: bool = False,
) -> dict[str, Any]:
    """The step file's document. `every_precision`: in each that a plan compares."""
    words, ranks = script_of(command), ranks_of(command)
    own = Run(words, None, gpu, ranks, stated=stated, allow_network=allow_network)
    if sizes.data_seconds:
        return _as_it_stands(own, sizes.data_seconds)
    own_batch = any(PLACE in word for word in command)
    points = _points(command, sizes, max(ranks, 1) if own_batch else 1)

    def runs_at(points: Points, compiles: bool) -> list[Run]:
        few, many = points.batches
        return [
            own._replace(
                words=at_point(words, points.named(index)),
                loader_batch=None if own_batch else point[0],
                stretch=Stretch(few, many) if point[0] == many else None,
                compiles=compiles,
            )
            for index, point in enumerate(points.at)
        ]

    runs = _served_whole(runs_at(points, compiles=False))
    if not own_batch and not runs[0].loader_batches:
        return _as_it_stands(own)
    compiled = None
    asked = sizes.batch or (None if own_batch else runs[0].loader_batches[0])
    if any(run.compiles for run in runs):
        print("plimsoll: the script compiles; its code is written now", file=sys.stderr)
        compiled, runs, points = _compiled(runs_at, runs, points, sizes, asked)
    elif asked and not sizes.batches and points.inline and not _changing_sizes(runs, points):
        runs, points = at_asked(_served_whole, lambda at: runs_at(at, False), runs, points, asked)
    tables = Tables(points.inline)
    document = _document(runs, points, gpu, compiled, tables)
    if every_precision:
        why_not = _why_no_autocast(runs[0], compiled is not None) or _add_autocast(
            document, runs_at(points, compiles=False), points, tables
        )
        if why_not:
            document["no_autocast"] = why_not
    if not own_batch:
        # The training loader is made first.
        document["own_batch"] = runs[0].loader_batches[0]
    trains = not runs[0].serves
    if trains and document["sizes_change"] and points.inline and (sizes.batch or not own_batch):
        if own_batch and sizes.batch:
            own = own._replace(words=at_point(words, {"batch": sizes.batch}))
        with contextlib.suppress(CaptureError):  # then the first steps at two batches are all
            document["as_it_stands"] = _as_it_stands(own)
    return document


def _served_whole(runs: list[Run], shows_error: bool = True) -> list[RunResult]:
    """Where a loop of one that trains nothing could not be cut short, once more with all of it."""
    results = _followed(runs, shows_error)
    if not any(result.uneven for result in results):
        return results
    return _followed([run._replace(whole=True) for run in runs], shows_error)


def _followed(runs: list[Run], shows_error: bool = True) -> list[RunResult]:
    """Where a script does not go on behind what was let come due, once more without that."""
    results = run_each(runs, shows_error)
    left = _left(results)
    if left:
        results = run_each([run._replace(left_alone=left) for run in runs], shows_error)
    if left and _left(results):
        results = run_each([run._replace(left_alone=None) for run in runs], shows_error)
    return results


def _left(results: list[RunResult]) -> frozenset[str]:
    return frozenset().union(*(result.left for result in results))


def _compiled(
    runs_at: Callable[[Points, bool], list[Run]],
    eager: list[RunResult],
    points: Points,
    sizes: Sizes,
    asked: int | None,
) -> tuple[list[RunResult] | None, list[RunResult], Points]:
    """What the compiler writes is for one batch: it is asked at the batch that is asked about, and
    the job without it is seen there as well."""
    there = points
    if asked and not sizes.batches and points.inline:
        there = Points.of_batches((asked, asked + max(asked // 2, 1)))
    if there.at != points.at:
        try:
            eager, points = _served_whole(runs_at(there, False)), there
        except CaptureError:  # its data have fewer samples, say
            pass
    try:
        return _served_whole(runs_at(points, True)), eager, points
    except CaptureError as error:
        eager[0].notes.append(f"it could not be compiled without a GPU: {error.what}")
        return None, eager, points


#: Steps of a run as it stands, and seconds of the processor.
_STEPS, _SECONDS = 60, 120.0
_STEPS_OF_DATA = 12


def _as_it_stands(own: Run, data_seconds: float = 0.0) -> dict[str, Any]:
    """Many steps of the script with the batches that it makes; fewer of one whose loader tells the
    sizes of the rest."""
    steps = _STEPS_OF_DATA if data_seconds else _STEPS
    run = _followed([own._replace(steps=steps, seconds=_SECONDS, data_seconds=data_seconds)])[0]
    tables = Tables(inline=False)
    sequence = sequence_of(run.recorded, tables)
    if sequence is None:
        raise CaptureError(
            "the batch size cannot be varied, and too few steps were seen: the command has no "
            "{batch}, and the script makes no DataLoader with a batch size",
            hint="Put {batch} where it stands: python train.py --batch-size {batch}",
        )
    rows = tables.rows(sequence.events)
    data = data_section(run.data, sequence, run.passes) if run.data else {}
    return {
        **head_of(sequence),
        **data,
        **_facts([run], own.gpu, sum(row[0] == "part" for row in rows), tables),
        "own_batch": sequence.points[0][0],
        **tables.document(),
        "variants": [_variant("as_written", [run], rows)],
        "notes": run.notes + _more_each_time([run]),
    }


def _points(command: list[str], sizes: Sizes, shares: int) -> Points:
    """`shares`: of a batch that the script shares out each rank has as much as one alone would."""
    batches = sizes.batches or (BATCHES[0] * shares, BATCHES[1] * shares)
    name = name_of_length(command)
    if name is None:
        if sizes.lengths or sizes.length:
            raise CaptureError(
                "a length is asked for, and the command has none",
                hint="Put {length} where it stands: python train.py --max-length {length}",
            )
        return Points.of_batches(batches)
    lengths = sizes.lengths or (lengths_for(sizes.length) if sizes.length else LENGTHS)
    return Points.of_lengths(batches, lengths, name)


#: Bytes.
_IMPORTS_IN = 32 << 20


def _document(
    runs: list[RunResult],
    points: Points,
    gpu: str,
    compiled: list[RunResult] | None,
    tables: Tables,
) -> dict[str, Any]:
    _check_that_it_grows(runs, points)
    changing = _changing_sizes(runs, points)
    variants, notes = _variants(runs, compiled, tables, points)
    events = variants[0]["events"]
    return {
        **points.head(),
        **_facts(compiled or runs, gpu, sum(event[0] == "part" for event in events), tables),
        "sizes_change": bool(changing),
        **tables.document(),
        "variants": variants,
        "notes": notes + _more_each_time(runs) + changing,
    }


def _changing_sizes(runs: list[RunResult], points: Points) -> list[str]:
    """Notes on sizes that the data decide."""
    seen = _as_one_step if runs[0].serves else steps_of
    small, large = (seen(run.recorded) for run in runs[:2])
    return changing_sizes(small, large, points.batches)


def _comes_due(runs: list[RunResult], tables: Tables) -> dict[str, Any]:
    """What comes due alike in all runs."""
    told = []
    for alike in zip(*(run.growing for run in runs)):
        first = alike[0]
        if len({one.branch for one in alike}) > 1:
            break
        size = tables.number(varying([one.bytes for one in alike]))
        keeper = {"kept_by": first.keeper.described()} if first.keeper else {}
        known = {"branch": first.branch, "where": first.where, "every": first.every}
        told.append({**known, "bytes": size, **keeper})
    return {"growing": told} if told else {}


def _more_each_time(runs: list[RunResult]) -> list[str]:
    """Where it is not known how often that is, nobody can say how far the memory goes."""
    return [
        f"{one.branch} leaves {shown(one.bytes)} more allocated each time"
        + (f", kept in {one.keeper.name}" if one.keeper else "")
        + ": three times are counted, and how many come is not known"
        for one in runs[0].growing
        if not one.every
    ]


def _why_no_autocast(run: RunResult, compiles: bool) -> str:
    """Of the script as it is written; empty where it may be followed in it."""
    events, layouts = run.recorded.events, run.recorded.layouts
    types = {layouts[event.layout].dtype for event in events if isinstance(event, Parameter)}
    others = {name for name in types if name.startswith(("float", "bfloat"))} - {"float32"}
    if run.serves:
        return "the script trains nothing, and evaluations stay as they are"
    if run.uses_autocast:
        return "the script is in autocast as it is written"
    if others:
        return f"the script has weights in {' and '.join(sorted(others))}"
    if run.autocast_set_by in NOT_FOLLOWED:
        return f"{run.autocast_set_by} has a setting for it, which is to be set in the script"
    return "the script compiles, and autocast is to be written into it" if compiles else ""


def _add_autocast(document: dict[str, Any], runs: list[Run], points: Points, tables: Tables) -> str:
    """The job with a line more, beside it as it was written; or why there is none."""
    print("plimsoll: followed once more, with autocast in bf16", file=sys.stderr)
    try:
        results = _followed([run._replace(autocast=True) for run in runs])
        events = tables.rows(merged([one.recorded for one in results], tables, points, Notes()))
    except CaptureError as error:
        where = f"{error.where}: " if error.where else ""
        return f"in autocast the script cannot be followed: {where}{error.what}"
    set_by = results[0].autocast_set_by
    if not results[0].uses_autocast and set_by:
        return f"{set_by}'s setting for it puts nothing of the script into autocast"
    if not results[0].uses_autocast:
        return "no model was seen to compute in training mode, as after model.train()"

    def parts(events: list[list[Any]]) -> list[Any]:
        return [event[1] for event in events if event[0] == "part"]

    # What is known of the host goes by these.
    if parts(events) != parts(document["variants"][0]["events"]):
        return "in autocast the script does something else behind its steps"
    document |= tables.document()
    by = {"set_by": set_by} if set_by else {}
    document["variants"].append(_variant(NAME, results, events, **by))
    return ""


def _as_one_step(run: Recorded) -> Recorded:
    """All that a script does which trains nothing."""
    return Recorded([StepBegin(), *run.events], run.layouts)


def _variants(
    runs: list[RunResult], compiled: list[RunResult] | None, tables: Tables, points: Points
) -> tuple[list[dict[str, Any]], list[str]]:
    """The job as it was written first, and what was assumed. Of one that is compiled, the same in
    eager mode too."""

    def of(runs: list[RunResult], notes: Notes) -> list[Any]:
        return tables.rows(merged([run.recorded for run in runs], tables, points, notes))

    notes = Notes()
    if compiled is not None and not is_compiled(compiled[0].recorded.events):
        notes(NOTHING_COMPILED)
        for why in compiled[0].notes:
            notes(why)
        compiled = None
    if compiled is not None:
        notes.texts += compiled[0].notes
        try:
            events = of(compiled, notes)
        except CaptureError as error:
            notes = Notes()
            notes(f"the figures are those of eager mode: {error.what}")
        else:
            eager = _variant("eager", runs, of(runs, Notes()))
            written = _variant("as_written", compiled, events, compiled=True)
            return [written, eager], notes.texts
    for note in runs[0].notes:
        notes(note)
    return [_variant("as_written", runs, of(runs, notes))], notes.texts


def _variant(
    precision: str, runs: list[RunResult], events: list[Any], **more: Any
) -> dict[str, Any]:
    uses = gradient_uses.of_all(run.gradient_uses for run in runs)
    return {"precision": precision, **more, **uses, "events": events}


def _facts(runs: list[RunResult], gpu: str, parts: int, tables: Tables) -> dict[str, Any]:
    """What is known beside what the steps do."""
    first = runs[0]
    return {
        "torch": first.torch,
        "gpu": gpu,
        "model": first.model,
        "settings": first.settings,
        "names_root": True,
        "passes": first.passes,
        **({"kept_by": first.keeper.described()} if first.keeper else {}),
        "host": _host([run.host for run in runs], parts, tables),
        **_epoch([run.epoch for run in runs], tables),
        **_lost(runs, parts),
        **_not_followed(runs, parts),
        **_comes_due(runs, tables),
        **({"selected_at": lines} if (lines := selected_at(first.notes)) else {}),
        **of_all(run.lists for run in runs).described(),
        **counted.of_all(run.counted for run in runs),
    }


def _lost(runs: list[RunResult], parts: int) -> dict[str, Any]:
    """Where what follows the steps is cut off: it stops there, or the runs differ."""
    seen = [event for event in runs[0].recorded.events if isinstance(event, PartBegin)]
    lost = next((run.lost_at for run in runs if run.lost_at), "")
    if parts < len(seen):
        lost = f"its {_IN_WORDS.get(seen[parts].stage, seen[parts].stage)}"
    return {"lost_at": lost} if lost else {}


def _not_followed(runs: list[RunResult], parts: int) -> dict[str, Any]:
    """What was not followed in any of the runs, each line once."""
    found = list(dict.fromkeys(one for run in runs for one in run.not_followed))
    found += [
        NotFollowed.at(
            one.branch, f"{one.branch} leaves more each time, and how often it comes is not known"
        )
        for one in runs[0].growing
        if not one.every
    ]
    seen = [event for event in runs[0].recorded.events if isinstance(event, PartBegin)]
    if parts < len(seen) and not runs[0].lost_at:
        stage = _IN_WORDS.get(seen[parts].stage, seen[parts].stage)
        found.append(NotFollowed(f"its {stage} was not followed: it differs between the runs"))
    return {"not_followed": [one.described() for one in found]} if found else {}


#: Stages.
_IN_WORDS = {"step": "further training", "save": "saving", "load": "loading"}


def _epoch(batches: list[int | None], tables: Tables) -> dict[str, Any]:
    known = [n for n in batches if n is not None]
    return {"epoch": tables.number(varying(known))} if len(known) == len(batches) else {}


def _host(hosts: list[HostPeaks], parts: int, tables: Tables) -> dict[str, Any]:
    """Of the parts, as many as are the same in all runs. What was imported is told in steps that
    do not change from run to run."""
    peaks = [[host.build, host.steps, *host.later] for host in hosts]
    pinned = _merged_pinned(peaks, tables)

    def row(alike: tuple[HostPeak, ...]) -> list[Any]:
        def number(of: str) -> Any:
            return tables.number(varying([getattr(peak, of) for peak in alike]))

        more = {
            "pinned": pinned.pop(0) if pinned else [],
            **{name: number(name) for name in ("workers", "shared", "left")},
        }
        told = {name: value for name, value in more.items() if value}
        return [number("bytes"), alike[-1].where, *([told] if told else [])]

    rows = [row(alike) for alike in zip(*peaks)]
    return {
        "imports": round(hosts[0].imports / _IMPORTS_IN) * _IMPORTS_IN,
        "build": rows[0],
        "steps": rows[1],
        "later": rows[2 : 2 + parts],
    }


def _merged_pinned(peaks: list[list[HostPeak]], tables: Tables) -> list[list[Any]]:
    """By part, as far as all runs ask for pinned memory alike."""
    parts: list[list[Any]] = []
    for alike in zip(*peaks):
        events: list[Any] = []
        parts.append(events)
        for numbers in zip(*(peak.pinned for peak in alike)):
            if len(set(numbers)) > 1 and min(numbers) < 0:
                return parts
            events.append(tables.number(varying(numbers)))
        if len({len(peak.pinned) for peak in alike}) > 1:
            return parts
    return parts


def _check_that_it_grows(runs: list[RunResult], points: Points) -> None:
    """By each dimension, from the first point on."""
    for index, name in enumerate(points.dimensions):
        other = next(i for i, at in enumerate(points.at) if at[index] != points.at[0][index])
        if runs[0].recorded.layouts != runs[other].recorded.layouts:
            continue
        takes = f"its {name} from" if index else "its batch size from: --batch-size {batch}"
        raise CaptureError(
            f"the step is the same at {points.described(0)} and at {points.described(other)}",
            hint=f"Put {{{name}}} where the script takes {takes}",
        )


def run_each(runs: list[Run], shows_error: bool = True) -> list[RunResult]:
    """Beside each other, each in a process of its own: torch takes seconds to load, once.
    `shows_error`: what the script said last is printed where it cannot be followed."""
    from .process import load_all

    load_all()
    means = _means(runs[0].allow_network)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="plimsoll-"))
        results = os.path.join(folder, "results")
        os.mkdir(results)
        places = [os.path.join(results, str(number)) for number in range(len(runs))]
        layers = [
            stack.enter_context(scratch_folder(folder, f"layers{number}"))
            for number in range(len(runs))
        ]
        progress = [Progress() for _ in runs]
        functions = [
            functools.partial(_run, *one, means) for one in zip(runs, places, layers, progress)
        ]
        at_once = max(2, os.cpu_count() or 1)
        codes: list[int] = []
        for begin in range(0, len(functions), at_once):
            some = slice(begin, begin + at_once)
            waiting = functools.partial(_waiting, progress[some], runs[begin].steps, folder)
            codes += run_beside(functions[some], waiting)
            if any(codes):
                break
        return [_found(place, code, shows_error) for place, code in zip(places, codes)]


@contextlib.contextmanager
def _waiting(runs: list[Progress], steps: int, folder: str) -> Iterator[None]:
    def end() -> None:
        for run in runs:
            run.end_process()

    with said(runs, steps), ended_before_full(folder, end) as filling:
        yield
    if filling.taken:
        raise CaptureError(
            f"the script's copies of files have taken {shown(filling.taken)}, half of what was "
            f"free in {os.path.dirname(folder)}",
            hint="Give it arguments with which it writes less, or name a larger disk in TMPDIR",
        )


@functools.cache
def _means(allow_network: bool) -> Means:
    """By which the script is held back. What is weaker than a namespace is said, once."""
    means = choose(allow_network)
    if means.why_not:
        print(f"plimsoll: {weaker(means, allow_network)}", file=sys.stderr)
    return means


def _run(run: Run, place: str, layers: str, progress: Progress, means: Means) -> None:
    """In the process of the run. Does not return."""
    output = os.open(place + ".said", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(_environment(run.ranks))
    progress.begin()
    held = enter(means, layers, os.path.dirname(place))
    from .process import run_script

    run_script(place, run, progress, held)


def _found(place: str, code: int, shows_error: bool) -> RunResult:
    """What a run has left."""
    try:
        with open(place + ".said", errors="replace") as file:
            said = file.read().splitlines()
    except FileNotFoundError:
        raise CaptureError(
            f"the results of the script in {os.path.dirname(place)} were removed while it ran",
            hint="Name a folder in TMPDIR that nobody empties",
        ) from None
    try:
        if not os.path.exists(place):
            raise CaptureError(f"the script's process {how_it_ended(code)}")
        return read_outcome(place)
    except CaptureError:
        if shows_error:
            _show(said)
        raise


def _show(said: list[str]) -> None:
    if said:
        print("plimsoll: the script said last:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in said[-_LAST_LINES:]), file=sys.stderr)


def _environment(ranks: int) -> dict[str, str]:
    """The first rank, and nothing is reported to anyone."""
    first = {"RANK": "0", "LOCAL_RANK": "0"}
    size = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    # The package may have been found by a path that is relative, or beside a program.
    here = str(Path(__file__).resolve().parents[2])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **({**first, **size} if ranks else {}),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WANDB_MODE": "disabled",
        "PYTHONPATH": os.pathsep.join(paths),
    }


def _free_port() -> int:
    """Two captures at once must not meet at one store."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _growing(text: str | None, what: str, like: str) -> Any:
    """As many numbers as `like` has."""
    if text is None:
        return None
    sizes = [whole_number(size) or 0 for size in text.split(",")]
    growing = all(a < b for a, b in zip(sizes, sizes[1:]))
    if len(sizes) != len(like.split(",")) or sizes[0] < 1 or not growing:
        number = "two" if len(like.split(",")) == 2 else "three"
        raise CaptureError(
            f"the {what} are {text}", hint=f"Give {number} growing sizes, such as {like}"
        )
    return tuple(sizes)


def _terminated(number: int, frame: object) -> NoReturn:
    """By way of what is to be cleared away."""
    sys.exit(128 + number)


def _complain(error: CaptureError, to: str | None) -> int:
    """`to`: a file that the program reads; it may have been removed."""
    with contextlib.suppress(OSError):
        if to:
            Path(to).write_text(in_two_lines(error))
            return 2
    print(f"plimsoll: {error}", file=sys.stderr)
    return 2


def main(arguments: list[str]) -> int:
    before, command = arguments, []
    if "--" in arguments:
        cut = arguments.index("--")
        before, command = arguments[:cut], arguments[cut + 1 :]
    parser = argparse.ArgumentParser(prog="python -m plimsoll.script", description=__doc__)
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--batches", help="two batch sizes, 4,8 unless given")
    parser.add_argument("--lengths", help="three lengths, where the command has one in braces")
    parser.add_argument("--length", help="the length that will be asked about, instead")
    parser.add_argument("--data", type=float, default=0.0, help="seconds for an epoch's sizes")
    parser.add_argument("--batch", help="the batch that will be asked about")
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--assume", default="", help="of values: routing=worst,mask=0.25")
    parser.add_argument("--every-precision", action="store_true", help="in autocast too")
    parser.add_argument("--allow-network", action="store_true", help="let the script connect")
    parser.add_argument("--complaint", help=argparse.SUPPRESS)
    flags = parser.parse_args(before)
    signal.signal(signal.SIGTERM, _terminated)
    if flags.complaint:  # the program has started this
        end_with_parent(signal.SIGTERM)
    try:
        stated = parse_assumptions(flags.assume, "--assume")
        script_of(command)  # before torch is looked for, in whichever Python this is
        check_output(flags.output, inputs=command)
        from ..world.phantom import require_torch

        require_torch()
        from ..capturing.api import Capture

        sizes = Sizes(
            _growing(flags.batches, "batch sizes", "4,8"),
            _growing(flags.lengths, "lengths", "128,192,256"),
            whole_number(flags.length) if flags.length else None,
            whole_number(flags.batch) if flags.batch else None,
            flags.data,
        )
        document = capture_script(
            command, sizes, flags.gpu, stated, flags.every_precision, flags.allow_network
        )
        for one in filter(None, (document, document.get("as_it_stands"))):
            add_answers(one, one["notes"].append, sizes.batch)
        Capture(document).write(flags.output)
    except CaptureError as error:
        return _complain(error, flags.complaint)
    except OSError as error:  # of the files of a capture: those of the script end its own process
        return _complain(
            CaptureError(
                f"a file of the capture cannot be used: {in_a_line(error)}",
                hint="Name a folder with room in TMPDIR that nobody empties",
            ),
            flags.complaint,
        )
    except KeyboardInterrupt:
        return 130
    return 0
