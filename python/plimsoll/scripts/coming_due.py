"""What a script does every so many steps: an evaluation, a save, a copy of the weights.

The steps that are followed are too few for it to come due. So it is let come due once behind them,
and again where it leaves something: one more each time, or one in place of the last. What comes due
in the steps, as an optimizer's turn after four passes does, is left as it is. What was not reached
at all is told.
"""

from __future__ import annotations

import builtins
import os
import runpy
import sys
from collections import Counter, defaultdict
from importlib.machinery import SourceFileLoader
from types import CodeType, FrameType
from typing import Any, Callable, Protocol

from torch.compiler import is_compiling

from ..base.patching import Patch
from ..base.places import is_own_file
from ..events.event import Call
from ..events.recorder import Recorder
from .branches import ASKS, ENTERS, LEAVES, PERIOD, Branch, Marker
from .kept import find_keeper, value_in_script
from .run import Growing, Kept, NotFollowed

#: What the first leaves the second may take the place of, as with the best weights so far; or the
#: third, as with the last two.
_TIMES = 3
#: Until what has room for so many is full.
_MOST_TIMES = 16
#: What is due in every step of so many, or more often, is a part of the steps.
_SELDOM = 3
#: Steps behind a comparison that was let turn: the optimizer's state is made, found, and as always.
_SETTLED = 3
#: Of a counter that a comparison is made with, when it is larger than it was.
_TURNS_FALSE = ("<", "<=")
_TURNS_TRUE = (">", ">=")


class Steps(Protocol):
    """What is known of the steps of a script."""

    @property
    def may_come_due(self) -> bool:
        """They are over, and nothing is going on that would be disturbed."""

    @property
    def is_between(self) -> bool:
        """The loop itself runs: no model, no evaluation, no optimizer, no loader."""

    @property
    def are_over(self) -> bool: ...

    @property
    def in_optimizer(self) -> bool:
        """One computes, behind the steps."""

    def came_due(self) -> None:
        """Something did that the steps did not have."""

    def begin_due(self) -> None:
        """What comes due is of no batch that is trained with."""

    def end_due(self) -> None: ...


class _Test:
    """What was seen of one."""

    def __init__(self, turns: int, in_steps: bool) -> None:
        """`turns`: of optimizers, before it was asked first."""
        self.turns = turns
        self.in_steps = in_steps
        self.counter = self.bound = self.first = 0
        #: The counter went up; or down, since it begins anew in each step or epoch.
        self.grew = self.fell = False
        #: It is asked where nothing may come due, or goes by no counter.
        self.is_barred = False
        self.truths: set[bool] = set()
        #: In the steps: values of the counter at which it was due.
        self.due_at: set[int] = set()
        #: The last two events before which it was asked.
        self.asked_at: list[int] = []

    def see(self, truth: bool, counter: Any, bound: Any, may_fall: bool) -> None:
        """`may_fall`: it is the script that has the counter begin anew."""
        if type(counter) is not int or type(bound) not in (int, type(None)):
            self.is_barred = True
            return
        if self.truths:
            self.grew |= counter > self.counter
            self.fell |= may_fall and (counter < self.counter or (bound or 0) != self.bound)
        else:
            self.first = counter
        self.counter, self.bound = counter, bound or 0
        self.truths.add(truth)

    def see_of(self, truth: bool, counter: Any, numbers: Any, may_fall: bool) -> None:
        """Of `counter in numbers`: it goes by the next of them."""
        try:
            coming = [one for one in numbers if type(one) is int and one > counter]
        except TypeError:
            self.is_barred = True
            return
        self.see(truth, counter, self.bound, may_fall)
        self.bound = min(coming, default=0)

    def steps_apart(self, turns: int) -> int:
        """From one time that it is due to the next; 0 where that is not known. `turns`: as many as
        there were by now."""
        counted = self.counter - self.first
        if not self.in_steps or counted <= 0:
            return 0
        return round(self.bound * (turns - self.turns) / counted)

    def turns_into(self, kind: str) -> bool | None:
        """What a comparison will be, which has always been the other."""
        if not self.grew or self.fell or len(self.truths) != 1:
            return None
        (now,) = self.truths
        if kind in _TURNS_TRUE and not now or kind in _TURNS_FALSE and now:
            return not now
        return not now if kind in ("==", "!=", "in") and self.bound > self.counter else None


