"""How long this machine's Python takes to issue the calls of a training step: what predictions need
where the host, not the GPU, decides how long a step takes.

Networks of seven kinds, too small to keep a GPU busy, are trained for some seconds, in float32 and
under autocast, and each phase of their steps is timed by itself. How many calls a phase has is
counted as a capture counts them: operators that make memory or write to it, not views. Kinds differ
by half in what a call takes: the middle one is taken.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from . import networks

_STEPS, _WARM_UP = 12, 3


class HostTimes(NamedTuple):
    """Microseconds: a call of the forward and of the backward; of an optimizer a call with lists of
    tensors, each tensor of these lists, a call in a loop over parameters; a step besides its
    calls; a checkpoint, and each tensor that its calls read again."""

    forward: float
    backward: float
    list: float
    entry: float
    loop: float
    step: float
    checkpoint: float
    saved: float


class Counted(NamedTuple):
    """Of one phase: calls, tensors in lists, tensors read, and calls that only cast."""

    calls: int
    entries: int
    read: int
    casts: int = 0


class Phase(NamedTuple):
    counted: Counted
    us: float


class Step(NamedTuple):
    forward: Phase
    backward: Phase
    optimizer: Phase
    #: Of the whole, as long as it takes in one piece.
    us: float


def measured(torch: Any, device: str = "cuda") -> HostTimes:
    plain = [_timed(torch, device, network, _adamw) for network in networks.ALL]
    halves = [_timed(torch, device, network, _adamw, autocast=True) for network in networks.ALL]
    loops = [_timed(torch, device, network, _adamw_in_a_loop) for network in networks.ALL[::3]]
    few = [_timed(torch, device, network, _sgd) for network in networks.ALL]
    again = [_timed(torch, device, network, _sgd, checkpointed=True) for network in networks.ALL]
    return fitted([*plain, *halves], loops, few, again)


def fitted(
    plain: Sequence[Step], loops: Sequence[Step], few: Sequence[Step], again: Sequence[Step]
) -> HostTimes:
    """`plain` and `few` have optimizers that take whole lists, of many tensors and of few; `again`
    are those of `few` with checkpoints."""
    eager = [*plain, *loops, *few]
    backward = _a_call([step.backward for step in eager])
    forward = _a_call([_less_casts(step.forward, backward) for step in eager])
    entry, each_list = _line([step.optimizer for step in [*plain, *few]])
    besides = [
        step.us - step.forward.us - step.backward.us - step.optimizer.us for step in [*plain, *few]
    ]
    checkpoint, saved = _of_checkpoints(few, again, forward)
    return HostTimes(
        forward=forward,
        backward=backward,
        list=each_list,
        entry=entry,
        loop=_a_call([step.optimizer for step in loops]),
        step=max(0.0, statistics.median(besides)),
        checkpoint=checkpoint,
        saved=saved,
    )


def _less_casts(forward: Phase, cast: float) -> Phase:
    """Autocast's casts are made without Python, like the calls of a backward."""
    counted = forward.counted
    calls = counted._replace(calls=counted.calls - counted.casts, casts=0)
    return Phase(calls, forward.us - cast * counted.casts)


def _a_call(phases: Sequence[Phase]) -> float:
    return statistics.median(phase.us / max(1, phase.counted.calls) for phase in phases)


def _line(phases: Sequence[Phase]) -> tuple[float, float]:
    """Microseconds for each tensor in lists, and for each call besides: the line through what is
    taken for a call against its tensors."""
    points = [
        (phase.counted.entries / calls, phase.us / calls)
        for phase in phases
        for calls in [max(1, phase.counted.calls)]
    ]
    middle = [statistics.mean(values) for values in zip(*points)]
    spread = sum((x - middle[0]) ** 2 for x, _ in points)
    slope = sum((x - middle[0]) * (y - middle[1]) for x, y in points) / spread if spread else 0.0
    slope = max(0.0, slope)
    return slope, max(0.0, middle[1] - slope * middle[0])


