"""Finds the models, the optimizers and the steps of a script by watching it run.

Everything on the device is written down from the script's first line. Which of it is the model and
where a step begins is known later: a model at its first forward, a step when an optimizer that has
had its turn gets it again. So those marks are kept apart, with the event before which they belong,
and are put in at the end.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, NoReturn

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer

from ..base.notes import Note
from ..base.places import Places, current_frame
from ..capturing.compiling import uncompiled
from ..capturing.garbage import collect_after_step
from ..capturing.optimizers import state_tensors
from ..capturing.phases import mark_phases
from ..capturing.recurrent import FlatWeights, layers_of
from ..events.event import (
    Buffer,
    Call,
    Event,
    Free,
    HostPeak,
    Label,
    Parameter,
    Phase,
    StepBegin,
    Tensor,
)
from ..events.host import HostMemory, resident
from ..events.pieces_of_run import numbered_anew
from ..events.recorder import Recorder, on_device
from ..knowledge.values import Values
from ..world.draws import Draws
from ..world.model import tensors_in_order
from .coming_due import ComingDue
from .data_sizes import DataSizes
from .files import tensors_in
from .heaviest import OF_ALL, Heaviest
from .kept import find_keeper
from .later import EVALUATION, LOAD, SAVE, STEP, Later, length_of
from .loading import Loading, has_workers
from .run import STEPS, HostPeaks, Kept
from .serving import BATCHES, Serving, computes, trains
from .stand_ins import OneRank

_LARGE = 64 << 20
#: A function of torch.distributed.checkpoint: it lets an optimizer that has no state yet step with
#: gradients of zeros. That is no training.
_MAKES_STATE = "_init_optim_state"


class _FromHost(NamedTuple):
    """A call that made memory out of nothing that was on the device: a batch, or a model."""

    event: int
    storages: list[int]


class ScriptRecorder(Recorder):
    """Tells when something comes from the host, and what is there."""

    # Data sets are looked into on the host: permutations, lengths, labels.
    small = 1 << 20

    def __init__(self, places: Places, values: Values) -> None:
        super().__init__(places, values)
        self.before_from_host: Callable[[], None] = lambda: None
        self.from_host: list[_FromHost] = []
        self.host = HostMemory()
        self.draws: Draws | None = None
        #: Called after each operator.
        self.on_call: Callable[[], None] = lambda: None

    def call(
        self, op: str, args: list[Any], kwargs: dict[str, Any], results: list[torch.Tensor]
    ) -> None:
        comes = self._comes_from_host(args, kwargs, results)
        if comes:
            self.before_from_host()
        super().call(op, args, kwargs, results)
        last = self.events[-1]
        if comes and isinstance(last, Call):
            made = [new.storage for new in last.made]
            self.from_host.append(_FromHost(len(self.events) - 1, made))
            if self._phase == "inputs":
                self.label("input", results)
        self.on_call()

    def _see(
        self, func: Any, args: Any, kwargs: dict[str, Any], result: Any, name: str | None
    ) -> None:
        super()._see(func, args, kwargs, result, name)
        for tensor in tensors_in(result):
            if not on_device(tensor):
                self.host.see(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self.draws is not None and isinstance(result, FakeTensor):
            self.draws.operator(func, args, kwargs or {}, result)
        if kwargs and _pins(func, args, kwargs):
            self.host.pin(result)
        elif func is torch.ops.aten._local_scalar_dense.default and on_device(args[0]):
            self.host.pinned.read(args[0].element_size())
        return result

    def _ran_for_real(self, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            self.host.see(result)

    def _comes_from_host(self, args: Any, kwargs: Any, results: list[torch.Tensor]) -> bool:
        assert self._places is not None
        if self._places.in_model() or torch._C._current_autograd_node() is not None:
            return False
        # A single number is a constant of some formula.
        if not any(result.numel() > 1 and self._is_new(result) for result in results):
            return False
        return not any(on_device(tensor) for tensor in tensors_in([args, kwargs]))

    def is_in(self, phase: str) -> bool:
        return self._phase == phase

    def _runs_for_real(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        # The order in which a loader takes a large data set.
        order = func.overloadpacket is torch.ops.aten.randperm
        return order or super()._runs_for_real(func, args, kwargs)


class ScriptPlaces(Places):
    """Finds the models: what is called outside any other module, and has parameters."""

    def __init__(self) -> None:
        super().__init__()
        self._at_model: list[Callable[[nn.Module], None]] = []
        self._found = False

    def call_at_model(self, function: Callable[[nn.Module], None]) -> None:
        """`function` is called with each model, before its first forward: in the order in which
        functions were given."""
        self._at_model.append(function)

    def before_region(self) -> None:
        if not self._found:
            for module in _models():
                self.before_module(module)

    def before_module(self, module: nn.Module) -> None:
        if not self.in_model() and not self.knows(module) and _has_tensors(module):
            self._found = True
            for function in self._at_model:
                function(module)


class Watch:
    """Follows one script through its first three steps, and then as far as it gets in a moment."""

    def __init__(
        self,
        recorder: ScriptRecorder,
        places: ScriptPlaces,
        note: Note,
        enough: Callable[[], NoReturn],
        steps: int = STEPS,
        seconds: float = 0.0,
        data_seconds: float = 0.0,
        whole: bool = False,
        left_alone: frozenset[str] | None = frozenset(),
    ) -> None:
        """`enough` is called, from within the script, when enough was seen. It ends the process:
        nothing of the script runs any more. `steps`: how many to see; more than the first few only
        in so many seconds of the processor. `whole`: no loop of a script that trains nothing is cut
        short. `left_alone`: branches that do not come due sooner."""
        self._wanted = steps
        self.whole = whole
        self._until = time.process_time() + seconds
        #: The sizes of all batches of the first loader, where they are wanted.
        self.data = DataSizes() if data_seconds else None
        self.data_loader: Any = None
        self._recorder = recorder
        self._places = places
        self._note = note
        self._host = recorder.host
        self._loading = Loading(self._host)
        self.later = Later(recorder, self._host, note, enough, self._evaluates)
        if data_seconds:
            self.later.heaviest = Heaviest(data_seconds)
        # An epoch's data are counted batch by batch.
        self.coming_due = ComingDue(self, recorder, None if data_seconds else left_alone)
        self.later.is_wanted = lambda: self.coming_due.is_wanted
        #: Peaks of what is in the host's memory: before the first forward, and in the steps.
        self.host_built = self.host_in_steps = HostPeak(0, "")
        #: What the process has, and had before the script began.
        self._resident = self._resident_before = resident()
        #: Nothing of the script runs any more.
        self.is_over = False
        #: Called when an optimizer is made.
        self.on_optimizer: Callable[[], None] = lambda: None
        #: Called when a model's forward begins, with whether it is in training.
        self.before_forward: Callable[[bool], None] = lambda trains: None
        #: Called when an optimizer begins its step.
        self.before_optimizer: Callable[[], None] = lambda: None
        #: Called when something comes to the device.
        self.on_arrival: Callable[[], None] = lambda: None
        self.serving = Serving(recorder)
        self._makes_optimizers = False
        #: A model that is in training was computed with autograd.
        self._trains = False
        #: By iterator of a loader: batches that it gave while nothing trained.
        self._served: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.roots: list[nn.Module] = []
        #: What the models hold: by storage, the event that tells it.
        self._held: dict[int, Parameter | Buffer] = {}
        #: Recurrent layers: the storages of their weights.
        self._flat: list[tuple[int, ...]] = []
        #: Where each step begins.
        self.begins: list[int] = []
        self._first_forward = 0
        #: Where the next one does, if this one is over.
        self._next: int | None = None
        self._stepped: list[int] = []
        self._in_a_step: set[int] = set()
        #: Those that were there when the steps were over: their names and parameters.
        self._optimizers: list[tuple[str, set[int]]] = []
        #: Parameters that an optimizer has stepped, by their ids.
        self._updated: set[int] = set()
        self._depth = 0
        #: What was saved is being loaded.
        self._loads = False
        #: A loader makes a batch.
        self._fetches = False
        #: Of what the second step made and the third one did not let go.
        self.keeper: Kept | None = None
        #: By data set: batches that loaders have given, in all and by the optimizer's turn in each
        #: step.
        self.fetched: Counter[int] = Counter()
        self._fetched_by_step: list[Counter[int]] = []
        places.call_at_model(self._found)
        places.on_forward = self._forward
        recorder.before_from_host = self._from_host

    # What is found.

    def _found(self, module: nn.Module) -> None:
        inner = uncompiled(module)
        if isinstance(inner, OneRank):
            inner = uncompiled(inner.module)
        self._places.know(inner)
        self._places.know_as(module, "")
        if not self.roots:
            self.host_built = self._host.cut()
            self._resident = resident()
        self.roots.append(inner)
        recorder = self._recorder
        self._flat += layers_of(inner, recorder)
        prefix = f"{type(inner).__name__}." if len(self.roots) > 1 else ""
        for kind, name, tensor in tensors_in_order(inner):
            number = recorder.number(tensor)
            if number and number not in self._held:
                self._held[number] = recorder.as_model_tensor(kind, prefix + name, tensor)
        if self.later.begun:
            self.later.found_model()
        elif len(self.begins) <= 1:
            self._begin_first()

    def _begin_first(self) -> None:
        """The first step begins with what comes from the host after the models were made, as far
        as those have been found; the others are found later in the step."""
        if not self.begins:
            self._first_forward = len(self._recorder.events)
        setup = self._recorder.events[: self._first_forward]
        last = max((i for i, event in enumerate(setup) if self._makes_model(event)), default=-1)
        after = (made.event for made in self._recorder.from_host if made.event > last)
        self.begins = [min(next(after, self._first_forward), self._first_forward)]

    def _makes_model(self, event: Event) -> bool:
        return isinstance(event, Call) and any(new.storage in self._held for new in event.made)

    # What happens.

    def _from_host(self) -> None:
        self.on_arrival()
        if self._depth or self._loads or not self.roots:
            return
        if self._stepped:
            self._may_begin()
        if self.later.begun and self._is_being_loaded():
            return
        if self.later.begun and (self._may_be_a_model() or self._was_fetched_before()):
            return self.later.leave_step()
        if self.later.begun and self._follow() == EVALUATION:
            return
        # Labels that are made beside a forward are part of it.
        if not self._recorder.is_in("forward"):
            self._recorder.phase("inputs")

    def _is_being_loaded(self) -> bool:
        """What was read from a file goes to its place: load_state_dict. accelerate moves it there
        with autograd switched on."""
        loads = self.later.stage == LOAD and self.later.batch_trains is None
        return loads and (not torch.is_grad_enabled() or _is_inside("load_state_dict"))

    def _may_be_a_model(self) -> bool:
        """Modules are brought to the device without autograd, while others may be in training: what
        is computed next tells what that was for."""
        trains = any(root.training for root in self.roots)
        return self.later.batch_trains is None and trains and not torch.is_grad_enabled()

    def _was_fetched_before(self) -> bool:
        """accelerate fetches a batch ahead: what comes to the device after a save was fetched
        before, and the models are still set as the evaluation before that had them."""
        unknown = self.later.batch_trains is None and self.later.stage == SAVE
        return unknown and torch.is_grad_enabled() and not any(r.training for r in self.roots)

    def _forward(self) -> None:
        self.before_forward(any(root.training for root in self.roots))
        # Inside an optimizer's step it is a closure's.
        if self._stepped and not self._depth:
            self._may_begin()
        if not self._stepped:
            self._trains |= torch.is_grad_enabled() and any(root.training for root in self.roots)
            self.serving.skips = self.serves and not self.whole
            self.serving.forward(self._running_root())
        if self.later.begun and self._follow() == EVALUATION:
            return self.later.forward()
        if self._depth:
            self._recorder.turn_into("forward")
        self._recorder.phase("forward")

    def _running_root(self) -> nn.Module | None:
        """The model that computes, where there is one alone."""
        return self.roots[0] if len(self.roots) == 1 else None

    def _may_begin(self) -> None:
        """A step may begin here: something is fetched or computed after an optimizer's step."""
        if self._next is not None or self.later.begun:
            return
        collect_after_step(self._recorder, self._note)
        self._next = len(self._recorder.events)
        if self._has_steps():
            self._begin_later(self._next)

    def _has_steps(self) -> bool:
        return self._has_seen_enough() and self._in_a_step <= set(self._stepped)

    def _has_seen_enough(self) -> bool:
        seen = len(self.begins)
        return seen >= self._wanted or (seen >= STEPS and time.process_time() > self._until)

    def _begin_later(self, at: int) -> None:
        before, after = self._fetched_by_step[-2:]
        self._optimizers = _optimizers()  # with the script they go
        self.keeper = self._find_keeper()
        self.host_in_steps = self._host.cut()
        self.later.begin(at, set(after - before), bool(self._waiting()))

    def _find_keeper(self) -> Kept | None:
        """What is left of the second step after the third. A graph has no name: a number that was
        computed with it does."""
        if len(self.begins) < STEPS:
            return None
        recorder = self._recorder
        second = recorder.events[self.begins[-2] : self.begins[-1]]
        made = {new.storage for event in second if isinstance(event, Call) for new in event.made}
        left = made & recorder.alive()
        if not left:
            return None
        return self.coming_due.bounded(find_keeper(lambda one: recorder.number(one) in left))

    def _evaluates(self) -> bool:
        """Nothing is set to training: then the batches of the training's own data are evaluated."""
        return not torch.is_grad_enabled() and not any(root.training for root in self.roots)

    def _follow(self) -> str:
        """Behind the steps: what is done here. A batch tells by its loader: a teacher runs without
        autograd in a step, and an evaluation may forget to turn it off."""
        trains = self.later.batch_trains
        if trains is None:
            trains = torch.is_grad_enabled() and any(root.training for root in self.roots)
        stage = STEP if trains or self._depth else EVALUATION
        self.later.enter(stage)
        return stage

    def next_batch(self, iterator: Any, give: Callable[[], Any]) -> Any:
        made = give
        if has_workers(iterator):

            def made() -> Any:
                with self._host.elsewhere():
                    return give()

        self._fetches = True
        try:
            batch = self._next_batch(iterator, made)
        except StopIteration:
            self._loading.end(iterator)
            if self.data is not None and iterator is self.data_loader and not self.later.begun:
                self.data.complete = True
            raise
        finally:
            self._fetches = False
        return self._loading.given(iterator, batch)

    def _next_batch(self, iterator: Any, give: Callable[[], Any]) -> Any:
        if self._ends_loader(iterator):
            if self.data is not None and iterator is self.data_loader:
                self.later.heaviest.on_batch = self.data.add
            batch = self.later.heaviest_batch(iterator, give)
            if self.data is not None and iterator is self.data_loader:
                self.data.complete = self.later.heaviest.looked == OF_ALL
            if batch is None:
                raise StopIteration
            return batch
        if self.data is not None and self.data_loader is None and not self.later.begun:
            self.data_loader = iterator
            self.data.follow(iterator)
        batch = give()
        if not self.later.begun:
            self.later.heaviest.see(id(iterator._dataset), batch)
            if self.data is not None and iterator is self.data_loader:
                self.data.add(batch)
        return batch

    def pins(self, tensor: torch.Tensor) -> torch.Tensor:
        if on_device(tensor) or self._host.is_pinned(tensor):
            return tensor
        pinned = tensor if _is_large(tensor) else tensor.clone()
        self._host.pin(pinned)
        return pinned

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return not on_device(tensor) and self._host.is_pinned(tensor)

    @property
    def serves(self) -> bool:
        """The script trains nothing, as far as it got."""
        return not (self._stepped or self._makes_optimizers or self._trains)

    @property
    def has_served(self) -> bool:
        """At its end: it has computed something all the same."""
        events = self._recorder.events
        return self.serves and not trains(events) and computes(events)

    def _ends_serving(self, iterator: Any) -> bool:
        """Whether a loader that is not trained with is to come to its end now."""
        given = self._served.get(iterator, 0)
        length = length_of(iterator)
        if not self.whole and given >= BATCHES and length > given:
            self.serving.cut_short(given, length - given, must_be_even=False)
            return True
        self.serving.begin()
        self._served[iterator] = given + 1
        return False

    def _ends_loader(self, iterator: Any) -> bool:
        if not self.later.begun:
            if not self.has_steps:
                if self.serves and self._ends_serving(iterator):
                    return True
                self.later.know(iterator)
                return False
            self._may_begin()
        return self.later.begun and self.later.ends(iterator)

    @property
    def has_steps(self) -> bool:
        return self.later.begun or (bool(self._stepped) and not self._depth and self._has_steps())

    @property
    def is_beyond_steps(self) -> bool:
        return self.has_steps and not self.is_over

    @property
    def is_wanted(self) -> bool:
        return self.coming_due.is_wanted

    @property
    def are_over(self) -> bool:
        return self.later.begun

    @property
    def is_between(self) -> bool:
        """The script's own loop runs: no model, no evaluation, no step of an optimizer."""
        if self._optimizer_computes() or self._fetches or self._places.in_model():
            return False
        if self._evaluates():
            return False
        in_backward = torch._C._current_autograd_node() is not None
        return not in_backward and self.later.batch_trains is not False

    @property
    def may_come_due(self) -> bool:
        follows = self.later.begun and not self.is_over and not self.later.waits
        return follows and self.is_between

    @property
    def in_optimizer(self) -> bool:
        return self._optimizer_computes() and self.later.begun and not self.is_over

    def _optimizer_computes(self) -> bool:
        """And not the closure that it is given, as by Lightning: that is the loop's, and has
        autograd."""
        if not self._depth or not torch.is_grad_enabled():
            return bool(self._depth)
        frame = current_frame()
        return frame is not None and isinstance(frame.f_locals.get("self"), Optimizer)

    def came_due(self) -> None:
        self.later.came_due = True

    def begin_due(self) -> None:
        self.later.begin_due()

    def end_due(self) -> None:
        self.later.end_due()

    def saves(self, through_host: int) -> None:
        if self.has_steps:  # a trainer saves before it fetches the next batch
            self._may_begin()
        if self.later.begun:
            self.later.enter(SAVE)
        self._host.passes_through(through_host)

    def makes_optimizer(self) -> None:
        self._makes_optimizers = True
        self.on_optimizer()

    def leaves(self) -> None:
        if self.later.begun:
            self.later.leave_evaluation()

    @contextlib.contextmanager
    def loading(self, largest: int) -> Iterator[None]:
        if self.later.begun:
            self.later.enter(LOAD)
        self._host.passes_through(largest)
        before, self._loads = self._loads, True
        try:
            yield
        finally:
            self._loads = before

    def _before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if _is_inside(_MAKES_STATE):
            return
        self.before_optimizer()
        turns = not self._stepped or id(optimizer) in self._stepped
        if self._depth == 0 and turns and not self.later.begun:
            self._fetched_by_step.append(self.fetched.copy())
        if self._depth == 0 and turns:
            self.coming_due.turn()
        if self._depth == 0 and id(optimizer) in self._stepped:
            self._in_a_step = set(self._stepped)
            begin = self._next if self._next is not None else len(self._recorder.events)
            if self.later.begun:
                self.later.turn()
            elif self._has_seen_enough():
                self._begin_later(begin)
            else:
                self.begins.append(begin)
                self._stepped = []
        if self.later.begun and self._depth == 0:
            self.later.enter(STEP)
        self._depth += 1
        self._recorder.phase("optimizer")

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if _is_inside(_MAKES_STATE):
            return
        self._depth -= 1
        self._recorder.label("optimizer_state", state_tensors(optimizer))
        new = not _parameters_of(optimizer) <= self._updated
        self._updated |= _parameters_of(optimizer)
        if new and self.later.begun:
            self.later.another_stepped(bool(self._waiting()))
        if self._depth == 0:
            if not self.begins:
                self.begins = [0]
            self._stepped.append(id(optimizer))
            self._next = None
            self.later.batch_trains = None

    def host_peaks(self) -> HostPeaks:
        steps = self.host_in_steps if self.later.begun else self._host.cut()
        imports = max(self._resident - self._resident_before, 0)
        return HostPeaks(imports, self.host_built, steps, self.later.on_host)

    def script_ended(self) -> None:
        """The last step is over where something came after it: gradients may go only then."""
        self._recorder.finish()
        if self.later.begun:
            self.later.drop_steps_alone()
        elif self._stepped and self._next is None and len(self.begins) > 1:
            del self._recorder.events[self.begins.pop() :]

    def note_waiting_optimizers(self) -> None:
        """Notes the optimizers that are there and had no turn, for parameters of their own."""
        if not self._optimizers:
            self._optimizers = _optimizers()
        for name, parameters in self._waiting():
            self._note(
                f"an optimizer ({name}, {len(parameters)} parameter tensors) "
                "had no turn in the steps that were seen; what it takes is not counted"
            )

    def _waiting(self) -> list[tuple[str, set[int]]]:
        """Optimizers that had no turn, and parameters that no other one has had."""
        return [
            (name, parameters - self._updated)
            for name, parameters in self._optimizers
            if parameters - self._updated
        ]

    @property
    def passes(self) -> int:
        """Batches that a step of the optimizer takes, one after the other."""
        if len(self._fetched_by_step) > 1:
            before, after = self._fetched_by_step[-2:]
            if after - before:
                return max((after - before).values())
        if len(set(self._stepped) | self._in_a_step) > 1:
            return 1  # networks that train against each other have a backward each
        return _passes_in(self._recorder.events[self.begins[-1] : self.later.at])

    @property
    def steps(self) -> int:
        return len(self.begins) if self._stepped else 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        def parameters() -> Iterator[torch.Tensor]:
            return (p for root in self.roots for p in root.parameters())

        hooks = (self._before_optimizer, self._after_optimizer)
        with mark_phases(self._recorder, parameters, *hooks):
            yield

    # The end.

    def served(self) -> list[Event]:
        """Of a script that trains nothing: the models where they are made, and what it computes, in
        parts."""
        flat = FlatWeights(self._recorder)
        for layer in self._flat:
            flat.together(layer)
        first = self.begins[0]
        setup = self._recorder.events[:first]
        events = [told for event in setup for told in self._before_steps(event, flat)]
        fetched = [made for made in self._recorder.from_host if made.event >= first]
        given = frozenset(number for made in fetched for number in made.storages)
        return numbered_anew(events + self.serving.told(first, set(self._held), given))

    def events(self) -> list[Event]:
        """With the models and the steps in their places."""
        begins = set(self.begins)
        flat = FlatWeights(self._recorder)
        for layer in self._flat:
            flat.together(layer)
        parts: dict[int, list[Event]] = {}
        for index, part in self.later.parts:
            parts.setdefault(index, []).append(part)
        first = self.begins[0]
        fetched = {made.event: made.storages for made in self._recorder.from_host}
        forward = next(
            (
                i
                for i, event in enumerate(self._recorder.events)
                if i >= first and isinstance(event, Phase)
            ),
            len(self._recorder.events),
        )
        events: list[Event] = []
        for index, event in enumerate(self._recorder.events):
            if index in begins:
                events.append(StepBegin())
            events.extend(parts.get(index, []))
            if index == first and not isinstance(event, Phase):
                events.append(Phase("inputs"))
            events.extend(self._before_steps(event, flat) if index < first else [event])
            # What came before the first forward was not known to be of a step.
            if first <= index < forward and index in fetched:
                events.append(Label("input", fetched[index]))
        # A script ends with a save: it has nothing to do on the device, but on the host.
        events.extend(parts.get(len(self._recorder.events), []))
        return events

    def _before_steps(self, event: Event, flat: FlatWeights) -> list[Event]:
        """The model where it is made. What fills it with values is left out."""
        if not isinstance(event, Call):
            return [event] if isinstance(event, Free) else []
        made = [new.storage for new in event.made]
        if len(made) == 1 and made[0] in self._held:
            return flat.events(event, self._held[made[0]])
        return [event] if made else []


