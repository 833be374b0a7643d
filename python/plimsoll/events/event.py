"""What happens in a recorded job, event by event.

One run's events have its own numbers: a layout is an index into the run's `layouts`. Of runs that
were merged (merge.py) a number that differs is `Varying`, and layouts are those of the file.
step_file.py writes them down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

from ..base.place import Place


class Varying(tuple[int, ...]):
    """A number at each point of a capture."""

    __slots__ = ()


Number = Union[int, Varying]


def varying(values: Sequence[Any]) -> Number:
    """Of these values, one a point."""
    first: int = values[0]
    return first if all(value == first for value in values) else Varying(values)


class Layout(NamedTuple):
    dtype: str
    sizes: tuple[Number, ...]
    strides: tuple[Number, ...]


class Tensor(NamedTuple):
    """A tensor as an argument or a result. Storage 0: on the host, or without bytes."""

    storage: int
    layout: int
    flags: int


VIEW, PARAMETER, NEEDS_GRAD = 1, 2, 4

#: The operator as which each kernel is told that a compiler wrote.
KERNEL = "inductor.fused_"
#: What is there while it times the forms of one.
TIMING = "inductor.timing"
#: From the one to the other a compiled region runs that becomes a CUDA graph.
GRAPH = "inductor.graph"
GRAPH_END = "inductor.graph_end"


class NewStorage(NamedTuple):
    """Memory that a call takes for the result of this index."""

    storage: int
    size: Number
    result: int
    #: Calls after this one during which a variable holds it, where that is longer than it is used.
    held: int = 0


# Dataclasses and not named tuples: two events of different kinds are never equal. Python 3.9 has no
# `slots=True`.


@dataclass
class Parameter:
    __slots__ = ("storage", "layout", "name", "trainable", "piece")
    storage: int
    layout: int
    name: str
    trainable: bool
    #: Those of one number lie in one piece of memory; 0: it lies alone.
    piece: int


@dataclass
class Buffer:
    __slots__ = ("storage", "layout", "name")
    storage: int
    layout: int
    name: str


@dataclass
class StepBegin:
    __slots__ = ()


@dataclass
class PartBegin:
    """Of what follows the steps. `stage`: evaluation, save, load, step. `times`: the last of the
    batches that were seen of a loop, which has so many like it. `batches`: what is done with all
    that such a loop has, of which `seen` were seen. `heaviest`: a step with the heaviest batch that
    was found, of all data or of those that could be looked at in time."""

    stage: str
    times: Number = 1
    batches: Number = 1
    seen: int = 1
    heaviest: str = ""
    #: Of a loop that trains nothing: the numbers of each further round go on as they went from the
    #: part before to this one.
    grows: bool = False


@dataclass
class Phase:
    """`name`: inputs, forward, backward, optimizer, other."""

    __slots__ = ("name",)
    name: str


@dataclass
class Label:
    """`category`: gradient, optimizer_state, input."""

    __slots__ = ("category", "storages")
    category: str
    storages: list[int]


@dataclass
class Call:
    """One operator. In `args` and `kwargs` are `Tensor`s, numbers, texts and lists of those."""

    __slots__ = ("op", "place", "args", "kwargs", "results", "made")
    op: str
    place: Place
    args: list[Any]
    kwargs: dict[str, Any]
    results: list[Tensor]
    made: list[NewStorage]

    @property
    def site(self) -> tuple[str, Place]:
        """The same for the same operator in the same line and module."""
        return self.op, self.place


@dataclass
class Free:
    __slots__ = ("storage",)
    storage: int


Event = Union[Parameter, Buffer, StepBegin, PartBegin, Phase, Label, Call, Free]


class HostPeak(NamedTuple):
    """Of what a script has in the host's memory, over a while."""

    #: Tensors that are not pinned.
    bytes: int
    #: The line that asked for the last of it.
    where: str
    #: Requests of pinned memory, in bytes, and -k at the end of the k-th.
    pinned: list[int] = []
    #: Processes that fetch batches, and batches of theirs in shared memory.
    workers: int = 0
    shared: int = 0
    #: Of `bytes`, what is there at the end.
    left: int = 0


class Recorded(NamedTuple):
    """One run of a job."""

    events: list[Event]
    layouts: list[Layout]


def tensors_in(value: Any) -> list[Tensor]:
    """Those of an argument, however deep in lists."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list):
        return [tensor for element in value for tensor in tensors_in(element)]
    return []
