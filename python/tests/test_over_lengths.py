"""Where a model is captured whose longest sequence is asked for."""

from __future__ import annotations

import argparse
import importlib.util
import json

import pytest

from plimsoll.capturing.over_lengths import lengths_to_try

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None,
    reason="torch or transformers is not here",
)


@pytest.mark.parametrize(
    "around, longest, first",
    [
        (None, 131072, (1024, 1088, 131072)),
        (None, None, (1024, 1088, 32768)),
        (None, 4100, (1024, 1088, 4096)),
        (None, 1024, (896, 960, 1024)),
        (None, 512, (384, 448, 512)),
        (None, 64, (32, 48, 64)),
        (4096, 131072, (3968, 4032, 4096)),
        (64, 131072, (32, 48, 64)),
    ],
)
def test_lengths_go_as_far_as_the_model_or_lie_around_the_answer(around, longest, first):
    tries = lengths_to_try(around, longest)
    assert tries[0] == first
    assert all(0 < a < b < c for a, b, c in tries)


def _captured(tmp_path, document, around=None):
    from plimsoll.__main__ import _captured, add_way

    path = tmp_path / "config.json"
    path.write_text(json.dumps(document))
    parser = argparse.ArgumentParser()
    add_way(parser)
    asked = parser.parse_args(["--lora", "4"])
    more = {
        "seq": None, "precision": None, "optimizer": "adamw", "assume": "", "gpu": "H200",
        "command": None, "over_lengths": True, "around": around, "model": f"hf:{path}",
    }  # fmt: skip
    return _captured(argparse.Namespace(**vars(asked), **more), few_layers=True)


LLAMA = {
    "model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_size": 32,
    "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 128,
    "num_hidden_layers": 6, "max_position_embeddings": 4096, "sliding_window": None,
}  # fmt: skip


@needs_transformers
def test_a_model_is_captured_as_far_as_it_goes(tmp_path):
    document = _captured(tmp_path, LLAMA).document
    assert document["dimensions"] == ["batch", "length"]
    assert sorted({length for _, length in document["points"]}) == [1024, 1088, 4096]
    assert any("the configuration is for 4096 at most" in note for note in document["notes"])


@needs_transformers
def test_one_that_sees_a_window_is_captured_where_it_does_the_same(tmp_path):
    document = _captured(tmp_path, {**LLAMA, "sliding_window": 3000}).document
    assert sorted({length for _, length in document["points"]}) == [1856, 1920, 1984]
    document = _captured(tmp_path, {**LLAMA, "sliding_window": 3000}, around=3072).document
    assert sorted({length for _, length in document["points"]}) == [3072, 3136, 3200]
