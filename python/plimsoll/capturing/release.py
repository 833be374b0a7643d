"""What could be let go earlier, found by trying: the run that is recorded is watched for what is
held without being used again, then the job runs once more in which just that is let go. What that
run frees earlier is what the edit would free.

So whoever else holds a tensor (a view, the graph, a list) has its say, and none of it is modelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple

import torch
from torch.optim import Optimizer

from ..events.event import Call, Event, Free
from ..events.lives import Lives
from ..events.recorder import Recorder
from .holding import bound_in, done_variables, running, slots, statement_of, tensors_in

#: A run takes a second or two, so only the largest are tried.
_MOST_TRIALS = 4

#: ("variable", function, name), ("place", path), or one of the two that follow.
Key = tuple[Any, ...]
_BATCH: Key = ("batch",)
_GRADIENTS: Key = ("gradients",)


class Edit(NamedTuple):
    """What to change: `variable` is deleted before the line `where`; of what is kept in `place` the
    `graph` or all is let go at the end of the step; the `batch` before the backward; `gradients`
    after the optimizer's step at `where`."""

    kind: str
    name: str
    where: str | None


class Release(NamedTuple):
    edits: list[Edit]
    #: How many events other than frees come before a storage is free, and the storage.
    frees: list[tuple[int, int]]

    def row(self, string: Callable[[str | None], int]) -> dict[str, Any]:
        """As docs/formats/step.md has it. `string`: the index of a text."""
        return {
            "edits": [[edit.kind, string(edit.name), string(edit.where)] for edit in self.edits],
            "frees": [list(free) for free in self.frees],
        }


class Attendant:
    """Is told of the instants at which something could be let go. This one does nothing."""

    #: Whether it wants to be told of every statement.
    attentive = False

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.functions: list[Any] = []
        self.model: torch.nn.Module | None = None
        self.step = -1
        self._at: Any = None
        self._busy = False

    def attend(self, recorder: Recorder, functions: list[Any], model: torch.nn.Module) -> None:
        self.recorder, self.functions, self.model = recorder, functions, model
        if self.attentive:
            recorder.before_operator = self._before_operator

    def begin_step(self) -> None:
        self.step += 1

    def _before_operator(self) -> None:
        """Each statement of the user's comes once, before the first operator that it runs."""
        if self._busy:
            return
        frames = running()
        at = [(id(frame), frame.f_lineno) for frame in frames]
        if at != self._at:
            self._at = at
            self._quietly(lambda: self.at_statement(frames))

    def end_step(self) -> None:
        self._quietly(self.at_end_of_step)

    def _quietly(self, what: Callable[[], None]) -> None:
        assert self.recorder is not None
        self._busy = True
        with self.recorder.quiet():
            what()
        self._busy = False

    def _storages(self, value: Any) -> list[int]:
        assert self.recorder is not None
        numbers = (self.recorder.number(tensor) for tensor in tensors_in(value))
        return [number for number in numbers if number]

    def at_statement(self, frames: list[Any]) -> None:
        pass

    def at_end_of_step(self) -> None:
        pass

    def before_backward(self, batch: Any) -> bool:
        """Whether the loop shall let go of its batch."""
        return False

    def after_optimizer(self, optimizer: Optimizer) -> None:
        pass


class Look(NamedTuple):
    step: int
    position: int
    key: Key
    storages: list[int]
    graph: bool


class Watcher(Attendant):
    """Of the run that is recorded."""

    attentive = True

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[Look] = []
        #: By statement: what has a value each time that it is reached, and can be deleted there.
        self.bound: dict[tuple[Any, str], frozenset[str]] = {}

    def _look(self, key: Key, value: Any) -> None:
        assert self.recorder is not None
        storages = self._storages(value)
        if storages:
            graph = any(tensor.grad_fn is not None for tensor in tensors_in(value))
            self.looks.append(Look(self.step, self.recorder.position, key, storages, graph))

    def at_statement(self, frames: list[Any]) -> None:
        for frame in frames:
            at = (frame.f_code, statement_of(frame))
            self.bound[at] = bound_in(frame) & self.bound.get(at, bound_in(frame))
            for variable in done_variables(frame):
                self._look(("variable", *variable.key), variable.value)

    def at_end_of_step(self) -> None:
        assert self.model is not None
        for slot in slots(self.functions, self.model):
            self._look(("place", slot.path), slot.value)

    def before_backward(self, batch: Any) -> bool:
        self._look(_BATCH, batch)
        return False

    def after_optimizer(self, optimizer: Optimizer) -> None:
        self._look(_GRADIENTS, _gradients(optimizer))


