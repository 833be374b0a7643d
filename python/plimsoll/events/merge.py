"""Two runs of one job, at two batch sizes, as one list of events.

What is equal stands once, a number that differs as a pair. Strings and layouts get their places in
tables that all variants of a file share.
"""

from __future__ import annotations

from typing import Any, Callable, Protocol

from ..base.errors import CaptureError
from .per_sample import NoCounterpart, lengthened
from .recorder import Tensor


class Tables:
    """The strings and layouts of one file."""

    def __init__(self) -> None:
        self.strings: list[str] = []
        self.layouts: list[list[Any]] = []
        self._string_index: dict[str, int] = {}
        self._layout_index: dict[Any, int] = {}

    def string(self, text: str | None) -> int:
        if text is None:
            return -1
        index = self._string_index.get(text)
        if index is None:
            index = self._string_index[text] = len(self.strings)
            self.strings.append(text)
        return index

    def layout(self, a: Any, b: Any) -> int:
        index = self._layout_index.get((a, b))
        if index is None:
            if a[0] != b[0] or len(a[1]) != len(b[1]):
                raise _Differs
            index = self._layout_index[a, b] = len(self.layouts)
            self.layouts.append(
                [a[0]] + [[_number(x, y) for x, y in zip(a[i], b[i])] for i in (1, 2)]
            )
        return index


class Run(Protocol):
    """What one run left: a Recorder, or what a script's process sent back."""

    @property
    def events(self) -> list[Any]: ...

    @property
    def layouts(self) -> list[Any]: ...


class _Differs(Exception):
    """The two runs part here."""


def _number(a: int, b: int) -> Any:
    return a if a == b else [a, b]


def merged(
    first: Run, second: Run, tables: Tables, batches: tuple[int, int], note: Callable[[str], None]
) -> list[Any]:
    """One list, or an error that names where the runs part, unless it is for some calls that come
    once for each sample."""
    try:
        return _side_by_side(first, second, tables, batches)
    except CaptureError as parted:
        try:
            longer = lengthened(first, second)
            events = _side_by_side(longer, second, tables, batches)
        except (NoCounterpart, CaptureError):
            raise parted from None
    note(
        f"the step calls some operators once for each sample; those that batch {batches[1]} has "
        f"more than batch {batches[0]} stand for those of all further samples"
    )
    return events


def _side_by_side(first: Run, second: Run, tables: Tables, batches: tuple[int, int]) -> list[Any]:
    merger = _Merger(first, second, tables)
    events: list[Any] = []
    _agree_on_frees(first.events, second.events)
    for index, pair in enumerate(zip(first.events, second.events)):
        try:
            events.append(merger.event(*pair))
        except _Differs:
            raise _parted(index, *pair, batches) from None
    if len(first.events) != len(second.events):
        index = len(events)
        a, b = (run.events[index] if len(run.events) > index else None for run in (first, second))
        raise _parted(index, a, b, batches)
    return events


def _agree_on_frees(first: list[Any], second: list[Any]) -> None:
    """Frees with nothing between them may come in another order in each run, as when autocast
    drops its copies of the weights, kept by address. Then the order is that of their making."""
    index = 0
    while index < min(len(first), len(second)):
        end = index
        while all(end < len(run) and run[end][0] == "free" for run in (first, second)):
            end += 1
        if first[index:end] != second[index:end]:
            first[index:end] = sorted(first[index:end])
            second[index:end] = sorted(second[index:end])
        index = end + 1


def _parted(index: int, a: Any, b: Any, batches: tuple[int, int]) -> CaptureError:
    return CaptureError(
        f"the step does not do the same at batch {batches[0]} and at batch {batches[1]}: "
        f"event {index} is {_told(a)} in the one and {_told(b)} in the other",
        where=next((e[2] for e in (a, b) if e and e[0] == "call" and e[2]), None),
        hint="Choose two batch sizes at which it does (batches=, or --batches); "
        "a batch of 1 is often a case of its own",
    )


def _told(event: Any) -> str:
    if event is None:
        return "the end"
    if event[0] == "call":
        return f"{event[1]} at {event[2]}" if event[2] else str(event[1])
    return " ".join(str(part) for part in event[:2])


class _Merger:
    def __init__(self, first: Run, second: Run, tables: Tables) -> None:
        self._layouts = (first.layouts, second.layouts)
        self._tables = tables
        self._layout_pairs: dict[tuple[int, int], int] = {}
        self._tensors: dict[tuple[Tensor, Tensor], dict[str, Any]] = {}

    def event(self, a: list[Any], b: list[Any]) -> list[Any]:
        kind = a[0]
        if kind != b[0] or len(a) != len(b):
            raise _Differs
        if kind == "call":
            return self._call(a, b)
        if kind in ("parameter", "buffer"):
            if a[1] != b[1] or a[3:] != b[3:]:
                raise _Differs
            return [kind, a[1], self._layout(a[2], b[2]), self._tables.string(a[3]), *a[4:]]
        if a != b:
            raise _Differs
        return a

    def _call(self, a: list[Any], b: list[Any]) -> list[Any]:
        _, op, where, module, thread, args, kwargs, results, new = a
        if op != b[1] or len(results) != len(b[7]) or len(new) != len(b[8]):
            raise _Differs
        if kwargs.keys() != b[6].keys():
            raise _Differs
        string = self._tables.string
        return [
            "call",
            string(op),
            string(where),
            string(module),
            thread,
            self._value(args, b[5]),
            {key: self._value(value, b[6][key]) for key, value in kwargs.items()},
            [self._tensor(x, y) for x, y in zip(results, b[7])],
            [self._new(x, y) for x, y in zip(new, b[8])],
        ]

    def _new(self, a: list[int], b: list[int]) -> list[Any]:
        if a[0] != b[0] or a[2] != b[2]:
            raise _Differs
        return [a[0], _number(a[1], b[1]), a[2]]

    def _value(self, a: Any, b: Any) -> Any:
        if isinstance(a, Tensor):
            return self._tensor(a, b)
        if isinstance(a, list):
            if not isinstance(b, list) or len(a) != len(b):
                raise _Differs
            return [self._value(x, y) for x, y in zip(a, b)]
        if type(a) is not type(b):
            raise _Differs
        if isinstance(a, str):
            if a != b:
                raise _Differs
            return {"text": self._tables.string(a)}
        if a == b or isinstance(a, float):
            return a  # no size depends on a float: a learning rate that a schedule has set
        if isinstance(a, bool):
            raise _Differs
        return {"n": [a, b]}

    def _tensor(self, a: Tensor, b: Any) -> dict[str, Any]:
        made = self._tensors.get((a, b))
        if made is None:
            if not isinstance(b, Tensor) or a.storage != b.storage or a.flags != b.flags:
                raise _Differs
            made = {"t": [a.storage, self._layout(a.layout, b.layout), a.flags]}
            self._tensors[a, b] = made
        return made

    def _layout(self, a: int, b: int) -> int:
        index = self._layout_pairs.get((a, b))
        if index is None:
            index = self._tables.layout(self._layouts[0][a], self._layouts[1][b])
            self._layout_pairs[a, b] = index
        return index
