"""All that has to be in place while operators are recorded, put in place and taken away again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from .attention import attention_told
from .libraries import unaware_libraries
from .model import tensors_in_order
from .optimizers import nothing_overflows
from .places import Places
from .recorder import Recorder
from .recurrent import recurrent_told
from .values import Notes, Values


@contextlib.contextmanager
def recording(
    model: torch.nn.Module, capability: tuple[int, int], note: Notes
) -> Iterator[Recorder]:
    """Records what runs inside, in a FakeTensorMode on the phantom device (device.py). What `model`
    holds is told first."""
    places = Places(model)
    recorder = Recorder(places, Values(note))
    places.on_forward = lambda: recorder.phase("forward")
    for kind, name, tensor in tensors_in_order(model):
        recorder.model_tensor(kind, name, tensor)
    with contextlib.ExitStack() as stack:
        stack.enter_context(attention_told(recorder, capability))
        stack.enter_context(recurrent_told(recorder))
        stack.enter_context(unaware_libraries())
        stack.enter_context(nothing_overflows())
        stack.enter_context(places)
        stack.enter_context(recorder)
        yield recorder
    recorder.finish()
