"""A job made of a configuration alone. What needs transformers is skipped where it is not here."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
import types

import pytest
from program_here import needs_program

from plimsoll import CaptureError
from plimsoll.__main__ import main
from plimsoll.capturing import configuration

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SMALL}
BERT = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], **SMALL}

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not here"
)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    """Each test captures anew."""
    monkeypatch.setattr("plimsoll.__main__.kept_or_made", lambda asked, path, make: make(path))


def config(folder, document):
    path = folder / "config.json"
    path.write_text(json.dumps(document))
    return path


def test_a_missing_library_is_told(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr("plimsoll.answers.program.find", lambda: "plimsoll")
    assert main(["predict", f"hf:{config(tmp_path, LLAMA)}", "--seq", "8"]) == 2
    assert capsys.readouterr().err.startswith("plimsoll: transformers is not installed here.")


@needs_transformers
@pytest.mark.parametrize(
    "text, what",
    [
        (None, "cannot be read: No such file"),
        ("{", "cannot be read"),
        ("[]", 'has no "model_type"'),
        ('{"model_type": "no such"}', "has no model type 'no such'"),
        ('{"model_type": "llama", "hidden_size": "many"}', "transformers refuses"),
        ('{"model_type": "whisper", "architectures": ["WhisperForAudioClassification"]}', "batch"),
    ],
)
def test_a_file_that_cannot_be_used_is_told(tmp_path, text, what):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CaptureError, match=what):
        configuration.job_from(tmp_path, sequence=8)


@needs_transformers
def test_a_sequence_has_a_length(tmp_path):
    for length in (None, 0):
        with pytest.raises(CaptureError, match="Give --seq N"):
            configuration.job_from(config(tmp_path, LLAMA), sequence=length)


@needs_transformers
def test_what_is_taken_for_granted_is_told(tmp_path):
    path = config(tmp_path, {**LLAMA, "torch_dtype": "bfloat16", "quantization_config": {"a": 1}})
    job = configuration.job_from(path, sequence=100)
    assert job.autocast is None and job.notes == [
        "quantization is left out: quantized weights are not trained",
        "every sequence has 100 tokens, without padding; the configuration is for 64 at most",
        "weights are bfloat16",
    ]
    job = configuration.job_from(path, sequence=8, precision="amp_fp16")
    assert job.scaler and job.notes[-1] == "weights are float32, autocast to float16"


@needs_transformers
def test_nothing_that_a_file_names_is_run(tmp_path):
    """Neither a class that is no model, nor code or kernels of a repository."""
    evil = {
        "architectures": ["Trainer"],
        "auto_map": {"AutoModelForCausalLM": "somebody/evil--model.Evil"},
        "attn_implementation": "somebody/kernel",
        "_attn_implementation": "somebody/kernel",
    }
    job = configuration.job_from(config(tmp_path, {**LLAMA, **evil}), sequence=8)
    model = job.model()
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.config._attn_implementation == "sdpa" and not hasattr(model.config, "auto_map")
    assert job.notes[0] == "LlamaForCausalLM is taken in place of Trainer"


@needs_transformers
@pytest.mark.parametrize(
    "document, inputs",
    [
        (LLAMA, {"input_ids": (3, 8), "labels": (3, 8)}),
        (BERT, {"input_ids": (3, 8), "labels": (3,)}),
        (
            {"model_type": "vit", "architectures": ["ViTForImageClassification"], "image_size": 32},
            {"pixel_values": (3, 3, 32, 32), "labels": (3,)},
        ),
    ],
)
def test_batches_are_those_of_the_model(tmp_path, document, inputs):
    job = configuration.job_from(config(tmp_path, document), sequence=8)
    assert {name: tuple(one.shape) for name, one in job.make_batch(3).items()} == inputs


@needs_transformers
@needs_program
@pytest.mark.parametrize("flags", [["--batch", "4"], ["--optimizer", "adam8bit", "--batch", "4"]])
def test_a_configuration_is_predicted(tmp_path, capfd, flags):
    path, step = config(tmp_path, LLAMA), tmp_path / "job.step.json.gz"
    command = ["predict", f"hf:{path}", "--seq", "16", "--gpu", "L4", *flags]
    assert main([*command, "--precision", "bf16", "--save", str(step), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["model"] == "LlamaForCausalLM" and found["gpu"] == "L4" and found["batch"] == 4
    assert "every sequence has 16 tokens, without padding" in found["assumptions"]
    assert step.exists()


@needs_transformers
@needs_program
def test_unless_it_is_named_the_largest_batch_is_found(tmp_path, capfd):
    assert main(["predict", f"hf:{config(tmp_path, BERT)}", "--seq", "16", "--gpu", "L4"]) == 0
    assert "fits for certain on L4" in capfd.readouterr().out


@needs_transformers
@needs_program
def test_what_cannot_be_captured_is_a_line(tmp_path, capfd, monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("no kernel.\nmore")

    monkeypatch.setattr("plimsoll.capturing.api.capture_of_few_layers", fails)
    assert main(["predict", f"hf:{config(tmp_path, LLAMA)}", "--seq", "16"]) == 2
    assert capfd.readouterr().err == (
        "plimsoll: this model cannot be captured: RuntimeError: no kernel. "
        "Another --precision may work\n"
    )


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (DEEP, "nested more than 64 levels deep"),
        ('{"model_type": "llama", "a": ' + "[" * 70 + "]" * 70 + "}", "nested more than 64"),
        ('{"model_type": "gpt2", "n_layer": 1000000000}', "n_layer is 1,000,000,000"),
        ('{"model_type": "swin", "depths": [2, 2, 1e300, 2]}', "depths is 1"),
        ('{"model_type": "x", "text_config": {"num_experts": 123456}}', "num_experts is 123,456"),
    ],
)
def test_a_configuration_out_of_all_bounds(tmp_path, text, what):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CaptureError, match=what):
        configuration._document(tmp_path)


@pytest.fixture
def library(monkeypatch):
    """In place of transformers."""
    found = types.ModuleType("transformers")
    found.__spec__ = importlib.machinery.ModuleSpec("transformers", None)
    found.__version__ = "5.0"
    found.logging = types.SimpleNamespace(set_verbosity_error=lambda: None)
    monkeypatch.setitem(sys.modules, "transformers", found)
    return found


class Broken(dict):
    """As transformers finds a configuration: by an import, when it is asked for."""

    def __getitem__(self, name):
        raise RuntimeError("Failed to import transformers.models.llama\nbecause of flash_attn")


def test_a_failing_import_is_not_blamed_on_the_configuration(tmp_path, library):
    library.CONFIG_MAPPING = Broken(llama=None)
    with pytest.raises(CaptureError) as caught:
        configuration.job_from(config(tmp_path, LLAMA), sequence=8)
    assert "llama in transformers 5.0 is installed here and cannot be imported" in caught.value.what
    assert "RuntimeError: Failed to import transformers.models.llama" in caught.value.what
    assert "not of the configuration" in caught.value.hint


def test_a_library_that_cannot_be_imported_is_there_all_the_same(tmp_path, monkeypatch, library):
    def fails(name):
        raise ImportError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(configuration, "import_module", fails)
    with pytest.raises(CaptureError, match="is installed here and cannot be imported: ImportErr"):
        configuration.job_from(config(tmp_path, LLAMA), sequence=8)


def test_a_model_without_end_is_not_built(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(configuration, "_MOST_MODULES", 10)
    with pytest.raises(CaptureError, match="asks for more than 10 modules"):
        with configuration._counted_modules(torch):
            torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(1_000_000)))
    torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(20)))


def test_the_configuration_is_not_overwritten(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("plimsoll.answers.program.find", lambda: "plimsoll")
    path = config(tmp_path, LLAMA)
    assert main(["predict", f"hf:{path}", "--seq", "8", "--save", str(path)]) == 2
    assert "config.json is read as well" in capfd.readouterr().err
    assert json.loads(path.read_text()) == LLAMA
