"""In which types and which memory format a job is captured, and whether compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Union

import torch
from torch import nn

#: The name of all those that a plan can choose from.
PLAN = "plan"
_FORMAT = "channels_last"
_COMPILED = "compiled"

Wanted = Union[str, Sequence[str]]


class Precision(NamedTuple):
    """How the weights, the arithmetic and the memory format are taken; None: as the user has it."""

    name: str
    weights: torch.dtype | None = None
    autocast: torch.dtype | None = None
    scaled: bool = False
    channels_last: bool = False
    compiled: bool = False

    @property
    def as_written(self) -> bool:
        """Whether types, autocast and scaler are the user's own."""
        return self.weights is None

    def in_channels_last(self) -> Precision:
        return self._with(_FORMAT)._replace(channels_last=True)

    def and_compiled(self) -> Precision:
        return self._with(_COMPILED)._replace(compiled=True)

    def _with(self, what: str) -> Precision:
        return self._replace(name=what if self.name == _AS_WRITTEN else f"{self.name}+{what}")


_AS_WRITTEN = "as_written"
AS_WRITTEN = Precision(_AS_WRITTEN)
#: Of a job that is compiled as it was written: without that.
EAGER = Precision("eager")
_PLAIN = (
    Precision("fp32", torch.float32),
    Precision("bf16", torch.bfloat16),
    Precision("amp_bf16", torch.float32, torch.bfloat16),
    Precision("amp_fp16", torch.float32, torch.float16, scaled=True),
)
PRECISIONS = {
    precision.name: precision
    for plain in (AS_WRITTEN, *_PLAIN)
    for eager in (plain, plain.in_channels_last())
    for precision in (eager, eager.and_compiled())
}
_FOR_A_PLAN = ("amp_bf16", "amp_fp16", "bf16")


def names() -> str:
    """What may stand in a list, for people."""
    plain = ", ".join(plain.name for plain in _PLAIN)
    return f"{plain}, {_FORMAT}, {_COMPILED}, or some joined: bf16+{_FORMAT}+{_COMPILED}"


def are_known(wanted: Wanted) -> bool:
    if isinstance(wanted, str):
        return wanted == PLAN
    return all(name in PRECISIONS for name in wanted)


def for_a_plan(model: nn.Module, autocast: torch.dtype | None, scalable: bool) -> list[Precision]:
    """Those that may make this job faster or smaller, without those that it has already.
    `scalable`: whether a gradient scaler can be put into its loop."""
    types = [PRECISIONS[name] for name in _FOR_A_PLAN]
    types = [p for p in types if scalable or not p.scaled]
    types = [p for p in types if not _is_already(p, model, autocast)]
    formats = [p.in_channels_last() for p in (AS_WRITTEN, *types)]
    return types + (formats if _gains_by_format(model) else [])


def _is_already(precision: Precision, model: nn.Module, autocast: torch.dtype | None) -> bool:
    types = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return types == {precision.weights} and autocast is precision.autocast


def _gains_by_format(model: nn.Module) -> bool:
    """A single convolution is what cuts an image into patches; the rest of the model is none."""
    found = list(_convolutions(model))
    return len(found) > 1 and not all(
        weight.is_contiguous(memory_format=torch.channels_last) for weight in found
    )


def _convolutions(model: nn.Module) -> Iterator[torch.Tensor]:
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            yield module.weight
