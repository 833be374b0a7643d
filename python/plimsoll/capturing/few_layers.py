"""A model by few of its layers, where the others are like them. What the layers of a configuration
are is seen in the modules that it makes, and in the lists that it has for them."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, NamedTuple

from ..events.repeated import Layers

#: The numbers of layers in configurations of all kinds, and what such a list is part of.
_COUNTS = {
    "num_hidden_layers": "",
    "n_layer": "",
    "num_layers": "encoder",
    "encoder_layers": "encoder",
    "num_decoder_layers": "decoder",
    "decoder_layers": "decoder",
}


class FewLayers(NamedTuple):
    config: Any
    layers: list[Layers]


def with_few_layers(torch: Any, kind: Any, config: Any) -> FewLayers | None:
    """None where the model is small enough, or its layers are not alike."""
    values = config.to_dict()
    counts = {key: values[key] for key in _COUNTS if isinstance(values.get(key), int)}
    small = copy.deepcopy(config)
    periods = {}
    for key, count in counts.items():
        lists = _lists_of(values, count)
        period = _period(list(lists.values()), count)
        if period is None:
            continue
        periods[key] = period
        kept = Layers.fewest(count, period)
        for name, elements in lists.items():
            setattr(small, name, elements[:kept])
        setattr(small, key, kept)
    if not periods:
        return None
    with contextlib.suppress(Exception):
        few, all_of_it = _on_meta(torch, kind, small), _on_meta(torch, kind, config)
        layers = _lists(torch, few, {key: (counts[key], periods[key]) for key in periods}, small)
        if layers and _is_like(few, all_of_it, layers):
            return FewLayers(small, layers)
    return None


def _lists_of(values: dict[str, Any], count: int) -> dict[str, list[Any]]:
    """What a configuration says of each layer."""
    return {k: v for k, v in values.items() if isinstance(v, list) and len(v) == count}


def _period(lists: list[list[Any]], count: int) -> int | None:
    for period in range(1, count // 2 + 1):
        fewer = Layers.fewest(count, period) < count
        if fewer and all(v[i] == v[i % period] for v in lists for i in range(count)):
            return period
    return None


def _on_meta(torch: Any, kind: Any, config: Any) -> Any:
    with torch.device("meta"):
        return kind(config)


def _lists(torch: Any, model: Any, wanted: dict[str, tuple[int, int]], config: Any) -> list[Layers]:
    """One for each number of layers, or none at all."""
    found = []
    paths = [
        (name, len(module))
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList)
    ]
    outer = [
        (path, length)
        for path, length in paths
        if not any(path.startswith(f"{other}.") for other, _ in paths)
    ]
    two_sided = len(wanted) > 1
    for key, (count, period) in wanted.items():
        kept = getattr(config, key)
        fitting = [
            path
            for path, length in outer
            if length == kept and (not two_sided or _COUNTS[key] in path.split("."))
        ]
        if len(fitting) != 1:
            return []
        found.append(Layers(fitting[0], kept, count, period))
    return found


def _is_like(few: Any, all_of_it: Any, layers: list[Layers]) -> bool:
    """Whether the large model is the small one with more of the same."""
    shapes = {name: (tuple(p.shape), p.dtype) for name, p in few.named_parameters()}
    other = {name: (tuple(p.shape), p.dtype) for name, p in all_of_it.named_parameters()}
    for one in layers:
        shapes = dict(_longer(shapes, one))
    return shapes == other


def _longer(shapes: dict[str, Any], layers: Layers) -> Any:
    more = layers.wanted - layers.captured
    for name, shape in shapes.items():
        start = f"{layers.path}."
        if not name.startswith(start):
            yield name, shape
            continue
        number, _, rest = name[len(start) :].partition(".")
        layer = int(number)
        unit = layers.unit(layer)
        yield f"{start}{layer + (more if unit > 1 else 0)}.{rest}", shape
        if unit == 1:
            for copy_at in range(layer + layers.period, layer + more + 1, layers.period):
                yield f"{start}{copy_at}.{rest}", shape
