"""How long this machine's Python takes to issue the calls of a training step: what predictions need
where the host, not the GPU, decides how long a step takes.

Models that are too small to keep a GPU busy are trained for some seconds, and each phase of their
steps is timed by itself. How many calls a phase has is counted as a capture counts them: operators
that make memory or write to it, not views.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

_STEPS, _WARM_UP = 15, 3
_BLOCKS = 24
_WIDTH = 128


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
    """Of one phase: calls, tensors in lists, tensors read."""

    calls: int
    entries: int
    read: int


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
    models = [_perceptron, _convolutions, _windows]
    plain = [_timed(torch, device, model, _adamw) for model in models]
    loops = [_timed(torch, device, model, _adamw_in_a_loop) for model in models]
    few = [_timed(torch, device, model, _sgd) for model in models]
    again = [_timed(torch, device, model, _sgd, checkpointed=True) for model in models]
    return fitted(plain, loops, few, again)


def fitted(
    plain: Sequence[Step], loops: Sequence[Step], few: Sequence[Step], again: Sequence[Step]
) -> HostTimes:
    """`plain` and `few` have optimizers that take whole lists, of many tensors and of few; `again`
    are those of `few` with checkpoints."""
    eager = [*plain, *loops, *few]
    forward = _a_call([step.forward for step in eager])
    backward = _a_call([step.backward for step in eager])
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
    each = max(0.0, statistics.median(more) / _BLOCKS)
    read = statistics.median((b.counted.read - a.counted.read) / _BLOCKS for a, b in pairs)
    return 0.75 * each, 0.25 * each / max(1.0, read)


# What is timed.


def _timed(
    torch: Any,
    device: str,
    model: Callable[[Any], tuple[Any, tuple[int, ...]]],
    optimizer: Callable[[Any, Any], Any],
    checkpointed: bool = False,
) -> Step:
    blocks, sizes = model(torch)
    blocks.to(device).train()
    steps = optimizer(torch, blocks.parameters())
    x = torch.randn(*sizes, device=device)

    def forward() -> Any:
        y = x
        for block in blocks:
            y = _again(torch, block, y) if checkpointed else block(y)
        return y.square().mean()

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
            self.calls = self.entries = self.read = 0

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
        counts.append(Counted(counter.calls, counter.entries, counter.read))
    optimizer.zero_grad()
    return counts


def _perceptron(torch: Any) -> tuple[Any, tuple[int, ...]]:
    nn = torch.nn
    blocks = [
        nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.LayerNorm(_WIDTH))
        for _ in range(_BLOCKS)
    ]
    return nn.ModuleList(blocks), (16, _WIDTH)


def _convolutions(torch: Any) -> tuple[Any, tuple[int, ...]]:
    nn = torch.nn
    blocks = [
        nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        for _ in range(_BLOCKS)
    ]
    return nn.ModuleList(blocks), (2, 16, 16, 16)


def _windows(torch: Any) -> tuple[Any, tuple[int, ...]]:
    nn, functional = torch.nn, torch.nn.functional

    class Windows(torch.nn.Module):  # type: ignore[name-defined,misc]
        """Attention in windows that are cut out and put back: many views, few kernels."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(_WIDTH)
            self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)

        def forward(self, x: Any) -> Any:
            n, side, _, width = x.shape
            y = torch.roll(self.norm(x), (2, 2), (1, 2)).view(n, side // 4, 4, side // 4, 4, width)
            y = y.permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, width)
            q, k, v = self.qkv(y).view(-1, 16, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind(0)
            y = functional.scaled_dot_product_attention(q, k, v)
            y = self.out(y.transpose(1, 2).reshape(-1, 16, width))
            y = y.view(n, side // 4, side // 4, 4, 4, width).permute(0, 1, 3, 2, 4, 5)
            return x + torch.roll(y.reshape(n, side, side, width), (-2, -2), (1, 2))

    return nn.ModuleList(Windows() for _ in range(_BLOCKS)), (1, 8, 8, _WIDTH)


def _adamw(torch: Any, parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, 1e-4, foreach=True)


def _adamw_in_a_loop(torch: Any, parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, 1e-4, foreach=False)


def _sgd(torch: Any, parameters: Any) -> Any:
    return torch.optim.SGD(parameters, 1e-4, momentum=0.9, foreach=True)
