"""Public configurations of the models that people fine-tune most: numbers only, as their
config.json has them where transformers' own default is another. No weights, no network.

`parameters` is what the publisher's weights have, and what the test builds and counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class KnownModel(NamedTuple):
    name: str
    parameters: int
    config: dict[str, Any]
    #: Models of the same configuration, or other spellings that near names would not find.
    also: tuple[str, ...] = ()
    #: What of the published model is not in it.
    note: str = ""


def _decoder(
    kind: str,
    head: str,
    words: int,
    width: int,
    inner: int,
    layers: int,
    heads: int,
    keys: int,
    longest: int,
    **more: Any,
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "architectures": [head],
        "vocab_size": words,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "max_position_embeddings": longest,
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        **more,
    }


def _llama(*sizes: int, **more: Any) -> dict[str, Any]:
    return _decoder("llama", "LlamaForCausalLM", *sizes, **more)


def _mistral(*sizes: int, **more: Any) -> dict[str, Any]:
    return _decoder("mistral", "MistralForCausalLM", *sizes, **{"sliding_window": None, **more})


def _qwen2(*sizes: int, **more: Any) -> dict[str, Any]:
    return _decoder("qwen2", "Qwen2ForCausalLM", *sizes, **more)


def _qwen3(*sizes: int, **more: Any) -> dict[str, Any]:
    return _decoder("qwen3", "Qwen3ForCausalLM", *sizes, **{"head_dim": 128, **more})


def _gemma2(*sizes: int, **more: Any) -> dict[str, Any]:
    return _decoder("gemma2", "Gemma2ForCausalLM", *sizes, tie_word_embeddings=True, **more)


def _gemma3(*sizes: int, **more: Any) -> dict[str, Any]:
    return _decoder("gemma3_text", "Gemma3ForCausalLM", *sizes, tie_word_embeddings=True, **more)


def _phi3(*sizes: int, **more: Any) -> dict[str, Any]:
    # Its padding token lies beyond smaller vocabularies.
    return _decoder("phi3", "Phi3ForCausalLM", *sizes, **{"pad_token_id": None, **more})


def _olmo2(*sizes: int, **more: Any) -> dict[str, Any]:
    return _decoder("olmo2", "Olmo2ForCausalLM", *sizes, pad_token_id=None, **more)


def _pythia(*sizes: int) -> dict[str, Any]:
    config = _decoder("gpt_neox", "GPTNeoXForCausalLM", *sizes, dtype="float16")
    del config["num_key_value_heads"]
    return config


def _gpt2(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
    }


def _encoder(kind: str, head: str, **sizes: Any) -> dict[str, Any]:
    return {"model_type": kind, "architectures": [head], **sizes}


_BASE = {"hidden_size": 768, "intermediate_size": 3072}
_LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
_ROBERTA = {
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}


def _t5(
    width: int, inner: int, layers: int, heads: int, per_head: int = 64, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": 32128,
        "d_model": width,
        "d_ff": inner,
        "d_kv": per_head,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "num_heads": heads,
        "decoder_start_token_id": 0,
        **more,
    }


def _flan(*sizes: int) -> dict[str, Any]:
    return _t5(*sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False)


def _whisper(width: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "d_model": width,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * width,
        "decoder_ffn_dim": 4 * width,
        "vocab_size": 51865,
        "num_mel_bins": 80,
        **more,
    }


_TIED = {"tie_word_embeddings": True}
_TEXT_PART = "the text part of the model, without what sees images"

MODELS: tuple[KnownModel, ...] = (
    KnownModel(
        "llama-2-7b",
        6_738_415_616,
        _llama(32000, 4096, 11008, 32, 32, 32, 4096),
        ("vicuna-7b",),
    ),
    KnownModel("llama-2-13b", 13_015_864_320, _llama(32000, 5120, 13824, 40, 40, 40, 4096)),
    KnownModel("llama-2-70b", 68_976_648_192, _llama(32000, 8192, 28672, 80, 64, 8, 4096)),
    KnownModel("codellama-7b", 6_738_546_688, _llama(32016, 4096, 11008, 32, 32, 32, 16384)),
    KnownModel(
        "llama-3.1-8b",
        8_030_261_248,
        _llama(128256, 4096, 14336, 32, 32, 8, 131072),
        ("llama-3-8b", "deepseek-r1-distill-llama-8b", "hermes-3-llama-3.1-8b", "tulu-3-8b"),
    ),
    KnownModel(
        "llama-3.1-70b",
        70_553_706_496,
        _llama(128256, 8192, 28672, 80, 64, 8, 131072),
        ("llama-3-70b", "llama-3.3-70b", "deepseek-r1-distill-llama-70b"),
    ),
    KnownModel(
        "llama-3.1-405b", 405_853_388_800, _llama(128256, 16384, 53248, 126, 128, 8, 131072)
    ),
    KnownModel(
        "llama-3.2-1b",
        1_235_814_400,
        _llama(128256, 2048, 8192, 16, 32, 8, 131072, head_dim=64, **_TIED),
    ),
    KnownModel(
        "llama-3.2-3b",
        3_212_749_824,
        _llama(128256, 3072, 8192, 28, 24, 8, 131072, head_dim=128, **_TIED),
    ),
    KnownModel("tinyllama-1.1b", 1_100_048_384, _llama(32000, 2048, 5632, 22, 32, 4, 2048)),
    KnownModel(
        "smollm2-135m",
        134_515_008,
        _llama(49152, 576, 1536, 30, 9, 3, 8192, **_TIED),
        ("smollm-135m",),
    ),
    KnownModel(
        "smollm2-360m",
        361_821_120,
        _llama(49152, 960, 2560, 32, 15, 5, 8192, **_TIED),
        ("smollm-360m",),
    ),
    KnownModel(
        "smollm2-1.7b",
        1_711_376_384,
        _llama(49152, 2048, 8192, 24, 32, 32, 8192, **_TIED),
        ("smollm-1.7b",),
    ),
    KnownModel(
        "smollm3-3b",
        3_075_098_624,
        _decoder("smollm3", "SmolLM3ForCausalLM", 128256, 2048, 11008, 36, 16, 4, 65536, **_TIED),
    ),
    KnownModel("yi-6b", 6_061_035_520, _llama(64000, 4096, 11008, 32, 32, 4, 4096), ("yi-1.5-6b",)),
    KnownModel("yi-9b", 8_829_407_232, _llama(64000, 4096, 11008, 48, 32, 4, 4096), ("yi-1.5-9b",)),
    KnownModel(
        "yi-34b", 34_388_917_248, _llama(64000, 7168, 20480, 60, 56, 8, 4096), ("yi-1.5-34b",)
    ),
    KnownModel("deepseek-coder-6.7b", 6_740_512_768, _llama(32256, 4096, 11008, 32, 32, 32, 16384)),
    KnownModel(
        "falcon3-7b", 7_455_550_464, _llama(131072, 3072, 23040, 28, 12, 4, 32768, head_dim=256)
    ),
    KnownModel(
        "mistral-7b",
        7_248_023_552,
        _mistral(32768, 4096, 14336, 32, 32, 8, 32768),
        ("mistral-7b-v0.3",),
    ),
    KnownModel(
        "mistral-7b-v0.1",
        7_241_732_096,
        _mistral(32000, 4096, 14336, 32, 32, 8, 32768, sliding_window=4096),
        ("zephyr-7b",),
    ),
    KnownModel(
        "mistral-nemo-12b",
        12_247_782_400,
        _mistral(131072, 5120, 14336, 40, 32, 8, 131072, head_dim=128),
        ("mistral-nemo",),
    ),
    KnownModel(
        "mistral-small-24b",
        23_572_403_200,
        _mistral(131072, 5120, 32768, 40, 32, 8, 32768, head_dim=128),
    ),
    KnownModel(
        "mixtral-8x7b",
        46_702_792_704,
        _decoder(
            "mixtral",
            "MixtralForCausalLM",
            32000,
            4096,
            14336,
            32,
            32,
            8,
            32768,
            num_local_experts=8,
            num_experts_per_tok=2,
            sliding_window=None,
        ),
    ),
    KnownModel(
        "mixtral-8x22b",
        140_630_071_296,
        _decoder(
            "mixtral",
            "MixtralForCausalLM",
            32768,
            6144,
            16384,
            56,
            48,
            8,
            65536,
            num_local_experts=8,
            num_experts_per_tok=2,
            sliding_window=None,
        ),
    ),
    KnownModel(
        "qwen2.5-0.5b",
        494_032_768,
        _qwen2(151936, 896, 4864, 24, 14, 2, 32768, **_TIED),
        ("qwen2-0.5b",),
    ),
    KnownModel(
        "qwen2.5-1.5b",
        1_543_714_304,
        _qwen2(151936, 1536, 8960, 28, 12, 2, 131072, **_TIED),
        ("qwen2-1.5b",),
    ),
    KnownModel("qwen2.5-3b", 3_085_938_688, _qwen2(151936, 2048, 11008, 36, 16, 2, 32768, **_TIED)),
    KnownModel(
        "qwen2.5-7b",
        7_615_616_512,
        _qwen2(152064, 3584, 18944, 28, 28, 4, 131072),
        ("qwen2-7b", "qwen2.5-coder-7b", "deepseek-r1-distill-qwen-7b"),
    ),
    KnownModel(
        "qwen2.5-14b",
        14_770_033_664,
        _qwen2(152064, 5120, 13824, 48, 40, 8, 131072),
        ("qwen2.5-coder-14b", "deepseek-r1-distill-qwen-14b"),
    ),
    KnownModel(
        "qwen2.5-32b",
        32_763_876_352,
        _qwen2(152064, 5120, 27648, 64, 40, 8, 131072),
        ("qwen2.5-coder-32b", "deepseek-r1-distill-qwen-32b", "qwq-32b"),
    ),
    KnownModel(
        "qwen2.5-72b",
        72_706_203_648,
        _qwen2(152064, 8192, 29568, 80, 64, 8, 131072),
        ("qwen2-72b",),
    ),
    KnownModel(
        "deepseek-r1-distill-qwen-1.5b",
        1_777_088_000,
        _qwen2(151936, 1536, 8960, 28, 12, 2, 131072),
    ),
    KnownModel("qwen3-0.6b", 596_049_920, _qwen3(151936, 1024, 3072, 28, 16, 8, 40960, **_TIED)),
    KnownModel("qwen3-1.7b", 1_720_574_976, _qwen3(151936, 2048, 6144, 28, 16, 8, 40960, **_TIED)),
    KnownModel("qwen3-4b", 4_022_468_096, _qwen3(151936, 2560, 9728, 36, 32, 8, 40960, **_TIED)),
    KnownModel(
        "qwen3-8b",
        8_190_735_360,
        _qwen3(151936, 4096, 12288, 36, 32, 8, 40960),
        ("deepseek-r1-0528-qwen3-8b",),
    ),
    KnownModel("qwen3-14b", 14_768_307_200, _qwen3(151936, 5120, 17408, 40, 40, 8, 40960)),
    KnownModel("qwen3-32b", 32_762_123_264, _qwen3(151936, 5120, 25600, 64, 64, 8, 40960)),
    KnownModel(
        "qwen3-30b-a3b",
        30_532_122_624,
        _decoder(
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            151936,
            2048,
            6144,
            48,
            32,
            4,
            40960,
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
            norm_topk_prob=True,
        ),
        ("qwen3-coder-30b-a3b",),
    ),
    KnownModel(
        "gemma-7b",
        8_537_680_896,
        _decoder(
            "gemma",
            "GemmaForCausalLM",
            256000,
            3072,
            24576,
            28,
            16,
            16,
            8192,
            head_dim=256,
            **_TIED,
        ),
    ),
    KnownModel(
        "gemma-2-2b",
        2_614_341_888,
        _gemma2(256000, 2304, 9216, 26, 8, 4, 8192, head_dim=256, query_pre_attn_scalar=256),
    ),
    KnownModel(
        "gemma-2-9b",
        9_241_705_984,
        _gemma2(256000, 3584, 14336, 42, 16, 8, 8192, head_dim=256, query_pre_attn_scalar=256),
    ),
    KnownModel(
        "gemma-2-27b",
        27_227_128_320,
        _gemma2(256000, 4608, 36864, 46, 32, 16, 8192, head_dim=128, query_pre_attn_scalar=144),
    ),
    KnownModel(
        "gemma-3-270m",
        268_098_176,
        _gemma3(262144, 640, 2048, 18, 4, 1, 32768, head_dim=256, sliding_window=512),
    ),
    KnownModel(
        "gemma-3-1b",
        999_885_952,
        _gemma3(262144, 1152, 6912, 26, 4, 1, 32768, head_dim=256, sliding_window=512),
    ),
    KnownModel(
        "gemma-3-4b",
        3_880_263_168,
        _gemma3(262208, 2560, 10240, 34, 8, 4, 131072, head_dim=256, sliding_window=1024),
        note=_TEXT_PART,
    ),
    KnownModel(
        "gemma-3-12b",
        11_766_034_176,
        _gemma3(262208, 3840, 15360, 48, 16, 8, 131072, head_dim=256, sliding_window=1024),
        note=_TEXT_PART,
    ),
    KnownModel(
        "gemma-3-27b",
        27_009_346_304,
        _gemma3(
            262208,
            5376,
            21504,
            62,
            32,
            16,
            131072,
            head_dim=128,
            sliding_window=1024,
            query_pre_attn_scalar=168,
        ),
        note=_TEXT_PART,
    ),
    KnownModel(
        "phi-2",
        2_779_683_840,
        _decoder(
            "phi",
            "PhiForCausalLM",
            51200,
            2560,
            10240,
            32,
            32,
            32,
            2048,
            dtype="float16",
            partial_rotary_factor=0.4,
        ),
    ),
    KnownModel(
        "phi-3-mini",
        3_821_079_552,
        _phi3(32064, 3072, 8192, 32, 32, 32, 4096),
        ("phi-3.5-mini", "phi-3-mini-4k"),
    ),
    KnownModel("phi-3-medium", 13_960_238_080, _phi3(32064, 5120, 17920, 40, 40, 10, 4096)),
    KnownModel(
        "phi-4", 14_659_507_200, _phi3(100352, 5120, 17920, 40, 40, 10, 16384), ("phi-4-14b",)
    ),
    KnownModel(
        "phi-4-mini",
        3_836_021_760,
        _phi3(200064, 3072, 8192, 32, 24, 8, 131072, partial_rotary_factor=0.75, **_TIED),
    ),
    KnownModel("olmo-2-1b", 1_484_916_736, _olmo2(100352, 2048, 8192, 16, 16, 16, 4096)),
    KnownModel("olmo-2-7b", 7_298_617_344, _olmo2(100352, 4096, 11008, 32, 32, 32, 4096)),
    KnownModel("olmo-2-13b", 13_716_198_400, _olmo2(100352, 5120, 13824, 40, 40, 40, 4096)),
    KnownModel(
        "falcon-7b",
        6_921_720_704,
        {
            "model_type": "falcon",
            "architectures": ["FalconForCausalLM"],
            "vocab_size": 65024,
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "multi_query": True,
            "parallel_attn": True,
            "new_decoder_architecture": False,
            "bias": False,
            "alibi": False,
            "dtype": "bfloat16",
        },
    ),
    KnownModel(
        "starcoder2-3b",
        3_030_371_328,
        _decoder(
            "starcoder2",
            "Starcoder2ForCausalLM",
            49152,
            3072,
            12288,
            30,
            24,
            2,
            16384,
            sliding_window=4096,
            use_bias=True,
            **_TIED,
        ),
    ),
    KnownModel(
        "starcoder2-7b",
        7_173_923_840,
        _decoder(
            "starcoder2",
            "Starcoder2ForCausalLM",
            49152,
            4608,
            18432,
            32,
            36,
            4,
            16384,
            sliding_window=4096,
            use_bias=True,
            **_TIED,
        ),
    ),
    KnownModel(
        "glm-4-9b",
        9_399_951_360,
        _decoder(
            "glm",
            "GlmForCausalLM",
            151552,
            4096,
            13696,
            40,
            32,
            2,
            131072,
            head_dim=128,
            attention_bias=True,
            pad_token_id=151329,
        ),
    ),
    KnownModel(
        "gpt-oss-20b",
        20_914_757_184,
        _decoder(
            "gpt_oss",
            "GptOssForCausalLM",
            201088,
            2880,
            2880,
            24,
            64,
            8,
            131072,
            head_dim=64,
            num_local_experts=32,
            num_experts_per_tok=4,
            sliding_window=128,
        ),
    ),
    KnownModel("pythia-1.4b", 1_414_647_808, _pythia(50304, 2048, 8192, 24, 16, 16, 2048)),
    KnownModel("pythia-6.9b", 6_857_302_016, _pythia(50432, 4096, 16384, 32, 32, 32, 2048)),
    KnownModel("gpt2", 124_439_808, _gpt2(768, 12, 12), ("gpt2-small",)),
    KnownModel("gpt2-medium", 354_823_168, _gpt2(1024, 24, 16)),
    KnownModel("gpt2-large", 774_030_080, _gpt2(1280, 36, 20)),
    KnownModel("gpt2-xl", 1_557_611_200, _gpt2(1600, 48, 25)),
    KnownModel(
        "opt-1.3b",
        1_315_758_080,
        {
            "model_type": "opt",
            "architectures": ["OPTForCausalLM"],
            "vocab_size": 50272,
            "hidden_size": 2048,
            "ffn_dim": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
            "word_embed_proj_dim": 2048,
            "dtype": "float16",
        },
    ),
    KnownModel(
        "bert-base",
        109_514_298,
        _encoder("bert", "BertForMaskedLM", vocab_size=30522, **_BASE),
        ("bert-base-uncased",),
    ),
    KnownModel(
        "bert-large",
        335_174_458,
        _encoder("bert", "BertForMaskedLM", vocab_size=30522, **_LARGE),
        ("bert-large-uncased",),
    ),
    KnownModel(
        "distilbert-base",
        66_985_530,
        _encoder("distilbert", "DistilBertForMaskedLM", vocab_size=30522),
        ("distilbert-base-uncased",),
    ),
    KnownModel(
        "roberta-base",
        124_697_433,
        _encoder("roberta", "RobertaForMaskedLM", vocab_size=50265, **_BASE, **_ROBERTA),
    ),
    KnownModel(
        "roberta-large",
        355_412_057,
        _encoder("roberta", "RobertaForMaskedLM", vocab_size=50265, **_LARGE, **_ROBERTA),
    ),
    KnownModel(
        "xlm-roberta-base",
        278_295_186,
        _encoder("xlm-roberta", "XLMRobertaForMaskedLM", vocab_size=250002, **_BASE, **_ROBERTA),
    ),
    KnownModel(
        "modernbert-base",
        149_655_232,
        _encoder(
            "modernbert",
            "ModernBertForMaskedLM",
            vocab_size=50368,
            hidden_size=768,
            intermediate_size=1152,
            num_hidden_layers=22,
            num_attention_heads=12,
            max_position_embeddings=8192,
            global_attn_every_n_layers=3,
            local_attention=128,
        ),
    ),
    KnownModel(
        "modernbert-large",
        395_881_664,
        _encoder(
            "modernbert",
            "ModernBertForMaskedLM",
            vocab_size=50368,
            hidden_size=1024,
            intermediate_size=2624,
            num_hidden_layers=28,
            num_attention_heads=16,
            max_position_embeddings=8192,
            global_attn_every_n_layers=3,
            local_attention=128,
        ),
    ),
    KnownModel("t5-small", 60_506_624, _t5(512, 2048, 6, 8)),
    KnownModel("t5-base", 222_903_552, _t5(768, 3072, 12, 12)),
    KnownModel("flan-t5-base", 247_577_856, _flan(768, 2048, 12, 12)),
    KnownModel("flan-t5-large", 783_150_080, _flan(1024, 2816, 24, 16)),
    KnownModel("flan-t5-xl", 2_849_757_184, _flan(2048, 5120, 24, 32)),
    KnownModel("whisper-small", 241_734_912, _whisper(768, 12, 12)),
    KnownModel("whisper-medium", 763_857_920, _whisper(1024, 24, 16)),
    KnownModel(
        "whisper-large-v3",
        1_543_490_560,
        _whisper(1280, 32, 20, vocab_size=51866, num_mel_bins=128),
    ),
    KnownModel(
        "vit-base",
        86_567_656,
        _encoder("vit", "ViTForImageClassification", num_labels=1000, **_BASE),
        ("vit-base-patch16-224",),
    ),
    KnownModel(
        "vit-large",
        304_326_632,
        _encoder("vit", "ViTForImageClassification", num_labels=1000, **_LARGE),
        ("vit-large-patch16-224",),
    ),
)
