"""Models by name, and the ways in which they are fine-tuned. What needs torch or transformers is
skipped where it is not here."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from plimsoll import CaptureError
from plimsoll.models.names import find, listed
from plimsoll.models.table import MODELS
from plimsoll.models.way import Way

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None,
    reason="torch or transformers is not here",
)
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "dtype": "bfloat16",
}
#: Layers in threes, one of which sees all that came before; and models whose every layer uses what
#: was made before them: a position bias, an encoder's result.
MANY_LAYERS = {
    "llama": {**LLAMA, "num_hidden_layers": 6},
    "gemma3": {
        **LLAMA, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"],
        "num_hidden_layers": 11, "head_dim": 16, "sliding_window": 8,
        "layer_types": [["sliding_attention", "full_attention"][i % 3 == 2] for i in range(11)],
    },
    "t5": {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 32,
        "d_ff": 64, "d_kv": 16, "num_heads": 2, "num_layers": 5, "num_decoder_layers": 5,
        "vocab_size": 128, "pad_token_id": 0, "decoder_start_token_id": 0,
    },
    "whisper": {
        "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"],
        "d_model": 32, "encoder_layers": 5, "decoder_layers": 5, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
        "vocab_size": 128, "num_mel_bins": 8, "max_source_positions": 32,
        "max_target_positions": 32, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3,
        "decoder_start_token_id": 2,
    },
    "vit": {
        "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 32,
        "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 5,
        "image_size": 32, "patch_size": 16,
    },
}  # fmt: skip
#: transformers 5 ties these heads to the embeddings, which published weights have apart.
TIED_SINCE_5 = {"flan-t5-base", "flan-t5-large", "flan-t5-xl"}


# Names.


@pytest.mark.parametrize(
    "typed, name",
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("mistral_7b_v0.1", "mistral-7b-v0.1"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b"),
        ("google-bert/bert-base-uncased", "bert-base"),
        ("gpt2", "gpt2"),
    ],
)
def test_spellings_do_not_matter(typed, name):
    assert find(typed).name == name


def test_near_names_are_told():
    with pytest.raises(CaptureError, match="no model is known by the name 'lama-3.1-8'") as raised:
        find("lama-3.1-8")
    assert "Did you mean llama-3.1-8b" in str(raised.value)
    with pytest.raises(CaptureError, match="hf:list"):
        find("zzz")


def test_every_name_is_one_models():
    names = [name for model in MODELS for name in (model.name, *model.also)]
    assert len(names) == len(set(names))
    assert len(MODELS) >= 50
    assert all(
        find(name).name == model.name for model in MODELS for name in (model.name, *model.also)
    )
    assert len(listed().splitlines()) == len(MODELS) + 1


def _counted(known) -> int:
    import torch
    import transformers

    config = transformers.CONFIG_MAPPING[known.config["model_type"]].from_dict(dict(known.config))
    with torch.device("meta"):
        model = getattr(transformers, known.config["architectures"][0])(config)
    return sum(parameter.numel() for parameter in model.parameters())


def _check_count(known) -> None:
    import transformers

    if known.name in TIED_SINCE_5 and int(transformers.__version__.split(".")[0]) >= 5:
        head = known.config["vocab_size"] * known.config["d_model"]
        assert _counted(known) == known.parameters - head
    elif known.config["model_type"] not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {known.config['model_type']}")
    else:
        assert _counted(known) == known.parameters


@needs_transformers
@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen3-0.6b", "gpt2", "t5-small"])
def test_a_model_has_the_weights_that_were_published(name):
    _check_count(find(name))


@needs_transformers
@pytest.mark.nightly
@pytest.mark.parametrize("known", MODELS, ids=lambda known: known.name)
def test_all_models_have_the_weights_that_were_published(known):
    _check_count(known)


def test_the_programs_package_stays_unpacked(tmp_path):
    """With what Python compiles of it; beside the archive where nothing can be kept."""
    root = Path(__file__).resolve().parents[2]
    archive = tmp_path / "capture.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(root / "src/launch/capture/__main__.py", "__main__.py")
        for source in (root / "python/plimsoll").rglob("*.py"):
            file.write(source, source.relative_to(root / "python"))

    def beside_after(cache):
        asked = [sys.executable, str(archive), "models"]
        environment = {**os.environ, "PLIMSOLL_CACHE": str(cache)}
        done = subprocess.run(asked, env=environment, capture_output=True, text=True)
        assert "llama-3.1-8b" in done.stdout, done.stderr
        return (tmp_path / "capture.zip.files").exists()

    cache = tmp_path / "cache"
    assert not beside_after(cache) and not beside_after(cache)
    (kept,) = (cache / "package").iterdir()
    assert (kept / "plimsoll/models/names.py").exists()
    assert beside_after(os.devnull)


# Ways.


def _job(tmp_path, way, layers, few_layers=False):
    from plimsoll.capturing.configuration import job_from

    path = tmp_path / f"{layers}.json"
    path.write_text(json.dumps({**LLAMA, "num_hidden_layers": layers}))
    return job_from(path, sequence=16, way=way, few_layers=few_layers)


def _captured(job, layers=()):
    from plimsoll.capturing.api import capture_of_few_layers

    return capture_of_few_layers(
        job.model, job.optimizer, job.make_batch, job.loss, train_step=job.train_step, path=None,
        batches=(2, 3), lengths=None, steps=2, accumulate=1, autocast=job.autocast, scaler=None,
        gpu="H200", precisions=(), channels_last=False, assume="", layers=layers,
    )  # fmt: skip


def _numbered(document):
    """Events with their storages numbered as they come, and texts in place of indices."""
    numbers = {0: 0}

    def number(storage):
        return numbers.setdefault(storage, len(numbers))

    def value(one):
        if isinstance(one, dict) and "t" in one:
            storage, layout, flags = one["t"]
            return ["t", number(storage), document["layouts"][layout], flags]
        if isinstance(one, dict) and "text" in one:
            return document["strings"][one["text"]]
        return [value(element) for element in one] if isinstance(one, list) else one

    found = []
    for kind, *event in document["variants"][0]["events"]:
        if kind == "call":
            op, where, module, thread, args, kwargs, results, made = event
            texts = [document["strings"][i] if i >= 0 else None for i in (op, where, module)]
            kwargs = {key: value(one) for key, one in kwargs.items()}
            made = [[number(storage), *rest] for storage, *rest in made]
            found.append([*texts, thread, value(args), kwargs, value(results), made])
        elif kind in ("parameter", "buffer"):
            storage, layout, name, *rest = event
            layout, name = document["layouts"][layout], document["strings"][name]
            found.append([kind, number(storage), layout, name, *rest])
        elif kind == "label":
            found.append([kind, event[0], [number(storage) for storage in event[1]]])
        else:
            found.append([kind, *(map(number, event) if kind == "free" else event)])
    return found


def _in_any_order_of_frees(events):
    """What is let go at one instant has no order that memory would know of."""
    runs = itertools.groupby(events, lambda event: event[0] == "free")
    return [
        event
        for _, run in runs
        for event in sorted(run, key=lambda event: event[1] if event[0] == "free" else 0)
    ]


@needs_transformers
@pytest.mark.parametrize(
    "kind, way",
    [
        ("llama", Way("lora", rank=4, dropout=0.1)),
        ("llama", Way("qlora", rank=4)),
        ("gemma3", Way("full")),
        ("t5", Way("full")),
        ("t5", Way("lora", rank=4)),
        ("whisper", Way("full")),
        ("vit", Way("full")),
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_few_layers_tell_of_all(tmp_path, kind, way):
    """Event by event what a capture of all layers has."""
    from plimsoll.capturing.configuration import job_from

    path = tmp_path / "config.json"
    path.write_text(json.dumps(MANY_LAYERS[kind]))
    few = job_from(path, sequence=16, way=way)
    assert few.layers and all(one.captured < one.wanted for one in few.layers)
    told = _numbered(_captured(few, few.layers).document)
    whole = _numbered(_captured(job_from(path, sequence=16, way=way, few_layers=False)).document)
    assert _in_any_order_of_frees(told) == _in_any_order_of_frees(whole)


@needs_transformers
def test_what_is_asked_of_a_model_is_told(tmp_path):
    job = _job(tmp_path, Way("qlora", rank=4, targets="q_proj,v_proj", checkpointing=False), 2)
    model = job.model()
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert len(trained) == 8 and all("lora_" in name for name in trained)
    assert job.told[0].startswith("LoRA of rank 4 on 4 layers (q_proj,v_proj)")
    assert job.told[1].startswith("14 layers are in 4 bits")
    assert "without gradient checkpointing" in job.told[2]
    with pytest.raises(CaptureError, match="no linear layer of the model ends in query"):
        _job(tmp_path, Way("lora", targets="query"), 2).model()


@needs_transformers
@pytest.mark.parametrize("targets", ["all-linear", "q_proj,v_proj"])
def test_lora_is_that_of_peft(tmp_path, targets):
    peft = pytest.importorskip("peft")
    import transformers

    ours = _job(tmp_path, Way("lora", rank=4, targets=targets), 2).model()
    config = transformers.LlamaConfig(**{**LLAMA, "num_hidden_layers": 2})
    asked = targets if targets == "all-linear" else targets.split(",")
    theirs = peft.get_peft_model(
        transformers.LlamaForCausalLM(config).bfloat16(),
        peft.LoraConfig(r=4, target_modules=asked),
    )

    def trained(model):
        return sorted(
            (tuple(one.shape), one.dtype) for one in model.parameters() if one.requires_grad
        )

    assert trained(ours) == [*trained(theirs)]
