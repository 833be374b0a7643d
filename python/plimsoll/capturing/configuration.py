"""A training job made of a Hugging Face configuration alone, of a file or of a model's name: no
weights, no script, no network, and nothing in the file is run."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable, NamedTuple

from ..base.errors import CaptureError, in_a_line
from ..base.json_text import BadJson, read_json_file
from ..base.patching import Patch, patched
from ..events.repeated import Layers, copies_of
from ..models import names
from ..models.way import Way
from ..world.phantom import require_torch
from .few_layers import FewLayers, with_few_layers

TOO_LONG = "the configuration is for"
PREFIX = "hf:"
#: Weights and autocast, as `plimsoll.capture` names them.
PRECISIONS = {
    "fp32": ("float32", None),
    "bf16": ("bfloat16", None),
    "amp_bf16": ("float32", "bfloat16"),
    "amp_fp16": ("float32", "float16"),
}
#: Made by torch itself; of others the program replaces AdamW's calls by rules of its own.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {}),
    "adam": ("Adam", {}),
    "sgd": ("SGD", {"lr": 1e-3}),
    "sgd_momentum": ("SGD", {"lr": 1e-3, "momentum": 0.9}),
}
# They name code, kernels or formats of stored weights, here or on the network.
_LEFT_OUT = ("auto_map", "attn_implementation", "experts_implementation", "quantization_config")

# Of these a configuration gives the number ("n_layer", "depths", "num_experts"), each a module.
_COUNTED = re.compile(r"(layer|depth|block|expert|stage)s?$")
#: Far more than any model has.
_MOST_OF_A_KIND = 10_000
#: Modules of a model. With one for each linear layer of each expert, the largest have 120,000.
_MOST_MODULES = 300_000

_BY_HAND = "Capture it from Python: plimsoll.capture(model, optimizer, make_batch, loss)"


class NamedJob(NamedTuple):
    """What `plimsoll.capture` is given."""

    model: Callable[[], Any]
    optimizer: Callable[[Any], Any]
    #: Of so many samples; over lengths, of this length.
    make_batch: Callable[..., dict[str, Any]]
    #: Of a plain loop; or, of one that goes some way, a whole step.
    loss: Callable[[Any, dict[str, Any]], Any] | None
    train_step: Callable[[Any, Any, Any], None] | None
    autocast: Any
    scaler: bool
    #: What was taken for granted, in words; and what was done to the model, once it is made.
    notes: list[str]
    told: list[str]
    #: Of a model that has few of its layers.
    layers: list[Layers]
    #: The longest sequence that the configuration is for.
    longest: int | None


def job_from(
    source: str | os.PathLike[str],
    *,
    sequence: int | None = None,
    precision: str | None = None,
    optimizer: str = "adamw",
    way: Way | None = None,
    few_layers: bool = True,
    over_lengths: bool = False,
) -> NamedJob:
    """The job that trains a model on sequences of one length, or on images: by a plain loop, or by
    Trainer, some way. `source`: a `config.json`, the folder that has it, or a model's name.
    `few_layers`: the model has few of those that are alike, and `layers` says how many it stands
    for. `over_lengths`: a batch is made at any length, in place of `sequence`."""
    torch = require_torch()
    transformers = _transformers()
    document, notes = _document(source)
    config, kind = _known(transformers, document, notes)
    shape, batch_note = _batch(kind, config, sequence, over_lengths)
    weights, autocast = _types(document, precision)
    # Trainer's `bf16=True`, whatever the weights are in.
    if way is not None and precision is None:
        autocast = "bfloat16"
    told: list[str] = []
    few = _few_layers(torch, kind, config) if few_layers else None

    def model() -> Any:
        with _default_type(torch, getattr(torch, weights)), _counted_modules(torch):
            made = kind(few.config if few else config).train()
        if way is None:
            return made
        told.clear()
        return ways().tuned(made, way, told, times)

    def times(name: str) -> int:
        return 1 + sum(copies_of(f"{name}.", one) for one in (few.layers if few else []))

    def ways() -> Any:
        return import_module("..models.ways", __package__)

    def make_batch(batch_size: int) -> dict[str, Any]:
        return shape(torch, batch_size, sequence or 0)

    def make_batch_at(batch_size: int, length: int) -> dict[str, Any]:
        return shape(torch, batch_size, length)

    notes += [
        batch_note,
        f"weights are {weights}" + (f", autocast to {autocast}" if autocast else ""),
    ]
    if way is None:
        make, settings = OPTIMIZERS.get(optimizer, OPTIMIZERS["adamw"])
        return NamedJob(
            model,
            lambda parameters: getattr(torch.optim, make)(parameters, **settings),
            make_batch_at if over_lengths else make_batch,
            lambda model, batch: model(**batch).loss,
            None,
            getattr(torch, autocast) if autocast else None,
            autocast == "float16",
            notes,
            told,
            few.layers if few else [],
            _longest(config),
        )
    if autocast == "float16":
        raise CaptureError(
            "a step of Trainer's is captured in bfloat16 here, not in float16",
            hint="Give --precision amp_bf16",
        )
    make, settings = OPTIMIZERS.get(optimizer, OPTIMIZERS["adamw"])
    fused = {"fused": True} if make.startswith("Adam") else {}
    return NamedJob(
        model,
        lambda parameters: ways().optimizer(
            parameters, getattr(torch.optim, make), {**settings, **fused}
        ),
        make_batch_at if over_lengths else make_batch,
        None,
        ways().Step(getattr(torch, autocast) if autocast else None),
        None,
        False,
        notes,
        told,
        few.layers if few else [],
        _longest(config),
    )


def _few_layers(torch: Any, kind: Any, config: Any) -> FewLayers | None:
    with _counted_modules(torch):
        return with_few_layers(torch, kind, config)


def document_of(source: str) -> tuple[dict[str, Any], list[str]]:
    """What the configuration says, and what is to be said of it. Needs neither torch nor
    transformers."""
    return _document(source)


def _transformers() -> Any:
    # Read when transformers is imported; all that is needed lies in the file.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if find_spec("transformers") is None:
        raise CaptureError(
            "transformers is not installed here",
            hint="A configuration names a model that it has: pip install transformers",
        )
    with _importing("transformers"):
        transformers: Any = import_module("transformers")
        transformers.logging.set_verbosity_error()
    return transformers


@contextlib.contextmanager
def _importing(what: str) -> Iterator[None]:
    """transformers imports a model's files when it is first asked for them. What fails there is a
    matter of what is installed, and not of the configuration."""
    try:
        yield
    except Exception as error:
        raise CaptureError(
            f"{what} is installed here and cannot be imported: {in_a_line(error)}",
            hint="That is a matter of the packages that are installed, not of the configuration: "
            f"import it in this Python ({sys.executable}) to see all of it",
        ) from error


# The file.


def _document(source: str | os.PathLike[str]) -> tuple[dict[str, Any], list[str]]:
    path = Path(source)
    if _is_name(os.fspath(source)):
        known = names.find(os.fspath(source))
        count = f"{known.parameters / 1e9:.2f} billion weights"
        note = f"{known.name} by its public configuration, {count}"
        return dict(known.config), [note + (f"; {known.note}" if known.note else "")]
    if path.is_dir():
        path = path / "config.json"
    try:
        document = read_json_file(path)
    except (OSError, BadJson) as error:
        raise CaptureError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}",
            hint="Give the config.json of a model, or the folder that has it",
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get("model_type"), str):
        raise CaptureError(
            f'{path} has no "model_type"', hint="Give the config.json of a Hugging Face model"
        )
    _check_counts(path, document)
    notes = []
    if document.get("quantization_config"):
        notes.append("quantization is left out: quantized weights are not trained")
    return _cleaned(document), notes


def _is_name(source: str) -> bool:
    """A model's name, and no file: with its publisher's before it at most."""
    plain = not source.endswith(".json") and source.count("/") <= 1 and not source.startswith(".")
    return plain and not os.path.exists(source)


def _check_counts(path: Path, document: dict[str, Any]) -> None:
    """A module is made for each of these, and lists of them before that."""
    waiting: list[tuple[str, Any]] = list(document.items())
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += [(key, element) for element in value]
        elif _COUNTED.search(key) and isinstance(value, (int, float)) and value > _MOST_OF_A_KIND:
            raise CaptureError(
                f"{path}: {key} is {value:,}, and no more than {_MOST_OF_A_KIND:,} are made",
                hint="Is that number meant?",
            )


def _cleaned(document: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _cleaned(value) if isinstance(value, dict) else value
        for key, value in document.items()
        if not key.startswith("_") and key not in _LEFT_OUT
    }


def _types(document: dict[str, Any], precision: str | None) -> tuple[str, str | None]:
    if precision is not None:
        return PRECISIONS[precision]
    named = str(document.get("dtype") or document.get("torch_dtype") or "float32")
    return (named if named in ("float32", "bfloat16", "float16") else "float32"), None


# The model.


def _known(transformers: Any, document: dict[str, Any], notes: list[str]) -> tuple[Any, Any]:
    """The configuration, and the class of the model."""
    name = document["model_type"]
    if name not in transformers.CONFIG_MAPPING:
        raise CaptureError(
            f"transformers {transformers.__version__} has no model type {name!r}",
            hint="A newer release may have it; code that a repository brings along is not run",
        )
    with _importing(f"the configuration of {name} in transformers {transformers.__version__}"):
        kind = transformers.CONFIG_MAPPING[name]
    try:
        config = kind.from_dict(document)
    except Exception as error:
        raise CaptureError(
            f"transformers refuses this configuration: {' '.join(str(error).split())}"
        ) from error
    config.use_cache = False  # as Trainer sets it
    return config, _model_class(transformers, config, document, notes)


def _model_class(transformers: Any, config: Any, document: dict[str, Any], notes: list[str]) -> Any:
    architectures = document.get("architectures") or []
    wanted = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    with _importing(f"{wanted} of transformers {transformers.__version__}"):
        found: Any = getattr(transformers, wanted, None) if wanted else None
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    if is_model and found.config_class is type(config) and _kind_of(wanted):
        return found
    # A model without a head, or none named: with the head that it is mostly trained with.
    for auto in (transformers.AutoModelForMaskedLM, transformers.AutoModelForCausalLM):
        if type(config) in auto._model_mapping and not config.is_encoder_decoder:
            with _importing(f"the model of {document['model_type']} in transformers"):
                found = auto._model_mapping[type(config)]
            if wanted:
                notes.append(f"{found.__name__} is taken in place of {wanted}")
            return found
    raise CaptureError(
        f"what a batch of {wanted or document['model_type']} looks like is not known here",
        hint=_BY_HAND,
    )


@contextlib.contextmanager
def _default_type(torch: Any, dtype: Any) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _counted_modules(torch: Any) -> Iterator[None]:
    """Ends the making of a model that would never be whole."""
    begin = torch.nn.Module.__init__
    left = itertools.count(_MOST_MODULES, -1)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if next(left) <= 0:
            raise CaptureError(
                f"the configuration asks for more than {_MOST_MODULES:,} modules",
                hint="Does it count layers, heads or experts wrong?",
            )
        begin(self, *args, **kwargs)

    with patched([Patch(torch.nn.Module, "__init__", init)]):
        yield


# Batches, by the end of the class's name.

#: Of torch, so many samples and their length.
_Shape = Callable[[Any, int, int], dict[str, Any]]


def _language(words: int) -> _Shape:
    def batch(torch: Any, n: int, sequence: int) -> dict[str, Any]:
        tokens = torch.randint(0, words, (n, sequence))
        return {"input_ids": tokens, "labels": torch.randint(0, words, (n, sequence))}

    return batch


def _classes(words: int) -> _Shape:
    def batch(torch: Any, n: int, sequence: int) -> dict[str, Any]:
        return {
            "input_ids": torch.randint(0, words, (n, sequence)),
            "labels": torch.randint(0, 2, (n,)),
        }

    return batch


def _token_classes(words: int) -> _Shape:
    def batch(torch: Any, n: int, sequence: int) -> dict[str, Any]:
        return {
            "input_ids": torch.randint(0, words, (n, sequence)),
            "labels": torch.randint(0, 2, (n, sequence)),
        }

    return batch


def _images(channels: int, height: int, width: int) -> _Shape:
    def batch(torch: Any, n: int, sequence: int) -> dict[str, Any]:
        return {
            "pixel_values": torch.randn(n, channels, height, width),
            "labels": torch.randint(0, 2, (n,)),
        }

    return batch


def _sounds(bins: int, frames: int, words: int) -> _Shape:
    def batch(torch: Any, n: int, sequence: int) -> dict[str, Any]:
        return {
            "input_features": torch.randn(n, bins, frames),
            "labels": torch.randint(0, words, (n, sequence)),
        }

    return batch


_TEXTS: dict[str, Callable[[int], _Shape]] = {
    "ForCausalLM": _language,
    "LMHeadModel": _language,
    "ForMaskedLM": _language,
    "ForConditionalGeneration": _language,
    "ForSequenceClassification": _classes,
    "ForTokenClassification": _token_classes,
}
_IMAGES = "ForImageClassification"


def _kind_of(name: str) -> str | None:
    return next((end for end in (*_TEXTS, _IMAGES) if name.endswith(end)), None)


def _batch(
    kind: Any, config: Any, sequence: int | None, over_lengths: bool
) -> tuple[_Shape, str]:
    end = _kind_of(kind.__name__)
    takes = getattr(kind, "main_input_name", None)
    if end == _IMAGES and takes == "pixel_values":
        size = getattr(config, "image_size", None) or 224
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        if over_lengths:
            raise CaptureError(
                f"{kind.__name__} is trained on images, which have no length",
                hint="Ask for the largest batch: --max-batch",
            )
        channels = getattr(config, "num_channels", 3)
        return _images(channels, height, width), f"images of {height} by {width} pixels"
    words = getattr(config.get_text_config(), "vocab_size", None)
    sees = getattr(config, "vision_config", None) is not None
    hears = end == "ForConditionalGeneration" and takes == "input_features"
    bins = getattr(config, "num_mel_bins", None)
    frames = 2 * (getattr(config, "max_source_positions", None) or 0)
    if hears and words is not None and bins and frames:
        texts = "texts of one length" if over_lengths else f"texts of {_length(sequence)} tokens"
        return _sounds(bins, frames, words), f"sounds of {frames} frames, {texts}"
    if end not in _TEXTS or takes != "input_ids" or words is None or sees:
        raise CaptureError(
            f"what a batch of {kind.__name__} looks like is not known here", hint=_BY_HAND
        )
    tokens = "the same length" if over_lengths else f"{_length(sequence)} tokens"
    note = f"every sequence has {tokens}, without padding"
    longest = _longest(config)
    if longest is not None and (over_lengths or _length(sequence) > longest):
        note += f"; {TOO_LONG} {longest} at most"
    return _TEXTS[end](words), note


def _longest(config: Any) -> int | None:
    """The longest sequence that the configuration is for."""
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) else None


def _length(sequence: int | None) -> int:
    if sequence is None or sequence < 1:
        raise CaptureError("the length of a sequence, in tokens, is not given", hint="Give --seq N")
    return sequence