def _of_checkpoints(
    few: Sequence[Step], again: Sequence[Step], forward: float
) -> tuple[float, float]:
    """What the backward takes more, besides its calls of the forward, as so much for each
    checkpoint, of which each model has as many as blocks, and for each tensor that is read: three
    quarters and one quarter, as they were where both were measured."""
    pairs = [(a.backward, b.backward) for a, b in zip(few, again)]
    more = [b.us - a.us - forward * (b.counted.calls - a.counted.calls) for a, b in pairs]
    each = max(0.0, statistics.median(more) / networks.BLOCKS)
    read = statistics.median((b.counted.read - a.counted.read) / networks.BLOCKS for a, b in pairs)
    return 0.75 * each, 0.25 * each / max(1.0, read)


# What is timed.


def _timed(
    torch: Any,
    device: str,
    network: Callable[[Any], tuple[Any, tuple[int, ...]]],
    optimizer: Callable[[Any, Any], Any],
    checkpointed: bool = False,
    autocast: bool = False,
) -> Step:
    blocks, sizes = network(torch)
    blocks.to(device).train()
    steps = optimizer(torch, blocks.parameters())
    x = torch.randn(*sizes, device=device)

    def forward() -> Any:
        y = x
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            for block in blocks:
                y = _again(torch, block, y) if checkpointed else block(y)
            return y.float().square().mean()

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    counts = _counted(torch, device, forward, steps)
    parts: list[list[float]] = [[], [], [], []]
    for _ in range(_STEPS):
        clock, loss = _clock(), forward()
        parts[0].append(clock())
        wait()
        clock = _clock()
        loss.backward()
        parts[1].append(clock())
        wait()
        clock = _clock()
        steps.step()
        steps.zero_grad()
        parts[2].append(clock())
        wait()
    for _ in range(_STEPS):
        clock = _clock()
        forward().backward()
        steps.step()
        steps.zero_grad()
        wait()
        parts[3].append(clock())
    middle = [statistics.median(times[_WARM_UP:]) for times in parts]
    forwards, backwards, updates = map(Phase, counts, middle)
    return Step(forwards, backwards, updates, us=middle[3])


def _again(torch: Any, block: Any, x: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)


def _clock() -> Callable[[], float]:
    begin = time.perf_counter()
    return lambda: 1e6 * (time.perf_counter() - begin)


def _is_on(value: Any, device: str) -> bool:
    return hasattr(value, "device") and value.device.type == device


def _counted(
    torch: Any, device: str, forward: Callable[[], Any], optimizer: Any
) -> list[Counted]:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.calls = self.entries = self.read = self.casts = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            lists = [a for a in args if isinstance(a, (list, tuple))]
            alone = [a for a in (*args, result) if isinstance(a, torch.Tensor)]
            # The counters of steps lie on the host, and no capture tells of them.
            there = [t for t in (*alone, *itertools.chain(*lists)) if _is_on(t, device)]
            if there and not func.is_view:
                self.calls += 1
                self.casts += func is torch.ops.aten._to_copy.default
                self.entries += sum(_is_on(t, device) for t in itertools.chain(*lists))
                self.read += sum(isinstance(a, torch.Tensor) for a in args)
            return result

    for _ in range(2):  # the optimizer's state is made by its first step
        forward().backward()
        optimizer.step()
        optimizer.zero_grad()
    counts = []
    loss: list[Any] = []
    for phase in (
        lambda: loss.append(forward()),
        lambda: loss.pop().backward(),
        lambda: optimizer.step(),
    ):
        with Counter() as counter:
            phase()
        counts.append(Counted(counter.calls, counter.entries, counter.read, counter.casts))
    optimizer.zero_grad()
    return counts


def _adamw(torch: Any, parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, 1e-4, foreach=True)


def _adamw_in_a_loop(torch: Any, parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, 1e-4, foreach=False)


def _sgd(torch: Any, parameters: Any) -> Any:
    return torch.optim.SGD(parameters, 1e-4, momentum=0.9, foreach=True)
