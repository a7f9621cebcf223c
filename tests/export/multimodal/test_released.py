"""Configurations as they are released, as far as they matter.

As quoted in public code and logs: Gemma 3 by DeepMind's and others' tests, Mistral Small 3.1 by
loaders of FLUX.2, LLaVA 1.5 and Qwen's by logs of transformers. What they leave out is by
transformers 5.24, ``configuration_*.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgerun_export.architectures import describe

_LINEAR = {"factor": 8.0, "rope_type": "linear"}
_TYPE = {"model_type": "gemma3_text", "rope_scaling": _LINEAR, "sliding_window": 1024}
_MROPE = {"mrope_section": [24, 20, 20], "mrope_interleaved": True, "rope_type": "default"}
_QWEN3 = {
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-06,
    "rope_scaling": _MROPE,
    "rope_theta": 5000000,
    "vocab_size": 151936,
}
# What config.json of each states of the text model, and of the head.
RELEASED: dict[str, dict[str, Any]] = {
    "gemma-3-4b": {
        "model_type": "gemma3",
        "text_config": {
            **_TYPE,
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
        },
    },
    "gemma-3-27b": {
        "model_type": "gemma3",
        "text_config": {
            **_TYPE,
            "head_dim": 128,
            "hidden_size": 5376,
            "intermediate_size": 21504,
            "num_attention_heads": 32,
            "num_hidden_layers": 62,
            "num_key_value_heads": 16,
            "query_pre_attn_scalar": 168,
        },
    },
    "mistral-small-3.1": {
        "model_type": "mistral3",
        "text_config": {
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 5120,
            "intermediate_size": 32768,
            "max_position_embeddings": 131072,
            "model_type": "mistral",
            "num_attention_heads": 32,
            "num_hidden_layers": 40,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_theta": 1000000000.0,
            "sliding_window": None,
            "vocab_size": 131072,
        },
    },
    "qwen2.5-vl-3b": {
        "model_type": "qwen2_5_vl",
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "max_position_embeddings": 128000,
        "max_window_layers": 70,
        "num_attention_heads": 16,
        "num_hidden_layers": 36,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
        "vision_config": {"depth": 32, "hidden_size": 1280},
    },
    "qwen3-vl-8b": {
        "model_type": "qwen3_vl",
        "tie_word_embeddings": False,
        "text_config": {
            **_QWEN3,
            "model_type": "qwen3_vl_text",
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_attention_heads": 32,
            "num_hidden_layers": 36,
            "num_key_value_heads": 8,
        },
    },
    "qwen3-vl-30b-a3b": {
        "model_type": "qwen3_vl_moe",
        "tie_word_embeddings": False,
        "text_config": {
            **_QWEN3,
            "model_type": "qwen3_vl_moe_text",
            "decoder_sparse_step": 1,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "mlp_only_layers": [],
            "moe_intermediate_size": 768,
            "norm_topk_prob": True,
            "num_attention_heads": 32,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 48,
            "num_key_value_heads": 4,
        },
    },
    "llava-1.5-7b": {
        "model_type": "llava",
        "tie_word_embeddings": False,
        "text_config": {
            "max_position_embeddings": 4096,
            "model_type": "llama",
            "rms_norm_eps": 1e-05,
            "vocab_size": 32064,
        },
    },
}
# Sizes of the text model, and whether head and embedding are one.
EXPECTED: dict[str, dict[str, Any]] = {
    "gemma-3-4b": {
        **{"num_layers": 34, "num_heads": 8, "num_kv_heads": 4, "head_dim": 256},
        **{"vocab_size": 262208, "context_length": 131072, "tied": True, "score_scale": 1 / 16},
    },
    "gemma-3-27b": {
        **{"num_layers": 62, "num_heads": 32, "num_kv_heads": 16, "head_dim": 128},
        **{"vocab_size": 262208, "context_length": 131072, "tied": True},
        **{"score_scale": 168**-0.5},
    },
    "mistral-small-3.1": {
        **{"num_layers": 40, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
        **{"vocab_size": 131072, "context_length": 131072, "tied": False, "norm_eps": 1e-5},
    },
    "qwen2.5-vl-3b": {
        **{"num_layers": 36, "num_heads": 16, "num_kv_heads": 2, "head_dim": 128, "tied": True},
        **{"context_length": 128000, "norm_eps": 1e-6, "q_norm": None},
    },
    "qwen3-vl-8b": {
        **{"num_layers": 36, "num_kv_heads": 8, "tied": False, "intermediate_size": 12288},
        **{"context_length": 262144, "q_norm": "self_attn.q_norm", "biases": frozenset()},
    },
    "qwen3-vl-30b-a3b": {
        **{"num_layers": 48, "num_kv_heads": 4, "tied": False, "experts": (128, 8)},
        **{"intermediate_size": 768, "head_dim": 128},
    },
    "llava-1.5-7b": {
        **{"num_layers": 32, "num_heads": 32, "num_kv_heads": 32, "head_dim": 128},
        **{"vocab_size": 32064, "context_length": 4096, "tied": False, "norm_eps": 1e-5},
        "intermediate_size": 11008,
    },
}
THETA = {"mistral-small-3.1": 1e9, "qwen2.5-vl-3b": 1e6, "qwen3-vl-8b": 5e6, "llava-1.5-7b": 1e4}
HEAD = {"mistral-small-3.1": "language_model.lm_head.weight", "llava-1.5-7b": "lm_head.weight"}


@pytest.mark.parametrize("name", RELEASED)
def test_what_a_configuration_leaves_out_is_what_transformers_takes(name: str) -> None:
    head = HEAD.get(name)
    layers = "language_model.model.layers.0.mlp.up_proj.weight"
    spec = describe(RELEASED[name], (layers, head) if head else ())
    assert {key: getattr(spec, key) for key in EXPECTED[name]} == EXPECTED[name]
    assert all(layer.window is None for layer in spec.layers) or name.startswith("gemma")
    if name in THETA:
        exponents = np.arange(0, spec.head_dim, 2) / spec.head_dim
        np.testing.assert_allclose(spec.ropes[0].inv_freq, THETA[name] ** -exponents, rtol=1e-5)


def test_gemma_3_has_a_rope_for_each_kind_of_layer() -> None:
    """Every sixth layer has no window; positions of those are divided by 8."""
    spec = describe(RELEASED["gemma-3-4b"])
    windows = [layer.window for layer in spec.layers]
    assert windows == [None if layer % 6 == 5 else 1024 for layer in range(34)]
    exponents = np.arange(0, 256, 2) / 256
    expected = {None: 1e6**-exponents / 8, 1024: 1e4**-exponents}
    for layer in (4, 5):
        rope = spec.rope_of(layer)
        assert rope is not None
        np.testing.assert_allclose(rope.inv_freq, expected[windows[layer]], rtol=1e-5)


def test_silence_of_qwen_means_what_transformers_takes() -> None:
    """Qwen2_5_VLTextConfig and Qwen3VLTextConfig differ from Qwen2Config and Qwen3Config."""
    silent = {"rope_scaling": None, "rope_theta": None, "rms_norm_eps": None}
    spec = describe({**RELEASED["qwen2.5-vl-3b"], **silent})
    assert spec.norm_eps == 1e-5
    assert spec.ropes[0].inv_freq[1] == pytest.approx(1e6 ** (-2 / 128))
    slides = {"use_sliding_window": True, "num_hidden_layers": 82}
    config = {**RELEASED["qwen2.5-vl-3b"], **slides}
    del config["max_window_layers"], config["sliding_window"]
    assert [layer.window for layer in describe(config).layers] == [None] * 80 + [4096] * 2
    config = RELEASED["qwen3-vl-8b"]
    spec = describe({**config, "text_config": {**config["text_config"], **silent}})
    assert spec.norm_eps == 1e-6
    assert spec.ropes[0].inv_freq[1] == pytest.approx(500000 ** (-2 / 128))
    config = RELEASED["qwen3-vl-30b-a3b"]
    text = {**config["text_config"], "head_dim": None, "rope_theta": None}
    spec = describe({**config, "text_config": text})
    assert spec.head_dim == 64
    assert spec.ropes[0].inv_freq[1] == pytest.approx(500000 ** (-2 / 64))


def test_sizes_that_exaone_4_5_leaves_out_are_the_same_by_either_name() -> None:
    specs = [
        describe({"model_type": "exaone4_5", "text_config": {"model_type": kind}})
        for kind in ("exaone4", "exaone4_5_text")
    ]
    assert specs[0].layers == specs[1].layers
    assert {(spec.hidden_size, spec.vocab_size) for spec in specs} == {(4096, 102400)}
