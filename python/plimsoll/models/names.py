"""A model by the name that people call it by."""

from __future__ import annotations

import difflib
import re

from ..base.errors import CaptureError
from .table import MODELS, KnownModel

_NEAR = 4
LIST = "list"


def find(name: str) -> KnownModel:
    """`meta-llama/Llama-3.1-8B-Instruct` is llama-3.1-8b: who published it, how it was tuned, case
    and separators do not matter."""
    wanted = _spelled(name)
    known = _spellings()
    if wanted in known:
        return known[wanted]
    raise CaptureError(f"no model is known by the name {name!r}", hint=_hint(wanted, known))


def listed() -> str:
    """A line for each model, and what else it is called."""
    width = max(len(model.name) for model in MODELS)
    lines = [f"{'name':{width}}  weights  also"]
    for model in MODELS:
        line = f"{model.name:{width}}  {_billions(model):>7}  {', '.join(model.also)}".rstrip()
        lines.append(line + (f" ({model.note})" if model.note else ""))
    return "\n".join(lines)


def _billions(model: KnownModel) -> str:
    return f"{model.parameters / 1e9:.2f}B"


def _hint(wanted: str, known: dict[str, KnownModel]) -> str:
    near = difflib.get_close_matches(wanted, known, n=2 * _NEAR, cutoff=0.5)
    names = list(dict.fromkeys(known[one].name for one in near))[:_NEAR]
    ask = f"Did you mean {', '.join(names)}? " if names else ""
    return f"{ask}`plimsoll predict hf:list` lists all; of others give the config.json: hf:PATH"


#: What is said of how a model was tuned, which changes none of its sizes.
_TUNED = re.compile(r"(instruct|chat|base|it|hf|preview|uncased|cased|v\d+(\.\d+)?|\d{4})$")


def _spelled(name: str) -> str:
    short = name.strip().lower().rsplit("/", 1)[-1]
    words = re.split(r"[-_ ]+", short)
    while len(words) > 1 and "".join(words) not in _exact() and _TUNED.fullmatch(words[-1]):
        words.pop()
    return "".join(words)


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]+", "", name.lower())


def _exact() -> set[str]:
    return {_plain(name) for model in MODELS for name in (model.name, *model.also)}


def _spellings() -> dict[str, KnownModel]:
    found: dict[str, KnownModel] = {}
    for model in MODELS:
        for name in (model.name, *model.also):
            found[_plain(name)] = model
    # The names that a model is listed by go before what others call it.
    found.update({_plain(model.name): model for model in MODELS})
    return found
