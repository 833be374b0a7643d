"""What a calibration measures: the distinct convolutions, attentions and products of a step."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..asking.shapes import Convolution, Layout, Shape, shape_of
from ..base.errors import CaptureError

STEP_SCHEMA = "plimsoll.step/1"
USUAL_BATCHES = (1, 4, 8, 16, 32, 64)
# Those that the reader tells apart; of the rest it has rules only.
_CONVOLVED = ("float32", "bfloat16", "float16")
_PRODUCTS = frozenset(
    f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation")
)
_NEEDS_GRAD = 4


def read_step(step: Any) -> dict[str, Any]:
    document = getattr(step, "document", None)
    if document is None:
        document = _unpacked(os.fspath(step))
    if not isinstance(document, dict) or document.get("schema") != STEP_SCHEMA:
        raise CaptureError(f"{step} is not a step file", hint="plimsoll.capture makes one")
    return document


def _unpacked(path: str) -> Any:
    with open(path, "rb") as file:
        data = file.read()
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        raise CaptureError(f"{path} is packed with zstd", hint=f"Unpack it first: zstd -d {path}")
    try:
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        elif data.startswith(b"\xfd7zXZ"):
            data = lzma.decompress(data)
        return json.loads(data)
    except (ValueError, RecursionError, OSError, EOFError, lzma.LZMAError):
        return None


def batch_sizes(document: dict[str, Any], batches: Iterable[int] | None) -> list[int]:
    if batches is None:
        return sorted({*document["batches"], *USUAL_BATCHES})
    sizes = [batches] if isinstance(batches, int) else list(batches)
    if not sizes or any(type(n) is not int or n < 1 for n in sizes):
        raise CaptureError(f"`batches` is {batches!r}", hint="Give sizes such as (8, 16, 32)")
    return sorted(set(sizes))


class Call(NamedTuple):
    """A matrix product or an attention, with everything that it was given."""

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    @property
    def key(self) -> str:
        tensors = [arg for arg in self.args if isinstance(arg, Layout)]
        named = [f"{name}={_plain(value)}" for name, value in self.kwargs]
        if self.op == "plimsoll.attention":
            query, key, value, mask, dropout, causal = attention_args(self.args)
            words = ["attention", query.dtype, str(query), str(key), str(value)]
            words += [f"mask={mask.dtype}:{mask}"] if mask else []
            words += [f"dropout={dropout}"] if dropout else []
            words += ["causal"] if causal else []
            if not any(tensor.needs_grad for tensor in tensors):
                words.append("no_grad")
            return " ".join(words + named)
        name = self.op.split(".")[1]
        rest = [_plain(arg) for arg in self.args if not isinstance(arg, Layout)]
        return " ".join([name, tensors[0].dtype, *map(str, tensors), *rest, *named])


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def attention_args(args: Sequence[Any]) -> tuple[Layout, Layout, Layout, Any, float, bool]:
    full = list(args) + [None, 0.0, False][len(args) - 3 :]
    query, key, value, mask, dropout, causal = full
    return query, key, value, mask, dropout, causal


class Work(NamedTuple):
    """What is to be measured: convolutions with their batches, and the calls of each place in the
    step, by growing batch."""

    convolutions: dict[Shape, tuple[Convolution, list[int]]]
    calls: list[list[Call]]
    notes: list[str]


def collect(document: dict[str, Any], batches: Sequence[int]) -> Work:
    """Each distinct convolution, attention and matrix product of a step, in all its variants."""
    strings = document["strings"]
    work = Work({}, [], [])
    seen = set()
    for variant in document["variants"]:
        for event in variant["events"]:
            if event[0] != "call":
                continue
            op = strings[event[1]]
            kind = _kind(op)
            # The same place in a later step differs in its storages alone.
            told = (op, _without_storages(event[5]), _without_storages(event[6])) if kind else None
            if told is None or told in seen:
                continue
            seen.add(told)
            at = [_AtBatch(document, n) for n in batches]
            if kind == "convolution":
                _add_convolution(work, op, event[5], at)
            else:
                _add_call(work, op, event[5], event[6], at)
    return work


def _kind(op: str) -> str | None:
    if op.startswith(("aten.convolution.", "aten.convolution_backward.")):
        return "convolution"
    return "call" if op in _PRODUCTS or op == "plimsoll.attention" else None


def _without_storages(value: Any) -> str:
    return re.sub(r'\{"t": \[\d+, ', '{"t": [', json.dumps(value))


class _AtBatch:
    """The numbers of a step, at one batch."""

    def __init__(self, document: dict[str, Any], batch: int) -> None:
        self._layouts = document["layouts"]
        self._strings = document["strings"]
        self._first, second = document["batches"]
        self._run = second - self._first
        self._batch = batch

    def number(self, number: Any) -> int:
        """As AtBatch::Of in src/job/calls/call.cc has it."""
        if not isinstance(number, list):
            return int(number)
        rise = (self._batch - self._first) * (number[1] - number[0])
        return int(number[0] + abs(rise) // self._run * (1 if rise >= 0 else -1))

    def value(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple(self.value(element) for element in value)
        if not isinstance(value, dict):
            return value
        if "t" in value:
            dtype, sizes, strides = self._layouts[value["t"][1]]
            return Layout(
                dtype,
                tuple(map(self.number, sizes)),
                tuple(map(self.number, strides)),
                bool(value["t"][2] & _NEEDS_GRAD),
            )
        return self.number(value["n"]) if "n" in value else self._strings[value["text"]]


def _can_be(values: Iterable[Any]) -> bool:
    """Whether all tensors have a size at this batch."""
    return all(min(v.sizes, default=1) > 0 for v in values if isinstance(v, Layout))


def _add_convolution(work: Work, op: str, args: Any, at: Sequence[_AtBatch]) -> None:
    backward = op.startswith("aten.convolution_backward.")
    for each in at:
        given = each.value(args)
        input, weight, *settings = (*given[1:3], *given[4:10]) if backward else (
            *given[0:2], *given[3:9])  # fmt: skip
        if input.dtype not in _CONVOLVED:
            note = f"convolutions of {input.dtype} are not measured"
            if note not in work.notes:
                work.notes.append(note)
            return
        if not _can_be((input, weight)) or len(input.sizes) not in (3, 4, 5):
            continue
        shape = shape_of(input, weight, settings)
        how = Convolution(shape, input.sizes[1:], weight.sizes, tuple(settings))
        batches = work.convolutions.setdefault(shape, (how, []))[1]
        if input.sizes[0] not in batches:
            batches.append(input.sizes[0])
            batches.sort()


def _add_call(work: Work, op: str, args: Any, kwargs: Any, at: Sequence[_AtBatch]) -> None:
    calls: list[Call] = []
    for each in at:
        given = each.value(args)
        named = tuple(sorted((name, each.value(value)) for name, value in kwargs.items()))
        call = Call(op, given, named)
        if _can_be(given) and call not in calls:
            calls.append(call)
    if calls and calls not in work.calls:
        work.calls.append(calls)