def _passes_in(step: list[Event]) -> int:
    """Backwards before each of which something came from the host."""
    passes, fetched = 0, False
    for event in step:
        if isinstance(event, Call) and event.made:
            fetched |= _takes_from_host(event)
        elif event == Phase("backward"):
            passes += fetched
            fetched = False
    return max(passes, 1)


def _takes_from_host(call: Call) -> bool:
    given = [tensor for tensor in call.args if isinstance(tensor, Tensor)]
    return bool(given) and not any(tensor.storage for tensor in given)


def _has_tensors(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _pins(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the result lies in pinned memory: it is asked for, or the host does not wait for what
    comes from the device."""
    if kwargs.get("pin_memory"):
        return kwargs.get("device") is None or _is_host(kwargs["device"])
    comes = func is torch.ops.aten._to_copy.default and kwargs.get("non_blocking")
    return bool(comes) and on_device(args[0]) and _is_host(kwargs.get("device"))


def _is_inside(name: str) -> bool:
    """Whether a function of this name has called this."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame.f_code.co_name == name


def _is_large(tensor: torch.Tensor) -> bool:
    """It has values, and a copy of them would take long."""
    return not isinstance(tensor, FakeTensor) and tensor.untyped_storage().nbytes() > _LARGE


def _is_host(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cpu"


def _models() -> list[nn.Module]:
    """Those with parameters on the device that are in no other."""
    found = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    found = [one for one in found if any(on_device(p) for p in one.parameters())]
    inner = {id(part) for one in found for part in one.modules() if part is not one}
    return [one for one in found if id(one) not in inner]


def _optimizers() -> list[tuple[str, set[int]]]:
    # Of a proxy only the type may be asked: what it stands for may be gone.
    found = [one for one in gc.get_objects() if issubclass(type(one), Optimizer)]
    return [(type(one).__name__, _parameters_of(one)) for one in found]


def _parameters_of(optimizer: Optimizer) -> set[int]:
    groups = getattr(optimizer, "param_groups", [])
    return {id(parameter) for group in groups for parameter in group["params"]}
