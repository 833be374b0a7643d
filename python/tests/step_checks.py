"""A checker of step files (docs/formats/step.md) that shares no code with the writer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

PHASES = {"inputs", "forward", "backward", "optimizer", "other"}
EDITS = {"variable", "place", "graph", "batch", "gradients"}
LABELS = {"gradient", "optimizer_state", "input", "cache"}
PARTS = {"evaluation", "save", "load", "step", "prompt", "generation", "other"}


class Checked:
    """A document that follows the format, with ways to look at it."""

    def __init__(self, document: dict[str, Any], variant: int = 0) -> None:
        json.dumps(document, allow_nan=False)
        self.document = document
        self.strings = document["strings"]
        self.layouts = document["layouts"]
        self.events = document["variants"][variant]["events"]
        assert document["schema"] == "plimsoll.step/1"
        assert document["variants"][0]["precision"] == "as_written"
        assert all(isinstance(text, str) for text in self.strings)
        for dtype, sizes, strides in self.layouts:
            assert isinstance(dtype, str) and "torch" not in dtype
            assert len(sizes) == len(strides)
            for number in (*sizes, *strides):
                self._number(number)
        self.releases = document["variants"][variant].get("releases", [])
        self._live: dict[int, Any] = {}
        self._grown = False
        self._seen: set[int] = set()
        for event in self.events:
            getattr(self, "_" + event[0])(*event[1:])
        for release in self.releases:
            self._release(**release)

    def _release(self, edits: list[Any], frees: list[Any]) -> None:
        assert edits and frees
        for kind, name, where in edits:
            assert kind in EDITS and name >= 0
            self._text(name)
            self._text(where)
        for event, storage in frees:
            assert 0 <= event <= len(self.events) and storage in self._seen
            later = json.dumps([call[5:] for call in self.events[event:] if call[0] == "call"])
            assert f'{{"t": [{storage}, ' not in later, "nothing uses it any more"

    @staticmethod
    def _number(number: Any) -> None:
        if isinstance(number, list):
            assert len(number) == 2 and number[0] != number[1]
            assert all(type(n) is int and n >= 0 for n in number)
        else:
            assert type(number) is int and number >= 0

    def _text(self, index: int) -> None:
        assert type(index) is int and -1 <= index < len(self.strings)

    def _fresh(self, storage: int, size: Any) -> None:
        assert storage >= 1 and storage not in self._seen, "storages are numbered from 1, each once"
        self._seen.add(storage)
        self._live[storage] = size

    def _parameter(
        self, storage: int, layout: int, name: int, trainable: bool, piece: int = 1
    ) -> None:
        assert type(trainable) is bool and piece >= 1
        self._buffer(storage, layout, name)

    def _buffer(self, storage: int, layout: int, name: int) -> None:
        self._fresh(storage, layout)
        assert 0 <= layout < len(self.layouts)
        self._text(name)

    def _part(self, stage: str, known: dict[str, Any] | None = None) -> None:
        assert stage in PARTS
        forms = ({"times"}, {"batches", "seen"}, {"heaviest"}, {"times", "grows"})
        assert known is None or set(known) in forms
        # Rounds that are not told come between it and what follows.
        self._grown |= known is not None and "grows" in known

    def _step(self) -> None:
        pass

    def _phase(self, name: str) -> None:
        assert name in PHASES

    def _free(self, storage: int) -> None:
        assert storage in self._live or self._grown
        self._live.pop(storage, None)

    def _label(self, category: str, storages: list[int]) -> None:
        assert category in LABELS
        assert storages and all(storage in self._live for storage in storages)

    def _call(
        self,
        op: int,
        where: int,
        module: int,
        thread: int,
        args: Any,
        kwargs: Any,
        results: Any,
        new: Any,
    ) -> None:
        assert op >= 0 and thread in (0, 1)
        for text in (op, where, module):
            self._text(text)
        for value in (*args, *kwargs.values()):
            self._value(value)
        for storage, size, index, *_ in new:
            self._number(size)
            assert size != 0 and results[index]["t"][0] == storage
            self._fresh(storage, size)
        for result in results:
            self._value(result)

    def _value(self, value: Any) -> None:
        if isinstance(value, list):
            for element in value:
                self._value(element)
        elif isinstance(value, dict):
            ((kind, told),) = value.items()
            if kind == "t":
                storage, layout, flags = told
                known = storage == 0 or storage in self._live
                assert known or (self._grown and storage in self._seen), "a dead storage is used"
                assert 0 <= layout < len(self.layouts) and 0 <= flags < 8
            elif kind == "n":
                assert len(told) == 2 and told[0] != told[1]
            else:
                assert kind == "text"
                self._text(told)
        else:
            assert value is None or isinstance(value, (bool, int, float))

    # Looking.

    def calls(self, phase: str | None = None) -> Iterator[tuple[str, list[Any]]]:
        now = None
        for event in self.events:
            if event[0] == "phase":
                now = event[1]
            elif event[0] == "call" and phase in (None, now):
                yield self.strings[event[1]], event

    def ops(self, phase: str | None = None) -> list[str]:
        return [name for name, _ in self.calls(phase)]

    def named(self, kind: str) -> list[str]:
        return [self.strings[event[3]] for event in self.events if event[0] == kind]

    def labelled(self, category: str) -> list[int]:
        return [n for e in self.events if e[0] == "label" and e[1] == category for n in e[2]]

    def layout(self, tensor: dict[str, Any]) -> Any:
        return self.layouts[tensor["t"][1]]