class _Coming:
    """What was seen of a branch."""

    def __init__(self) -> None:
        #: Times it was entered.
        self.entered = 0
        #: Behind the steps: times it came due, and of those the ones that went as far as its end.
        self.due = self.ended = 0
        self.is_let = False
        #: It was let come due where it was not.
        self.was_let = False
        self.did_something = False
        #: It is to be looked at what is left, or is to come due, when it is asked for next.
        self.looks = self.again = False
        self.code: CodeType | None = None
        #: The event that it begins before, and the one that its round of the loop does.
        self.begin = self.since = 0
        #: What the first time left: bytes by storage.
        self.left: dict[int, int] = {}
        #: Bytes that a round leaves in which it does not come due.
        self.usual = 0
        self.every = 0
        #: It comes due at most, where it leaves something each time.
        self.times = _TIMES
        #: The turn in which a comparison was let turn, that leads here.
        self.turned: int | None = None


class ComingDue:
    """Of one run. `left_alone`: branches, by key, that come due when they do; None: all."""

    def __init__(
        self, steps: Steps, recorder: Recorder, left_alone: frozenset[str] | None
    ) -> None:
        self._steps = steps
        self._recorder = recorder
        self._left_alone = left_alone
        self.marker = Marker()
        self._tests: dict[int, _Test] = {}
        self._comings: defaultdict[int, _Coming] = defaultdict(_Coming)
        self._turns = self._turns_in_steps = 0
        #: The turn in which what an optimizer does every so many steps comes due, for all that it
        #: is asked of.
        self._turn_due = 0
        #: Storages that branches made which came due.
        self._made: set[int] = set()
        #: What is one more each time.
        self.growing: list[Growing] = []

    def turn(self) -> None:
        """An optimizer has its turn."""
        self._turns += 1
        self._turns_in_steps += not self._steps.are_over

    # What the marks do.

    def asks(self, number: int, value: Any, counter: Any, bound: Any) -> Any:
        """What the test is taken to be."""
        if type(value) not in (bool, int):
            return value
        steps_over = self._steps.are_over
        test = self._tests.get(number)
        if test is None:
            test = self._tests[number] = _Test(self._turns, not steps_over)
        if test.is_barred and test.fell:
            return value  # it is asked for every sample, most likely
        # Behind the steps loaders are at their end sooner, and other loops begin.
        is_own = not (steps_over and test.in_steps)
        see = test.see_of if self.marker.tests[number].kind == "in" else test.see
        see(bool(value), counter, bound, is_own)
        test.is_barred |= is_own and not self._steps.is_between
        known = self.marker.tests[number]
        if known.kind == PERIOD:
            branch = known.leads[known.due]
            assert branch is not None
            is_due = bool(value) == known.due
            if not steps_over and is_due:
                test.due_at.add(test.counter)
            elif steps_over and self._comes(test, branch, is_due):
                value = type(value)(known.due)
            elif not is_due and self._comes_in_optimizer(test, branch):
                value = type(value)(known.due)
        elif steps_over:
            value = self._turned(number, test, value)
        if known.in_expression:
            self._pass(known.leads[bool(value)])
        if known.kind == PERIOD or known.trims:
            test.asked_at = [*test.asked_at[-1:], len(self._recorder.events)]
        return value

    def _pass(self, branch: int | None) -> None:
        """Through a branch that has no lines."""
        if branch is not None:
            coming = self._comings[branch]
            coming.entered += 1
            if coming.is_let:
                coming.is_let = False
                coming.due = coming.ended = 1

    def enters(self, branch: int) -> None:
        coming = self._comings[branch]
        coming.entered += 1
        if not coming.is_let:
            return
        coming.is_let = coming.again = False
        coming.due += 1
        coming.code = sys._getframe(2).f_code
        coming.begin = len(self._recorder.events)
        self._steps.begin_due()

    def leaves(self, branch: int, value: Any = None) -> Any:
        coming = self._comings[branch]
        if coming.ended < coming.due:
            coming.ended += 1
            self._steps.end_due()
            self._look_behind(branch, coming)
        return value

    # What comes due.

    def _comes(self, test: _Test, branch: int, is_due: bool) -> bool:
        """Behind the steps."""
        coming = self._comings[branch]
        if not self._steps.may_come_due or not self._may_come(test, branch):
            return False
        if coming.looks:
            self._look_again(coming)
        if coming.due and not coming.again and not is_due:
            return False
        if not coming.due:
            self._look_before(test, coming)
        coming.is_let = True
        coming.was_let |= not is_due
        return True

    def _turned(self, number: int, test: _Test, value: Any) -> Any:
        """Behind the steps, a comparison that has come out the same so far comes out the other way:
        once, or from here on where the counter has passed its bound."""
        branch = self._turns_to(number, test)
        if branch is None:
            return value
        coming = self._comings[branch]
        if coming.turned is not None:
            lasts = self.marker.tests[number].kind in _TURNS_TRUE + _TURNS_FALSE
            return type(value)(not value) if lasts else value
        if not self._steps.may_come_due:
            return value
        coming.turned = self._turns
        coming.is_let = coming.was_let = True
        self._tell(coming)
        return type(value)(not value)

    def _turns_to(self, number: int, test: _Test) -> int | None:
        """The branch that a comparison will lead to, if it may be let turn."""
        known = self.marker.tests[number]
        if known.kind == PERIOD or known.trims or known.of_length or test.is_barred:
            return None
        turned = test.turns_into(known.kind)
        branch = None if turned is None else known.leads[turned]
        if branch is None or self._left_alone is None:
            return None
        tests = self.marker.tests
        if any(one.kind == PERIOD and branch in one.leads.values() for one in tests):
            return None  # it comes due by that
        return None if self.marker.branches[branch].key in self._left_alone else branch

    @property
    def _settles(self) -> bool:
        """A comparison was let turn: a step makes what comes of it, and the next ones find it."""
        turned = (one.turned for one in self._comings.values() if one.turned is not None)
        return any(self._turns < at + _SETTLED for at in turned)

    def _may_come(self, test: _Test, branch: int) -> bool:
        known = self.marker.branches[branch]
        if test.is_barred or self._left_alone is None or known.key in self._left_alone:
            return False
        outer = None if known.outer is None else self._comings[known.outer]
        if outer is not None and outer.ended < outer.due and not self._comings[branch].due:
            return True  # its own period is a multiple of the one around it
        goes_on = test.grew and not test.fell and self._turns > test.turns
        return goes_on and len(test.due_at) * _SELDOM <= max(self._turns_in_steps, _SELDOM)

    def _comes_in_optimizer(self, test: _Test, branch: int) -> bool:
        """It is asked for each parameter, and comes due for all in one turn."""
        goes_on = test.grew and not test.fell and not test.due_at
        left_alone = self._left_alone
        if not self._steps.in_optimizer or not goes_on or left_alone is None:
            return False
        if self.marker.branches[branch].key in left_alone:
            return False
        self._turn_due = self._turn_due or self._turns
        if self._turns != self._turn_due:
            return False
        coming = self._comings[branch]
        coming.was_let = True
        self._tell(coming)
        return True

    @property
    def is_wanted(self) -> bool:
        """There is something to come due that the steps asked for."""
        if self._settles:
            return True
        for number, test in list(self._tests.items()):
            known = self.marker.tests[number]
            turns_to = self._turns_to(number, test) if test.in_steps else None
            if turns_to is not None and self._comings[turns_to].turned is None:
                return True
            branch = known.leads[known.due] if known.kind == PERIOD else None
            if branch is None or not test.in_steps or not self._may_come(test, branch):
                continue
            coming = self._comings[branch]
            if not coming.due or coming.looks or coming.again:
                return True
        return False

    @property
    def wants_epochs(self) -> bool:
        """There is something to come due in a loop around the one that trains."""
        for number, test in list(self._tests.items()):
            known = self.marker.tests[number]
            branch = known.leads[known.due] if known.kind == PERIOD else None
            if branch is None or test.is_barred or test.fell or test.in_steps:
                continue
            if self._left_alone is None or self.marker.branches[branch].key in self._left_alone:
                continue
            coming = self._comings[branch]
            if not coming.due or coming.looks or coming.again:
                return True
        return False

    # What it leaves.

    def _look_before(self, test: _Test, coming: _Coming) -> None:
        """When it comes due the first time."""
        now = len(self._recorder.events)
        before, coming.since = [now, now, *test.asked_at][-2:]
        usual = self._left_of(self._made_since(before, coming.since))
        coming.usual = sum(usual.values())
        coming.every = test.steps_apart(self._turns)

    def _look_behind(self, branch: int, coming: _Coming) -> None:
        """At its end."""
        made = self._made_since(coming.begin)
        self._made |= made.keys()
        if coming.turned is not None:
            return
        if coming.due == 1:
            coming.left = self._left_of(made)
            coming.looks = bool(coming.left) or not made
            if made:
                self._tell(coming)
            return
        coming.left = self._left_of(coming.left)
        coming.again = bool(coming.left) and coming.due < coming.times
        if coming.left and coming.due == coming.times:
            self._tell_growing(self.marker.branches[branch], coming)

    def _look_again(self, coming: _Coming) -> None:
        """A round later. Where it made nothing itself, it may keep what the step made."""
        if coming.left:
            coming.usual = 0
        else:
            made = self._made_since(coming.since, coming.begin)
            coming.left = {one: made[one] for one in made.keys() - self._made}
        coming.left = self._left_of(coming.left)
        coming.looks = False
        coming.again = sum(coming.left.values()) > coming.usual
        if coming.again:
            self._tell(coming)

    def _tell(self, coming: _Coming) -> None:
        coming.did_something = True
        self._steps.came_due()

    def _tell_growing(self, branch: Branch, coming: _Coming) -> None:
        keeper = self.bounded(
            find_keeper(lambda tensor: self._recorder.number(tensor) in coming.left)
        )
        if keeper is not None and coming.times <= keeper.most < _MOST_TIMES:
            # A list may be cut behind the branch that it has become too long in.
            coming.times, coming.again = keeper.most + 2, True
            return
        more = sum(coming.left.values()) - coming.usual
        if more > 0:
            where = self._where_made(coming.left)
            self.growing.append(Growing(branch.shown, where, more, coming.every, keeper))

    def bounded(self, keeper: Kept | None, begin: int = 0, made: int = 0) -> Kept | None:
        """With how many it keeps, if the script says so. `begin`: where the step begins that makes
        what is kept from `made` on, if a step does."""
        if keeper is None or keeper.most:
            return keeper
        by = {kept: value_in_script(name) for kept, name in self.marker.cut_by.items()}
        told = {kept: (most, False) for kept, most in {**by, **self.marker.cut_to}.items()}
        for number, test in self._tests.items():
            known = self.marker.tests[number]
            if known.trims and made:
                before = any(begin <= asked <= made for asked in test.asked_at)
                told[known.trims] = _room(known.kind, test.bound, before)
            elif known.trims and test.truths == {False}:
                told[known.trims] = test.bound, False
        for kept, (most, before) in told.items():
            is_same = kept.rsplit(".", 1)[-1] == keeper.name.rsplit(".", 1)[-1]
            if is_same and ("." in kept) == ("." in keeper.name) and most > 0:
                return keeper._replace(most=most, before=before)
        return keeper

    def _where_made(self, storages: dict[int, int]) -> str:
        """The line that made most of them."""
        by_line: Counter[str] = Counter()
        for call in self._recorder.events:
            if isinstance(call, Call):
                bytes_ = sum(storages.get(new.storage, 0) for new in call.made)
                by_line[call.place.where or ""] += bytes_
        return by_line.most_common(1)[0][0]

    def _made_since(self, begin: int, end: int | None = None) -> dict[int, int]:
        """Bytes by storage."""
        calls = (one for one in self._recorder.events[begin:end] if isinstance(one, Call))
        made = (new for call in calls for new in call.made)
        return {new.storage: new.size for new in made if isinstance(new.size, int)}

    def _left_of(self, made: dict[int, int]) -> dict[int, int]:
        alive = self._recorder.alive()
        return {number: size for number, size in made.items() if number in alive}

    # What is told.

    @property
    def turned(self) -> frozenset[str]:
        """The keys of branches that comparisons lead to which were let turn."""
        turned = (number for number, one in self._comings.items() if one.turned is not None)
        return frozenset(self.marker.branches[number].key for number in turned)

    @property
    def left(self) -> frozenset[str]:
        """The keys of branches that were let come due and left the script's loop."""
        return frozenset(
            self.marker.branches[number].key
            for number, coming in self._comings.items()
            if coming.was_let and coming.ended < coming.due and not self._is_inside(number)
        )

    def _is_inside(self, branch: int) -> bool:
        """It is cut short, and runs yet."""
        known, code = self.marker.branches[branch], self._comings[branch].code
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is code and known.first <= frame.f_lineno <= known.last:
                return True
            frame = frame.f_back
        return False

    def not_reached(self) -> list[str]:
        """Of what will be."""
        return self._shown(self._not_reached())

    def not_followed(self) -> list[NotFollowed]:
        """What was not reached, and may change what the job needs."""
        found = (self.marker.branches[number] for number in self._not_reached())
        return [
            NotFollowed(f"{one.text} was not reached", os.path.basename(one.path), one.line)
            for one in sorted(found, key=_place)
            if one.matters
        ]

    def _not_reached(self) -> set[int]:
        return {number for test in self._tests for number in self._waits_for(test)}

    def came_sooner(self) -> list[str]:
        """What was let come due, and did something on the device."""
        came = [(number, coming) for number, coming in self._comings.items() if coming.was_let]
        return self._shown({number for number, coming in came if coming.did_something})

    def may_grow(self) -> list[str]:
        """What left something, and did not come due often enough to say whether it is more each
        time."""
        some = [one for one in self._comings.items() if one[1].again and one[1].due < one[1].times]
        return self._shown({number for number, coming in some if self._left_of(coming.left)})

    def _shown(self, numbers: set[int]) -> list[str]:
        found = (self.marker.branches[number] for number in numbers)
        return [branch.shown for branch in sorted(found, key=_place)]

    def _waits_for(self, number: int) -> list[int]:
        """The branch that the counter of a test was too small for."""
        known, test = self.marker.tests[number], self._tests[number]
        if known.kind == PERIOD:
            is_waiting = bool(test.truths) and not test.fell and known.due not in test.truths
            branch = known.leads[known.due] if is_waiting else None
        else:
            turned = test.turns_into(known.kind)
            branch = None if turned is None else known.leads[turned]
        return [] if branch is None or self._comings[branch].entered else [branch]

    # Where marks are put.

    def patches(self) -> list[Patch]:
        """From here on files of the user's own that are read have marks."""
        load = SourceFileLoader.get_code
        read = getattr(runpy, "_get_code_from_file", None)

        def get_code(self_: Any, name: str) -> Any:
            return self._code_of(self_.get_filename(name)) or load(self_, name)

        def from_file(*args: Any) -> Any:
            """Of the script. From Python 3.12 on without the name of its file."""
            assert read is not None
            found, marked = read(*args), self._code_of(args[-1])
            if marked is None:
                return found
            return (marked, *found[1:]) if isinstance(found, tuple) else marked

        marks = {ASKS: self._asking(), ENTERS: self._entering(), LEAVES: self._leaving()}
        patches = [Patch(builtins, name, function) for name, function in marks.items()]
        patches.append(Patch(SourceFileLoader, "get_code", get_code))
        return patches if read is None else [*patches, Patch(runpy, read.__name__, from_file)]

    def _code_of(self, path: str) -> CodeType | None:
        """With marks. None where there is nothing to mark, or somebody else has to say why not."""
        if not is_own_file(path):
            return None
        try:
            with open(path, "rb") as file:
                return self.marked_code(file.read(), path)
        except OSError:
            return None

    def marked_code(self, source: bytes, path: str) -> CodeType | None:
        """Likewise, of what was read."""
        try:
            tree = self.marker.marked(source, path)
            return None if tree is None else compile(tree, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError):
            return None

    # A compiler looks into functions, and is to see nothing there.

    def _asking(self) -> Callable[..., Any]:
        def asks(number: int, value: Any, counter: Any, bound: Any) -> Any:
            return value if is_compiling() else self.asks(number, value, counter, bound)

        return asks

    def _entering(self) -> Callable[..., None]:
        def enters(branch: int) -> None:
            if not is_compiling():
                self.enters(branch)

        return enters

    def _leaving(self) -> Callable[..., Any]:
        def leaves(branch: int, value: Any = None) -> Any:
            return value if is_compiling() else self.leaves(branch, value)

        return leaves


def _room(kind: str, bound: int, before: bool) -> tuple[int, bool]:
    """What a list has at the end of a step that is trimmed where it is longer (">"), or as long.
    `before`: and not after what is put into it."""
    longest = bound + 1 if kind == ">" else bound
    return (longest if before else longest - 1), before


def _place(branch: Branch) -> tuple[str, int]:
    return branch.path, branch.line