class Trial(Attendant):
    """Of a run in which the keys are let go."""

    attentive = True

    def __init__(self, keys: set[Key], watcher: Watcher) -> None:
        super().__init__()
        self.keys = keys
        self.edits: list[Edit] = []
        self._bound = watcher.bound

    def _note(self, edit: Edit) -> None:
        if edit not in self.edits:
            self.edits.append(edit)

    def at_statement(self, frames: list[Any]) -> None:
        for frame in frames:
            for variable in done_variables(frame):
                deletable = self._bound.get((frame.f_code, variable.where), frozenset())
                if ("variable", *variable.key) not in self.keys or variable.name not in deletable:
                    continue
                if self._storages(variable.value):
                    self._note(Edit("variable", variable.name, variable.where))
                    variable.let_go()

    def at_end_of_step(self) -> None:
        assert self.model is not None
        for slot in list(slots(self.functions, self.model)):
            key = ("place", slot.path)
            if key not in self.keys or not self._storages(slot.value):
                continue
            # What is a number without a graph was one with it, let go in an earlier step.
            if slot.holds_graph or Edit("graph", slot.path, None) not in self.edits:
                self._note(Edit("graph" if slot.holds_graph else "place", slot.path, None))
                slot.let_go()

    def before_backward(self, batch: Any) -> bool:
        if _BATCH in self.keys:
            self._note(Edit("batch", "batch", None))
        return _BATCH in self.keys

    def after_optimizer(self, optimizer: Optimizer) -> None:
        if _GRADIENTS not in self.keys:
            return
        frames = running()
        where = statement_of(frames[0]) if frames else None
        self._note(Edit("gradients", "optimizer", where))
        optimizer.zero_grad(set_to_none=True)


def _gradients(optimizer: Optimizer) -> list[torch.Tensor]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [p.grad for p in parameters if p.grad is not None]


# What is worth a trial.


def groups(watcher: Watcher, lives: Lives, steps: int) -> list[set[Key]]:
    """Keys that are to be let go together because they hold the same, the largest first. The last
    step shows nothing: there is no next one that could use what is left."""
    looks = [look for look in watcher.looks if look.step < steps - 1]
    used_again = {look.key for look in looks if look.key[0] == "place" and _in_use(look, lives)}
    wasted: dict[Key, int] = defaultdict(int)
    together: list[set[Key]] = []
    for position, here in _by_position(looks).items():
        sizes = {look.key: _wasted(look, lives) for look in here if look.key not in used_again}
        named = {storage for look in here for storage in look.storages}
        nameless = lives.nameless_from(position, named) if any(look.graph for look in here) else 0
        holders: dict[int, set[Key]] = defaultdict(set)
        for look in here:
            if look.key in used_again:
                continue
            total = sum(sizes[look.key].values()) + (nameless if look.graph else 0)
            wasted[look.key] = max(wasted[look.key], total)
            for storage in sizes[look.key]:
                holders[storage].add(look.key)
        together.extend(holders.values())
    found = _joined([key for key, size in wasted.items() if size], together)
    found.sort(key=lambda keys: -max(wasted[key] for key in keys))
    return found[:_MOST_TRIALS]


def _in_use(look: Look, lives: Lives) -> bool:
    return not all(lives.unused_from(look.position, storage) for storage in look.storages)


def _wasted(look: Look, lives: Lives) -> dict[int, int]:
    """Bytes by storage. The loop holds the batch of a step as long as the step runs, whatever a
    function does with its name for it."""
    sizes = {}
    for storage in look.storages:
        of_this_step = lives.batch_of.get(storage) == look.step
        size = lives.wasted_from(look.position, storage)
        if size and not (of_this_step and look.key[0] == "variable"):
            sizes[storage] = size
    return sizes


def _by_position(looks: list[Look]) -> dict[int, list[Look]]:
    found: dict[int, list[Look]] = defaultdict(list)
    for look in looks:
        found[look.position].append(look)
    return found


def _joined(keys: Iterable[Key], together: Iterable[set[Key]]) -> list[set[Key]]:
    group_of: dict[Key, set[Key]] = {key: {key} for key in keys}
    for some in together:
        joined: set[Key] = set().union(*(group_of[key] for key in some))
        for key in joined:
            group_of[key] = joined
    return list({id(group): group for group in group_of.values()}.values())


def releases(
    watcher: Watcher, recorded: Recorder, steps: int, run: Callable[[Trial], Recorder]
) -> list[Release]:
    """`run` runs the job again with a trial."""
    lives = _lives_of(recorded)
    found = []
    for keys in groups(watcher, lives, steps):
        trial = Trial(keys, watcher)
        try:
            tried = run(trial)
        except Exception:  # the user's code minds, so this cannot be let go
            continue
        if _without_lives(tried.events) != _without_lives(recorded.events):
            continue
        frees = lives.moved(_lives_of(tried))
        if frees:
            found.append(Release(trial.edits, frees))
    return found


def _lives_of(recorder: Recorder) -> Lives:
    return Lives(recorder.events, recorder.host_reads)


def _without_lives(events: list[Event]) -> list[Event]:
    """What is done, and not how long anything is held."""
    done = [event for event in events if not isinstance(event, Free)]
    return [_without_variables(event) if isinstance(event, Call) else event for event in done]


def _without_variables(call: Call) -> Call:
    made = [new._replace(held=0) for new in call.made]
    return Call(call.op, call.place, call.args, call.kwargs, call.results, made)


def in_all_events(release: Release, events: list[Event]) -> Release:
    """With positions that count frees too, as the step file does."""
    index_of = [i for i, event in enumerate(events) if not isinstance(event, Free)] + [len(events)]
    return release._replace(
        frees=[(index_of[position], storage) for position, storage in release.frees]
    )
