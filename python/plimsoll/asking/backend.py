"""cuDNN's backend interface, as much of it as it takes to ask which plan a convolution gets.

Plain C, called by ctypes: the numbers are those of cudnn_graph.h, which NVIDIA keeps from release
to release of cuDNN 9. A device is described by a text, so that neither a GPU nor a driver is
needed (9.8 and newer).
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

# Kinds of descriptors.
_CONVOLUTION, _ENGINE, _CONFIG, _HEURISTICS, _PLAN, _KNOB_CHOICE = 1, 2, 3, 4, 5, 7
_GRAPH, _TENSOR, _DEVICE = 15, 17, 38

# Types of attributes.
_OF_DATA_TYPE, _OF_INT64, _OF_FLOAT, _OF_CONVOLUTION_MODE, _OF_HEURISTICS_MODE = 1, 3, 4, 7, 8
_OF_KNOB_TYPE, _OF_NUMERICAL_NOTE, _OF_DESCRIPTOR, _OF_CHAR = 9, 11, 15, 24

# Attributes.
_COMPUTE_TYPE, _MODE, _DILATIONS, _STRIDES = 100, 101, 102, 103
_PADDING_AFTER, _PADDING_BEFORE, _SPATIAL_DIMENSIONS = 104, 105, 106
_HEURISTICS_MODE, _HEURISTICS_GRAPH, _HEURISTICS_RESULTS, _HEURISTICS_DEVICE = 200, 201, 202, 204
_CONFIG_ENGINE, _CONFIG_KNOBS = 300, 302
_PLAN_CONFIG, _PLAN_WORKSPACE, _PLAN_DEVICE = 401, 402, 407
_KNOB_TYPE, _KNOB_VALUE = 600, 601
_GRAPH_OPERATIONS = 801
_TENSOR_ALIGNMENT, _TENSOR_TYPE, _TENSOR_SIZES, _TENSOR_STRIDES = 900, 901, 902, 903
_TENSOR_ID = 906
_ENGINE_INDEX, _ENGINE_NOTES = 1301, 1303
_DEVICE_JSON = 2702


class _Operation(NamedTuple):
    """The kind of a descriptor, and its attributes."""

    kind: int
    alpha: int
    beta: int
    geometry: int
    w: int
    x: int
    y: int


_OPERATIONS = {
    "forward": _Operation(10, 700, 701, 702, 703, 704, 705),
    "backward_data": _Operation(12, 706, 707, 708, 709, 710, 711),
    "backward_weight": _Operation(11, 712, 713, 714, 715, 716, 717),
}

# Values.
_FLOAT = 0
_DATA_TYPES = {"float32": _FLOAT, "float16": 2, "bfloat16": 9}
_CROSS_CORRELATION = 1
_INSTANT, _FALLBACK = 0, 2
#: What an engine does to numbers.
_TENSOR_CORE, _DOWN_CONVERTS, _NOT_DETERMINISTIC = 0, 1, 4
#: More than there are of any in this release, for those that come.
_MOST_NOTES, _MOST_KNOBS = 32, 64


class Refused(Exception):
    """cuDNN answered a call with a status other than success."""


class Query(NamedTuple):
    """One convolution in one direction, with the sizes of all its tensors, the batch first."""

    dtype: str
    channels_last: bool
    direction: str
    input: tuple[int, ...]
    weight: tuple[int, ...]
    output: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


class Plan(NamedTuple):
    """A way to compute a convolution: its engine, what it takes, and how it was set."""

    engine: int
    workspace: int
    knobs: dict[int, int]


class _Descriptor:
    def __init__(self, library: Any, kind: int) -> None:
        self._library = library
        self.raw = ctypes.c_void_p()
        _check(library.cudnnBackendCreateDescriptor(kind, ctypes.byref(self.raw)))

    def __del__(self) -> None:
        if self.raw:
            self._library.cudnnBackendDestroyDescriptor(self.raw)

    def put(self, name: int, kind: int, values: Any, count: int = 1) -> _Descriptor:
        given = ctypes.cast(values, ctypes.c_void_p)
        _check(self._library.cudnnBackendSetAttribute(self.raw, name, kind, count, given))
        return self

    def put_int(self, name: int, value: int) -> _Descriptor:
        return self.put(name, _OF_INT64, ctypes.byref(ctypes.c_int64(value)))

    def put_ints(self, name: int, values: Sequence[int]) -> _Descriptor:
        return self.put(name, _OF_INT64, (ctypes.c_int64 * len(values))(*values), len(values))

    def put_enum(self, name: int, kind: int, value: int) -> _Descriptor:
        return self.put(name, kind, ctypes.byref(ctypes.c_int(value)))

    def put_other(self, name: int, other: _Descriptor) -> _Descriptor:
        return self.put(name, _OF_DESCRIPTOR, ctypes.byref(other.raw))

    def get(self, name: int, kind: int, values: Any, room: int = 1) -> int:
        count = ctypes.c_int64()
        given = ctypes.cast(values, ctypes.c_void_p) if values is not None else None
        _check(
            self._library.cudnnBackendGetAttribute(
                self.raw, name, kind, room, ctypes.byref(count), given
            )
        )
        return count.value

    def get_int(self, name: int) -> int:
        value = ctypes.c_int64()
        self.get(name, _OF_INT64, ctypes.byref(value))
        return value.value

    def done(self) -> _Descriptor:
        _check(self._library.cudnnBackendFinalize(self.raw))
        return self


def _check(status: int) -> None:
    if status:
        raise Refused(f"status {status}")


class Cudnn:
    """A loaded cuDNN, and the card that it is asked about."""

    def __init__(self, path: str, device: dict[str, Any], tf32: bool, deterministic: bool) -> None:
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        pointer, number, count = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        library.cudnnGetVersion.restype = ctypes.c_size_t
        library.cudnnBackendDestroyDescriptor.argtypes = [pointer]
        library.cudnnBackendFinalize.argtypes = [pointer]
        library.cudnnBackendSetAttribute.argtypes = [pointer, number, number, count, pointer]
        library.cudnnBackendGetAttribute.argtypes = [
            pointer, number, number, count, pointer, pointer]  # fmt: skip
        self._library = library
        self._tf32, self._deterministic = tf32, deterministic
        text = json.dumps(device).encode()
        self._device = self._new(_DEVICE)
        self._device.put(_DEVICE_JSON, _OF_CHAR, ctypes.c_char_p(text), len(text)).done()
        # Filled anew for each configuration.
        self._choices = [self._new(_KNOB_CHOICE) for _ in range(_MOST_KNOBS)]

    @property
    def version(self) -> int:
        return int(self._library.cudnnGetVersion())

    def _new(self, kind: int) -> _Descriptor:
        return _Descriptor(self._library, kind)

    def plans(self, query: Query) -> Iterator[Plan]:
        """As PyTorch goes through them: the heuristics' configurations in their order, then the
        fallbacks, and of these all that can be planned. With its benchmark off the first is
        taken."""
        graph = self._graph(query)
        for mode in (_INSTANT, _FALLBACK):
            try:
                configs = self._configs(graph, mode)
            except Refused:
                continue
            for config in configs:
                try:
                    plan = self._plan(config, query.dtype)
                except Refused:
                    continue
                if plan is not None:
                    yield plan

    def _graph(self, query: Query) -> _Descriptor:
        names = _OPERATIONS[query.direction]
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        # An operation keeps no reference of what it is made of until it is done.
        x, w, y = (
            self._tensor(query, sizes, number)
            for number, sizes in enumerate((query.input, query.weight, query.output), 1)
        )
        geometry = self._geometry(query)
        operation = self._new(names.kind)
        operation.put_other(names.x, x).put_other(names.w, w).put_other(names.y, y)
        operation.put_other(names.geometry, geometry)
        operation.put(names.alpha, _OF_FLOAT, ctypes.byref(one))
        operation.put(names.beta, _OF_FLOAT, ctypes.byref(zero)).done()
        return self._new(_GRAPH).put_other(_GRAPH_OPERATIONS, operation).done()

    def _tensor(self, query: Query, sizes: tuple[int, ...], number: int) -> _Descriptor:
        tensor = self._new(_TENSOR)
        tensor.put_enum(_TENSOR_TYPE, _OF_DATA_TYPE, _DATA_TYPES[query.dtype])
        tensor.put_ints(_TENSOR_SIZES, sizes)
        tensor.put_ints(_TENSOR_STRIDES, strides(sizes, query.channels_last))
        tensor.put_int(_TENSOR_ID, number).put_int(_TENSOR_ALIGNMENT, 32)
        return tensor.done()

    def _geometry(self, query: Query) -> _Descriptor:
        geometry = self._new(_CONVOLUTION).put_int(_SPATIAL_DIMENSIONS, len(query.stride))
        geometry.put_enum(_COMPUTE_TYPE, _OF_DATA_TYPE, _FLOAT)
        geometry.put_enum(_MODE, _OF_CONVOLUTION_MODE, _CROSS_CORRELATION)
        geometry.put_ints(_PADDING_BEFORE, query.padding).put_ints(_PADDING_AFTER, query.padding)
        geometry.put_ints(_DILATIONS, query.dilation).put_ints(_STRIDES, query.stride)
        return geometry.done()

    def _configs(self, graph: _Descriptor, mode: int) -> list[_Descriptor]:
        heuristics = self._new(_HEURISTICS).put_other(_HEURISTICS_GRAPH, graph)
        heuristics.put_enum(_HEURISTICS_MODE, _OF_HEURISTICS_MODE, mode)
        heuristics.put_other(_HEURISTICS_DEVICE, self._device).done()
        count = heuristics.get(_HEURISTICS_RESULTS, _OF_DESCRIPTOR, None, 0)
        configs = [self._new(_CONFIG) for _ in range(count)]
        raw = (ctypes.c_void_p * count)(*(config.raw for config in configs))
        return configs[: heuristics.get(_HEURISTICS_RESULTS, _OF_DESCRIPTOR, raw, count)]

    def _plan(self, config: _Descriptor, dtype: str) -> Plan | None:
        engine = self._new(_ENGINE)
        config.get(_CONFIG_ENGINE, _OF_DESCRIPTOR, ctypes.byref(engine.raw))
        if self._is_filtered(engine, dtype):
            return None
        plan = self._new(_PLAN).put_other(_PLAN_CONFIG, config)
        plan.put_other(_PLAN_DEVICE, self._device).done()
        return Plan(
            engine.get_int(_ENGINE_INDEX), plan.get_int(_PLAN_WORKSPACE), self._knobs(config)
        )

    def _is_filtered(self, engine: _Descriptor, dtype: str) -> bool:
        """What PyTorch does not take, whatever cuDNN recommends."""
        notes = (ctypes.c_int * _MOST_NOTES)()
        count = engine.get(_ENGINE_NOTES, _OF_NUMERICAL_NOTE, notes, _MOST_NOTES)
        found = set(notes[:count])
        return (
            _DOWN_CONVERTS in found
            or (self._deterministic and _NOT_DETERMINISTIC in found)
            or (dtype == "float32" and not self._tf32 and _TENSOR_CORE in found)
        )

    def _knobs(self, config: _Descriptor) -> dict[int, int]:
        raw = (ctypes.c_void_p * _MOST_KNOBS)(*(choice.raw for choice in self._choices))
        count = config.get(_CONFIG_KNOBS, _OF_DESCRIPTOR, raw, _MOST_KNOBS)
        knobs = {}
        for choice in self._choices[:count]:
            kind = ctypes.c_int()
            choice.get(_KNOB_TYPE, _OF_KNOB_TYPE, ctypes.byref(kind))
            knobs[kind.value] = choice.get_int(_KNOB_VALUE)
        return knobs


def strides(sizes: Sequence[int], channels_last: bool) -> list[int]:
    """Of a tensor without gaps; channels come first in memory, or last."""
    order = [0, *range(2, len(sizes)), 1] if channels_last else [*range(len(sizes))]
    found, elements = [0] * len(sizes), 1
    for dimension in reversed(order):
        found[dimension] = elements
        elements *= sizes[dimension]
    return found
