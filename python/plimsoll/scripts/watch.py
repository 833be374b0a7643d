"""Finds the models, the optimizers and the steps of a script by watching it run.

Everything on the device is written down from the script's first line. Which of it is the model and
where a step begins is known later: a model at its first forward, a step when an optimizer that has
had its turn gets it again. So those marks are kept apart, with the event before which they belong,
and are put in at the end (telling.py).
"""

from __future__ import annotations

import builtins
import contextlib
import time
from collections.abc import Iterator
from typing import Any, Callable, NoReturn

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer

from ..base.notes import Note
from ..base.patching import Patch
from ..base.places import is_called_in
from ..capturing.compiling import uncompiled
from ..capturing.garbage import collect_after_step
from ..capturing.optimizers import state_tensors
from ..capturing.phases import mark_phases
from ..events.event import Call, Event, HostPeak, Phase
from ..events.host import resident
from ..events.recorder import on_device
from .coming_due import ComingDue
from .fetching import Fetching
from .found_models import FoundModels
from .heaviest import Heaviest
from .kept import find_keeper
from .later import EVALUATION, LOAD, SAVE, STEP, Later
from .loops import Loops
from .optimizers import Optimizers, makes_state_alone
from .run import STEPS, HostPeaks, Kept
from .script_places import ScriptPlaces
from .script_recorder import ScriptRecorder
from .serving import Serving, computes, trains
from .stand_ins import OneRank
from .telling import passes_in, told_in_parts, told_in_steps

