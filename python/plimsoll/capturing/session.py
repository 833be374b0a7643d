"""All that has to be in place while operators are recorded, put in place and taken away again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from ..base.assumptions import NOTHING_STATED, Assumptions
from ..base.notes import Note
from ..base.places import Places
from ..events.recorder import Recorder
from ..events.repeated import Layers
from ..knowledge.values import Values
from ..world.libraries import libraries_not_tracing
from ..world.model import OnDevice, tensors_in_order
from ..world.quantized import products_of_quantized_weights
from .attention import attention_as_one_call, flex_attention_as_one_call
from .cells import cells_without_data
from .compiling import Compiling
from .loading import is_quantized, tell_loaded
from .optimizers import no_overflow, scalers_as_new
from .recurrent import flat_layers, recurrent_as_one_call


@contextlib.contextmanager
def recording(
    target: OnDevice,
    capability: tuple[int, int],
    compiling: Compiling,
    note: Note,
    stated: Assumptions = NOTHING_STATED,
    layers: Sequence[Layers] = (),
) -> Iterator[Recorder]:
    """Records what runs inside, in a FakeTensorMode on the phantom device (device.py). What the
    model holds is told first. `layers`: of a model that has few of its layers."""
    places = Places(target.model)
    recorder = Recorder(places, Values(note, stated=stated))
    places.on_forward = lambda: recorder.phase("forward")
    if is_quantized(target.model):
        tell_loaded(recorder, target.model, layers)
    else:
        _tell_model(recorder, target)
    with contextlib.ExitStack() as stack:
        stack.enter_context(attention_as_one_call(recorder, capability))
        stack.enter_context(flex_attention_as_one_call(recorder, capability, note))
        stack.enter_context(recurrent_as_one_call(recorder))
        stack.enter_context(cells_without_data())
        stack.enter_context(libraries_not_tracing())
        stack.enter_context(products_of_quantized_weights(note, stated))
        stack.enter_context(no_overflow())
        stack.enter_context(scalers_as_new(recorder, note))
        stack.enter_context(places)
        stack.enter_context(compiling.of(recorder, places))
        stack.enter_context(recorder)
        yield recorder
    recorder.finish()


def _tell_model(recorder: Recorder, target: OnDevice) -> None:
    """As `model.to("cuda")` makes it; and, in another memory format, `model.to(memory_format=...)`
    after that: each tensor is made anew before the old one goes, which leaves gaps."""
    later = []
    layer_of = {id(weight): layer for layer in flat_layers(target.model) for weight in layer}
    waiting: list[tuple[str, str, torch.Tensor]] = []
    for kind, name, tensor in tensors_in_order(target.model):
        first = target.reordered.pop(id(tensor), None)
        layer = layer_of.get(id(tensor))
        if layer is not None:
            waiting.append((kind, name, tensor))
            if tensor is layer[-1]:
                _tell_layer(recorder, waiting)
        elif first is None:
            recorder.model_tensor(kind, name, tensor)
        else:
            layout = [list(first.shape), list(first.stride())]
            recorder.call("aten.empty_strided.default", layout, {}, [first])
            later.append((kind, name, tensor, first))
    while later:
        kind, name, tensor, first = later.pop(0)
        recorder.model_tensor(kind, name, tensor)
        del first


def _tell_layer(recorder: Recorder, weights: list[tuple[str, str, torch.Tensor]]) -> None:
    """A recurrent layer's: each as it comes to the device, then all in one piece."""
    copies = []
    for _, _, tensor in weights:
        with recorder.quiet():
            copies.append(torch.empty_like(tensor))
        recorder.call("aten.empty_like.default", [], {}, copies[-1:])
    piece = recorder.number(copies[0])
    while weights:
        recorder.model_tensor(*weights.pop(0), piece=piece)
    while copies:
        del copies[0]
