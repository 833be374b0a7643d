"""What was recorded of a script, with the marks in their places: the models where they are made,
and where each step or part begins."""

from __future__ import annotations

from ..events.event import Call, Event, Label, PartBegin, Phase, StepBegin, Tensor
from ..events.pieces_of_run import numbered_anew
from .found_models import FoundModels
from .script_recorder import ScriptRecorder
from .serving import Serving


def told_in_steps(
    recorder: ScriptRecorder,
    models: FoundModels,
    begins: list[int],
    later: list[tuple[int, PartBegin]],
) -> list[Event]:
    """`begins`: the event that each step begins before; `later`: likewise of the parts that follow
    the steps."""
    flat = models.flat_weights()
    parts: dict[int, list[Event]] = {}
    for index, part in later:
        parts.setdefault(index, []).append(part)
    first, at = begins[0], set(begins)
    fetched = {made.event: made.storages for made in recorder.from_host}
    forward = next(
        (i for i, event in enumerate(recorder.events) if i >= first and isinstance(event, Phase)),
        len(recorder.events),
    )
    events: list[Event] = []
    for index, event in enumerate(recorder.events):
        if index in at:
            events.append(StepBegin())
        events.extend(parts.get(index, []))
        if index == first and not isinstance(event, Phase):
            events.append(Phase("inputs"))
        events.extend(models.told_before_steps(event, flat) if index < first else [event])
        # What came before the first forward was not known to be of a step.
        if first <= index < forward and index in fetched:
            events.append(Label("input", fetched[index]))
    # A script ends with a save: it has nothing to do on the device, but on the host.
    events.extend(parts.get(len(recorder.events), []))
    return events


def told_in_parts(
    recorder: ScriptRecorder, models: FoundModels, first: int, serving: Serving
) -> list[Event]:
    """Of a script that trains nothing: the models, and what it computes from the event `first` on.
    Raises NotEven."""
    flat = models.flat_weights()
    setup = recorder.events[:first]
    events = [told for event in setup for told in models.told_before_steps(event, flat)]
    fetched = [made for made in recorder.from_host if made.event >= first]
    given = frozenset(number for made in fetched for number in made.storages)
    return numbered_anew(events + serving.told(first, set(models.held), given))


def passes_in(step: list[Event]) -> int:
    """Backwards before each of which something came from the host."""
    passes, fetched = 0, False
    for event in step:
        if isinstance(event, Call) and event.made:
            fetched |= _takes_from_host(event)
        elif event == Phase("backward"):
            passes += fetched
            fetched = False
    return max(passes, 1)


def _takes_from_host(call: Call) -> bool:
    given = [tensor for tensor in call.args if isinstance(tensor, Tensor)]
    return bool(given) and not any(tensor.storage for tensor in given)