_LARGE = 64 << 20


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
        self._recorder = recorder
        self._places = places
        self._note = note
        self._host = recorder.host
        self.models = FoundModels(recorder)
        self.optimizers = Optimizers()
        self.later = Later(recorder, self._host, note, enough, self._evaluates)
        if data_seconds:
            self.later.heaviest = Heaviest(data_seconds)
        self.fetching = Fetching(self._host, self.later, self._ends_loader, bool(data_seconds))
        # An epoch's data are counted batch by batch.
        self.coming_due = ComingDue(self, recorder, None if data_seconds else left_alone)
        self.later.is_wanted = lambda: self.coming_due.is_wanted
        self.loops = Loops(self, recorder, self.later, self.coming_due.marker, self._fetched)
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
        #: A model that is in training was computed with autograd.
        self._trains = False
        #: Where each step begins.
        self.begins: list[int] = []
        self._first_forward = 0
        #: Where the next one does, if this one is over.
        self._next: int | None = None
        #: An evaluation is a part of the steps.
        self.has_evaluated = False
        #: What was saved is being loaded.
        self._loads = False
        #: Of what the second step made and the third one did not let go.
        self.keeper: Kept | None = None
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
        if not self.models.roots:
            self.host_built = self._host.cut()
            self._resident = resident()
        self.models.add(inner)
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
        made_by = self.models.are_made_by
        last = max((i for i, event in enumerate(setup) if made_by(event)), default=-1)
        after = (made.event for made in self._recorder.from_host if made.event > last)
        self.begins = [min(next(after, self._first_forward), self._first_forward)]

    # What happens.

    def _from_host(self) -> None:
        self.on_arrival()
        if self.optimizers.is_stepping or self._loads or not self.models.roots:
            return
        if self.optimizers.any_stepped:
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
        return loads and (not torch.is_grad_enabled() or is_called_in("load_state_dict"))

    def _may_be_a_model(self) -> bool:
        """Modules are brought to the device without autograd, while others may be in training: what
        is computed next tells what that was for."""
        trains = self.models.any_in_training
        return self.later.batch_trains is None and trains and not torch.is_grad_enabled()

    def _was_fetched_before(self) -> bool:
        """accelerate fetches a batch ahead: what comes to the device after a save was fetched
        before, and the models are still set as the evaluation before that had them."""
        unknown = self.later.batch_trains is None and self.later.stage == SAVE
        return unknown and torch.is_grad_enabled() and not self.models.any_in_training

    def _forward(self) -> None:
        self.before_forward(self.models.any_in_training)
        if self.optimizers.any_stepped and not self.later.begun:
            is_set_to = not self.models.any_in_training and not self.optimizers.is_stepping
            self.has_evaluated |= is_set_to or self.loops.is_beside_training
        # Inside an optimizer's step it is a closure's.
        if self.optimizers.any_stepped and not self.optimizers.is_stepping:
            self._may_begin()
        if not self.optimizers.any_stepped:
            self._trains |= torch.is_grad_enabled() and self.models.any_in_training
            self.serving.skips = self.serves and not self.whole
            self.serving.forward(self.models.only)
        if self.later.begun:
            in_another_loop = self.loops.computes()
            if self._follow() == EVALUATION:
                if in_another_loop and self.later.batch_trains is None:
                    self.later.leave_evaluation()
                return self.later.forward()
        if self.optimizers.is_stepping:
            self._recorder.turn_into("forward")
        self._recorder.phase("forward")

    def _may_begin(self) -> None:
        """A step may begin here: something is fetched or computed after an optimizer's step."""
        if self._next is not None or self.later.begun:
            return
        collect_after_step(self._recorder, self._note)
        self._next = len(self._recorder.events)
        if self._has_steps():
            self._begin_later(self._next)

    def _fetched(self) -> int:
        """Batches that loaders have given."""
        return sum(self.fetching.fetched.values())

    def begin_later(self) -> None:
        self._may_begin()

    def _has_steps(self) -> bool:
        return self._has_seen_enough() and self.optimizers.all_stepped

    def _has_seen_enough(self) -> bool:
        seen = len(self.begins)
        return seen >= self._wanted or (seen >= STEPS and time.process_time() > self._until)

    def _begin_later(self, at: int) -> None:
        self.optimizers.remember()
        self.keeper = self._find_keeper()
        self.host_in_steps = self._host.cut()
        self.loops.steps_end()
        trained = set(self.fetching.in_last_step())
        self.later.begin(at, trained, self.optimizers.some_wait)

    def _find_keeper(self) -> Kept | None:
        """What is left of the second step after the third. A graph has no name: a number that was
        computed with it does."""
        if len(self.begins) < STEPS:
            return None
        recorder = self._recorder
        begin, end = self.begins[-2:]
        alive = recorder.alive()
        left: dict[int, int] = {}
        for at, event in enumerate(recorder.events[begin:end], begin):
            if isinstance(event, Call):
                left.update({new.storage: at for new in event.made if new.storage in alive})
        if not left:
            return None
        keeper = find_keeper(lambda one: recorder.number(one) in left)
        return self.coming_due.bounded(keeper, begin, min(left.values()))

    def _evaluates(self) -> bool:
        """Nothing is set to training: then the batches of the training's own data are evaluated."""
        return not torch.is_grad_enabled() and not self.models.any_in_training

    def _follow(self) -> str:
        """Behind the steps: what is done here. A batch tells by its loader, a loop by what it did
        before: a teacher runs without autograd in a step, and an evaluation may forget to turn it
        off."""
        trains = self.later.batch_trains
        if trains is None:
            trains = torch.is_grad_enabled() and self.models.any_in_training
            trains = trains and not self.loops.is_beside_training
        stage = STEP if trains or self.optimizers.is_stepping else EVALUATION
        self.later.enter(stage)
        return stage

    # Optimizers.

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        hooks = (self._before_optimizer, self._after_optimizer)
        with mark_phases(self._recorder, self.models.parameters, *hooks):
            yield

    def _before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if makes_state_alone():
            return
        self.before_optimizer()
        if not self.optimizers.is_stepping:
            self._begin_turn(optimizer)
        self.optimizers.begin()
        self._recorder.phase("optimizer")

    def _begin_turn(self, optimizer: Optimizer) -> None:
        again = self.optimizers.has_stepped(optimizer)
        if again or not self.optimizers.any_stepped:
            if not self.later.begun:
                self.fetching.turn()
            self.coming_due.turn()
            self.loops.turn()
        if again:
            self._end_step()
        if self.later.begun:
            self.later.steps()

    def _end_step(self) -> None:
        self.optimizers.end_step()
        begin = self._next if self._next is not None else len(self._recorder.events)
        if self.later.begun:
            self.later.turn()
        elif self._has_seen_enough():
            self._begin_later(begin)
        else:
            self.begins.append(begin)
            self.optimizers.begin_step()

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if makes_state_alone():
            return
        self._recorder.label("optimizer_state", state_tensors(optimizer))
        if self.optimizers.end(optimizer) and self.later.begun:
            self.later.another_stepped(self.optimizers.some_wait)
        if not self.optimizers.is_stepping:
            if not self.begins:
                self.begins = [0]
            self.optimizers.had_turn(optimizer)
            self._next = None
            self.later.batch_trains = None

    # What the world around the script tells, as a Follower is told it.

    def next_batch(self, iterator: Any, give: Callable[[], Any]) -> Any:
        return self.fetching.next_batch(iterator, give)

    def _ends_loader(self, iterator: Any) -> bool:
        if not self.later.begun:
            if not self.has_steps:
                if self.serves and self.serving.ends(iterator, self.whole):
                    return True
                self.later.know(iterator)
                return False
            self._may_begin()
        return self.later.begun and self.later.ends(iterator)

    def pins(self, tensor: torch.Tensor) -> torch.Tensor:
        if on_device(tensor) or self._host.is_pinned(tensor):
            return tensor
        pinned = tensor if _is_large(tensor) else tensor.clone()
        self._host.pin(pinned)
        return pinned

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return not on_device(tensor) and self._host.is_pinned(tensor)

    def saves(self, through_host: int) -> None:
        if self.has_steps:  # a trainer saves before it fetches the next batch
            self._may_begin()
        if self.later.begun:
            self.later.enter(SAVE)
        self._host.passes_through(through_host)

    def makes_optimizer(self) -> None:
        self.optimizers.were_made = True
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

    # What is known of its steps.

    @property
    def serves(self) -> bool:
        """The script trains nothing, as far as it got."""
        return not (self.optimizers.any_stepped or self.optimizers.were_made or self._trains)

    @property
    def has_served(self) -> bool:
        """At its end: it has computed something all the same."""
        events = self._recorder.events
        return self.serves and not trains(events) and computes(events)

    @property
    def has_steps(self) -> bool:
        if self.later.begun:
            return True
        between = self.optimizers.any_stepped and not self.optimizers.is_stepping
        return between and self._has_steps()

    @property
    def is_beyond_steps(self) -> bool:
        return self.has_steps and not self.is_over

    @property
    def is_wanted(self) -> bool:
        return self.coming_due.is_wanted

    @property
    def wants_epochs(self) -> bool:
        return self.coming_due.wants_epochs

    @property
    def trains_from_loaders(self) -> bool:
        return bool(self.fetching.in_last_step())

    @property
    def are_over(self) -> bool:
        return self.later.begun

    @property
    def is_between(self) -> bool:
        """The script's own loop runs: no model, no evaluation, no step of an optimizer."""
        if self.optimizers.computes or self.fetching.is_under_way or self._places.in_model():
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
        return self.optimizers.computes and self.later.begun and not self.is_over

    def came_due(self) -> None:
        self.later.came_due = True

    def begin_due(self) -> None:
        self.later.begin_due()

    def end_due(self) -> None:
        self.later.end_due()

    def patches(self) -> list[Patch]:
        """From here on files of the user's own that are read have marks."""
        loops = [Patch(builtins, *one) for one in self.loops.functions().items()]
        return loops + self.coming_due.patches()

    # The end.

    def script_ended(self) -> None:
        """The last step is over where something came after it: gradients may go only then."""
        self._recorder.finish()
        if self._next is not None and self._computes_behind(self._next):
            self._begin_later(self._next)
            self.later.enter(EVALUATION)
        elif self.later.begun:
            self.later.drop_steps_alone()
        elif self.optimizers.any_stepped and self._next is None and len(self.begins) > 1:
            del self._recorder.events[self.begins.pop() :]

    def _computes_behind(self, begin: int) -> bool:
        """The script ended before all wanted steps, and evaluated behind its last one."""
        if self.later.begun:
            return False
        return any(isinstance(one, Phase) for one in self._recorder.events[begin:])

    def host_peaks(self) -> HostPeaks:
        steps = self.host_in_steps if self.later.begun else self._host.cut()
        imports = max(self._resident - self._resident_before, 0)
        return HostPeaks(imports, self.host_built, steps, self.later.on_host)

    @property
    def passes(self) -> int:
        """Batches that a step of the optimizer takes, one after the other."""
        fetched = self.fetching.in_last_step()
        if fetched:
            return max(fetched.values())
        if self.optimizers.are_many:
            return 1  # networks that train against each other have a backward each
        return passes_in(self._recorder.events[self.begins[-1] : self.later.at])

    @property
    def steps(self) -> int:
        return len(self.begins) if self.optimizers.any_stepped else 0

    def served(self) -> list[Event]:
        """Of a script that trains nothing: what it computes, in parts."""
        return told_in_parts(self._recorder, self.models, self.begins[0], self.serving)

    def events(self) -> list[Event]:
        """With the models and the steps in their places."""
        return told_in_steps(self._recorder, self.models, self.begins, self.later.parts)


def _is_large(tensor: torch.Tensor) -> bool:
    """It has values, and a copy of them would take long."""
    return not isinstance(tensor, FakeTensor) and tensor.untyped_storage().nbytes() > _LARGE
