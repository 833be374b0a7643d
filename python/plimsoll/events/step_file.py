"""Events as the step file has them (docs/formats/step.md): the one place that knows its JSON."""

from __future__ import annotations

from typing import Any

from .event import (
    Buffer,
    Call,
    Event,
    Free,
    Label,
    Layout,
    NewStorage,
    Number,
    Parameter,
    PartBegin,
    Phase,
    Tensor,
    Varying,
)


class Tables:
    """The strings, layouts and numbers that all variants of one file share."""

    def __init__(self, inline: bool = True) -> None:
        """`inline`: numbers stand where they belong, as pairs. Else they are in a table."""
        self.strings: list[str] = []
        self.layouts: list[list[Any]] = []
        self._numbers: dict[Varying, int] | None = None if inline else {}
        self._string_index: dict[str, int] = {}
        self._layout_index: dict[Layout, int] = {}
        self._tensors: dict[Tensor, dict[str, Any]] = {}

    def string(self, text: str | None) -> int:
        if text is None:
            return -1
        index = self._string_index.get(text)
        if index is None:
            index = self._string_index[text] = len(self.strings)
            self.strings.append(text)
        return index

    def document(self) -> dict[str, Any]:
        numbers = {} if self._numbers is None else {"numbers": [list(n) for n in self._numbers]}
        return {**numbers, "strings": self.strings, "layouts": self.layouts}

    def number(self, number: Number) -> Any:
        if not isinstance(number, Varying):
            return number
        if self._numbers is None:
            return list(number)
        return [self._numbers.setdefault(number, len(self._numbers))]

    def layout(self, layout: Layout) -> int:
        """Of merged events."""
        index = self._layout_index.get(layout)
        if index is None:
            index = self._layout_index[layout] = len(self.layouts)
            sizes, strides = ([*map(self.number, side)] for side in (layout.sizes, layout.strides))
            self.layouts.append([layout.dtype, sizes, strides])
        return index

    # Rows.

    def rows(self, events: list[Event]) -> list[list[Any]]:
        """Of merged events."""
        return [self._row(event) for event in events]

    def _row(self, event: Event) -> list[Any]:
        if isinstance(event, Call):
            return self._call(event)
        if isinstance(event, Free):
            return ["free", event.storage]
        if isinstance(event, Label):
            return ["label", event.category, event.storages]
        if isinstance(event, Phase):
            return ["phase", event.name]
        if isinstance(event, PartBegin):
            return self._part(event)
        if isinstance(event, Parameter):
            name = self.string(event.name)
            row = ["parameter", event.storage, event.layout, name, event.trainable]
            return [*row, event.piece] if event.piece else row
        if isinstance(event, Buffer):
            return ["buffer", event.storage, event.layout, self.string(event.name)]
        return ["step"]

    def _call(self, call: Call) -> list[Any]:
        return [
            "call",
            self.string(call.op),
            self.string(call.place.where),
            self.string(call.place.module),
            call.place.thread,
            self._value(call.args),
            {key: self._value(value) for key, value in call.kwargs.items()},
            [self._tensor(result) for result in call.results],
            [self._new_storage(new) for new in call.made],
        ]

    def _new_storage(self, new: NewStorage) -> list[Any]:
        row = [new.storage, self.number(new.size), new.result]
        return [*row, new.held] if new.held else row

    def _value(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, Varying):
            return {"n": self.number(value)}
        if isinstance(value, list):
            return [self._value(element) for element in value]
        return {"text": self.string(value)} if isinstance(value, str) else value

    def _tensor(self, tensor: Tensor) -> dict[str, Any]:
        """The same object for the same tensor: there are many."""
        row = self._tensors.get(tensor)
        if row is None:
            row = self._tensors[tensor] = {"t": list(tensor)}
        return row

    def _part(self, part: PartBegin) -> list[Any]:
        if part.grows:
            return ["part", part.stage, {"times": self.number(part.times), "grows": True}]
        if part.times != 1:
            return ["part", part.stage, {"times": self.number(part.times)}]
        if part.batches != 1:
            batches = self.number(part.batches)
            return ["part", part.stage, {"batches": batches, "seen": part.seen}]
        if part.heaviest:
            return ["part", part.stage, {"heaviest": part.heaviest}]
        return ["part", part.stage]
