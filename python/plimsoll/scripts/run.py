"""One run of a script: what it is given, and what its process sends back."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Union

from ..base.assumptions import NOTHING_STATED, Assumptions
from ..base.errors import CaptureError
from ..base.lists import GivenLists
from ..events.counted import Shares
from ..events.event import HostPeak, Recorded
from .data_sizes import EpochSizes

#: The first makes the optimizer's state, the second finds it, the third is what all others do.
STEPS = 3


class Stretch(NamedTuple):
    """The larger batch has the samples of the smaller one, some of them again. So both are padded
    to the same length, and differ in nothing else than the number of samples."""

    few: int
    many: int

    def drawn(self, size: int) -> int | None:
        """How many samples a batch of this size is made of; None if it cannot be."""
        drawn, rest = divmod(size * self.few, self.many)
        return None if rest else drawn


class Run(NamedTuple):
    words: list[str]
    #: What every DataLoader is given, or nothing where the script has it from the command.
    loader_batch: int | None
    gpu: str
    #: With the variables that torchrun sets, for so many.
    ranks: int = 0
    #: Of the run at the larger batch.
    stretch: Stretch | None = None
    #: Steps to see, and the time of the processor in which more than a few are.
    steps: int = STEPS
    seconds: float = 0.0
    #: Of the processor, to look through an epoch's data, all sizes of which are wanted.
    data_seconds: float = 0.0
    #: Where the script compiles: whether that is done, or left out.
    compiles: bool = False
    #: By the user, of values.
    stated: Assumptions = NOTHING_STATED
    #: Connections to other machines are left to it.
    allow_network: bool = False
    #: Of a script that trains nothing: every batch and every token of its loops is to be seen.
    whole: bool = False
    #: Branches, by key, that come due when they do (coming_due.py); None: all.
    left_alone: frozenset[str] | None = frozenset()
    #: Its forwards and losses are put into autocast; by a library's own setting, where it runs the
    #: loop.
    autocast: bool = False


class Kept(NamedTuple):
    """Who keeps what a step leaves behind."""

    #: "history", "Trainer.outputs".
    name: str
    #: "train.py:32"; empty where no line was found that fills it.
    where: str
    #: It has room for so many, and lets go of the oldest; 0 where it keeps all.
    most: int = 0
    #: It lets go before a step makes what takes the place.
    before: bool = False

    def described(self) -> dict[str, Any]:
        """For the job's file: without what is not known."""
        known = {"most": self.most, "before": self.before}
        told = {key: value for key, value in known.items() if value}
        return {"name": self.name, "where": self.where, **told}


class Growing(NamedTuple):
    """What a branch leaves each time that it comes due, beside what it has left before."""

    #: "train.py:63 `if step % 50 == 0:`"
    branch: str
    #: The line that makes most of it: "train.py:64 in main".
    where: str
    bytes: int
    #: Steps from one time to the next; 0 where that is not known.
    every: int
    keeper: Kept | None


class NotFollowed(NamedTuple):
    """A part of the script that was not followed, and may change what the job needs."""

    what: str
    #: Empty where that is not known.
    file: str = ""
    line: int = 0

    @classmethod
    def at(cls, place: str, what: str) -> NotFollowed:
        """`place`: "train.py:41 in main"."""
        file, _, rest = place.partition(":")
        line = rest.split(" ")[0]
        return cls(what, file, int(line)) if line.isdigit() else cls(what)

    def described(self) -> dict[str, Any]:
        """For the job's file."""
        at = {"file": self.file, "line": self.line} if self.file else {}
        return {"what": self.what, **at}


class HostPeaks(NamedTuple):
    """What the script has in the host's memory at most, in bytes."""

    #: What the process took until the model's first forward that is in no tensor of torch: modules,
    #: arrays, texts.
    imports: int
    #: Tensors, until then.
    build: HostPeak
    #: In the steps.
    steps: HostPeak
    #: In each part that follows them.
    later: list[HostPeak]


@dataclass(frozen=True)
class RunResult:
    recorded: Recorded
    #: The class of the first model.
    model: str
    #: What was assumed, in words.
    notes: list[str]
    #: As the step file has them.
    settings: dict[str, Any]
    #: The release.
    torch: str
    #: The batch sizes that the script's loaders asked for.
    loader_batches: list[int]
    #: Batches that a step of the optimizer takes.
    passes: int
    keeper: Kept | None
    host: HostPeaks
    #: Batches of an epoch, where its loader came to its end sooner.
    epoch: int | None
    #: The line at which it could not go on without values.
    lost_at: str
    data: EpochSizes | None = None
    #: It calls torch.compile, whether that was done or left out.
    compiles: bool = False
    #: It trains nothing: there are no steps, and what it computes is in parts.
    serves: bool = False
    #: A loop of it was cut short, and its rounds are not alike: nothing else is told.
    uneven: bool = False
    #: What is one more each time that it comes due.
    growing: list[Growing] = field(default_factory=list)
    #: Branches that were let come due, and with which the script did not go on; by key.
    left: frozenset[str] = frozenset()
    #: What keeps it unknown whether the job fits.
    not_followed: list[NotFollowed] = field(default_factory=list)
    #: Something was computed in autocast.
    uses_autocast: bool = False
    #: The library that runs the loop and has a setting for it; empty where there is none.
    autocast_set_by: str = ""
    #: That modules were given.
    lists: GivenLists = GivenLists()
    #: Lines that read or change gradients between a backward and the optimizer's step.
    gradient_uses: list[str] = field(default_factory=list)
    #: How large a share of its elements a mean counts, by line.
    counted: Shares = field(default_factory=dict)


class Failure(NamedTuple):
    """A CaptureError, in a form that can be sent."""

    what: str
    where: str | None
    hint: str | None

    @classmethod
    def of(cls, error: CaptureError) -> Failure:
        return cls(error.what, error.where, error.hint)


Outcome = Union[RunResult, Failure]


def write_outcome(path: str, outcome: Outcome) -> None:
    with open(path, "wb") as file:
        pickle.dump(outcome, file)


def read_outcome(path: str) -> RunResult:
    """Raises what a failed run has sent. Written by our own process a moment ago."""
    with open(path, "rb") as file:
        outcome: Outcome = pickle.load(file)
    if isinstance(outcome, Failure):
        raise CaptureError(outcome.what, where=outcome.where, hint=outcome.hint)
    return outcome
