"""The models of a script that were found, and what they hold on the device."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from ..capturing.recurrent import FlatWeights, layers_of
from ..events.event import Buffer, Call, Event, Free, Parameter
from ..events.recorder import Recorder
from ..world.model import tensors_in_order


class FoundModels:
    """In the order of their first forwards."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.roots: list[nn.Module] = []
        #: What they hold: by storage, the event that tells it.
        self.held: dict[int, Parameter | Buffer] = {}
        #: Recurrent layers: the storages of their weights.
        self._flat: list[tuple[int, ...]] = []

    def add(self, module: nn.Module) -> None:
        self.roots.append(module)
        recorder = self._recorder
        self._flat += layers_of(module, recorder)
        prefix = f"{type(module).__name__}." if len(self.roots) > 1 else ""
        for kind, name, tensor in tensors_in_order(module):
            number = recorder.number(tensor)
            if number and number not in self.held:
                self.held[number] = recorder.as_model_tensor(kind, prefix + name, tensor)

    @property
    def any_in_training(self) -> bool:
        return any(root.training for root in self.roots)

    @property
    def only(self) -> nn.Module | None:
        """The model that computes, where there is one alone."""
        return self.roots[0] if len(self.roots) == 1 else None

    def parameters(self) -> Iterator[nn.Parameter]:
        return (p for root in self.roots for p in root.parameters())

    def are_made_by(self, event: Event) -> bool:
        return isinstance(event, Call) and any(new.storage in self.held for new in event.made)

    def flat_weights(self) -> FlatWeights:
        """To tell their recurrent layers with."""
        flat = FlatWeights(self._recorder)
        for layer in self._flat:
            flat.together(layer)
        return flat

    def told_before_steps(self, event: Event, flat: FlatWeights) -> list[Event]:
        """The model where it is made. What fills it with values is left out."""
        if not isinstance(event, Call):
            return [event] if isinstance(event, Free) else []
        made = [new.storage for new in event.made]
        if len(made) == 1 and made[0] in self.held:
            return flat.events(event, self.held[made[0]])
        return [event] if made else []
