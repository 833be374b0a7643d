"""What `plimsoll plan --json` prints, as far as it is to be applied."""

from __future__ import annotations

import gzip
import io
import os
import shlex
import stat
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Union

from ..base.errors import PlanError
from ..base.json_text import BadJson, parse_json

SCHEMA = "plimsoll.plan/1"
_STEP_SCHEMA = "plimsoll.step/"
_GZIP = b"\x1f\x8b"
#: Bytes that have the schema of a document.
_HEAD = 1000

#: Bytes. A plan has some thousand.
_LARGEST = 64 << 20
_WHAT_A_PLAN_IS = "It is what `plimsoll plan ... --json` prints"

PlanSource = Union[str, "os.PathLike[str]", Mapping[str, Any]]


class Lever(NamedTuple):
    """What a lever is set to: as people write it, and in its parts."""

    text: str
    value: Mapping[str, Any]


class GradientUses(NamedTuple):
    """The lines of the script between backward() and optimizer.step() that use gradients."""

    #: That of a gradient scaler; empty where there is none.
    scaled_at: str = ""
    #: The others: clipping, norms that are logged.
    used_at: tuple[str, ...] = ()


class Way(NamedTuple):
    """One way of a plan: how to cut a step, and what each lever is set to."""

    batch: int
    passes: int
    levers: dict[str, Lever]
    #: The class of the model, where the plan tells it.
    model: str = ""
    #: Micro-batches in a step of the script as it is.
    captured_passes: int = 1
    uses: GradientUses = GradientUses()


def read_way(plan: PlanSource, way: int | Mapping[str, Any]) -> Way:
    """A way by its number, from 0; or one that was taken out of the document."""
    document = _document(getattr(plan, "document", plan))
    if isinstance(way, Mapping):
        return _of_script(_way(way), document)
    ways = document.get("ways")
    if not isinstance(ways, list) or not ways:
        raise PlanError("the plan has no way that fits")
    if not 0 <= way < len(ways):
        raise PlanError(f"the plan has no way {way}", hint=f"They count from 0 to {len(ways) - 1}")
    return _of_script(_way(ways[way]), document)


def _of_script(way: Way, document: Mapping[str, Any]) -> Way:
    """With what the plan tells of the script as it is."""
    return way._replace(
        model=str(document.get("model") or ""),
        captured_passes=_count({"captured_passes": 1, **document}, "captured_passes"),
        uses=_uses(document.get("gradients_used", [])),
    )


def _uses(used: Any) -> GradientUses:
    if not isinstance(used, list) or not all(
        isinstance(line, Mapping) and "at" in line for line in used
    ):
        raise PlanError('"gradients_used" of the plan holds no lines', hint="Make the plan anew")
    scaled = [str(line["at"]) for line in used if line.get("by_scaler")]
    others = [str(line["at"]) for line in used if not line.get("by_scaler")]
    return GradientUses(next(iter(scaled), ""), tuple(others))


def _document(plan: PlanSource) -> Mapping[str, Any]:
    file = "job.step.json.gz"
    name = "what was given"
    if isinstance(plan, Mapping):
        document = plan
    else:
        is_text = isinstance(plan, str) and plan.lstrip().startswith("{")
        if not is_text:
            name = file = os.fspath(plan)
        text = plan if is_text else _text(plan)
        try:
            document = parse_json(str(text))
        except BadJson as error:
            raise PlanError(
                f"{name} is no JSON: {error}", hint=_WHAT_A_PLAN_IS
            ) from error
    schema = document.get("schema") if isinstance(document, Mapping) else None
    if isinstance(schema, str) and schema.startswith(_STEP_SCHEMA):
        raise _is_a_step(name, file)
    if schema != SCHEMA:
        raise PlanError(
            f"the plan's schema is {schema!r} instead of {SCHEMA!r}",
            hint=_WHAT_A_PLAN_IS,
        )
    return document


def _is_a_step(name: str, file: str) -> PlanError:
    return PlanError(
        f"{name} is a step file, not a plan",
        hint=f"`plimsoll plan {shlex.quote(file)} --json > plan.json` makes a plan of it",
    )


def _without_waiting(path: str, flags: int) -> int:
    """A fifo would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _text(path: str | os.PathLike[str]) -> str:
    name = os.fspath(path)
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise PlanError(f"{name} is no regular file", hint=_WHAT_A_PLAN_IS)
            data = file.read(_LARGEST + 1) or b""  # nothing: /proc/kmsg has no more
        if len(data) > _LARGEST:
            raise PlanError(f"{name} is too large for a plan", hint=_WHAT_A_PLAN_IS)
        if data.startswith(_GZIP):
            head = gzip.GzipFile(fileobj=io.BytesIO(data)).read(_HEAD)
            if f'"{_STEP_SCHEMA}'.encode() in head:
                raise _is_a_step(name, name)
        return data.decode()
    except UnicodeDecodeError as error:
        raise PlanError(
            f"{name} is no plan", hint=_WHAT_A_PLAN_IS
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise PlanError(f"{name} cannot be read: {error}") from error


def _way(way: Any) -> Way:
    levers = way.get("levers") if isinstance(way, Mapping) else None
    if not isinstance(levers, list):
        raise PlanError('this way of the plan has no "levers"', hint="Make the plan anew")
    return Way(_count(way, "batch"), _count(way, "passes"), dict(map(_lever, levers)))


def _lever(lever: Any) -> tuple[str, Lever]:
    value = lever.get("value") if isinstance(lever, Mapping) else None
    if not isinstance(value, Mapping) or "lever" not in lever:
        raise PlanError(
            'a lever of this way of the plan has no "value"',
            hint="Make the plan anew: an older release made it",
        )
    return str(lever["lever"]), Lever(str(lever.get("set_to", "")), value)


def _count(way: Mapping[str, Any], key: str) -> int:
    value = way.get(key)
    if not isinstance(value, int) or value < 1:
        raise PlanError(f'"{key}" of this way is {value!r} instead of a number from 1 on')
    return value
