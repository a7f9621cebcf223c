"""The tiny checkpoints that ``make.py`` writes: their configurations, and what else they have."""

from __future__ import annotations

from typing import Any

from tools.golden.base import BASE, FACTORS, LATENT, LONG, ONE_LAYER, ROPE, VOCAB_SIZE, YARN, Golden
from tools.golden.families.layer_norms import LAYER_NORMS
from tools.golden.families.like_others import LIKE_OTHERS
from tools.golden.families.mixtures import MIXTURES

__all__ = ["BASE", "GOLDEN", "Golden"]


_ONLINE = {"linear_class": "autobitlinear", "quantization_mode": "online"}
_OFFLINE = {"linear_class": "autobitlinear", "quantization_mode": "offline"}
_BITLINEAR = {"linear_class": "bitlinear", "quantization_mode": "offline"}
_BITNET = {"intermediate_size": 96, "rope_parameters": {"rope_theta": 500000.0}}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_ORIGINAL = {"original_max_position_embeddings": 16}
_ALPHA = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": 50.0}
_LLAMA4 = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 2.0,
    "original_max_position_embeddings": 64,
    "llama_4_scaling_beta": 0.1,
}
_LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.5, 1.7, 2.0],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0],
}
_GLM_4 = {"head_dim": 32, "tie_word_embeddings": False, "pad_token_id": None}

_LINEAR_ATTENTION: dict[str, Any] = {
    "head_dim": 32,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}
_SECTIONS = {"mrope_interleaved": True, "mrope_section": [2, 1, 1]}
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, **_SECTIONS}
_QWEN_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 48,
}

_GEMMA_4: dict[str, Any] = {
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "sliding_window": 8,
    "final_logit_softcapping": 5.0,
    "rms_norm_eps": 0.001,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}

_UNTIED: dict[str, Any] = {"tie_word_embeddings": False, "pad_token_id": None}


GOLDEN: dict[str, Golden] = {
    **LAYER_NORMS,
    **LIKE_OTHERS,
    **MIXTURES,
    "llama": Golden("Llama", {"tie_word_embeddings": False, "attention_bias": True}),
    "llama-linear": Golden("Llama", {**ONE_LAYER, "rope_parameters": _LINEAR}),
    "llama-llama3": Golden("Llama", {**ONE_LAYER, "rope_parameters": {**ROPE, **_LLAMA3}}),
    "llama-yarn": Golden("Llama", {**ONE_LAYER, "rope_parameters": {**ROPE, **YARN}}, 40),
    "mistral": Golden("Mistral", {"sliding_window": 8}, tokens=32),
    "qwen2": Golden(
        "Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    ),
    "qwen3": Golden("Qwen3", {"head_dim": 32}),
    "smollm3": Golden("SmolLM3", {"no_rope_layers": [1, 0], "pad_token_id": None}),
    "olmo2": Golden("Olmo2", {"tie_word_embeddings": False}),
    "olmo3": Golden(
        "Olmo3",
        {
            "tie_word_embeddings": False,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {**YARN, "rope_theta": 500000.0, **_ORIGINAL},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
            },
        },
    ),
    "granite": Golden("Granite", FACTORS),
    "granitemoehybrid": Golden(
        "GraniteMoeHybrid",
        {
            **FACTORS,
            "tie_word_embeddings": False,
            "shared_intermediate_size": 96,
            "num_local_experts": 0,
            "position_embedding_type": "rope",
            "layer_types": ["attention", "attention"],
            "mamba_n_heads": 4,
        },
    ),
    "phi3": Golden("Phi3", {"rope_parameters": _LONG_ROPE, **LONG, "pad_token_id": None}),
    "ministral3": Golden("Ministral3", {"head_dim": 32, "rope_parameters": _LLAMA4, **ONE_LAYER}),
    # Scores reach several times their bound, and the reply is longer than the window.
    "gemma2": Golden(
        "Gemma2",
        {
            "head_dim": 32,
            "num_hidden_layers": 3,
            "query_pre_attn_scalar": 4,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
            "sliding_window": 8,
            "tie_word_embeddings": False,  # or each token would be followed by itself
        },
        norm_offset=1.0,
        reply=64,
    ),
    "gemma3_text": Golden(
        "Gemma3Text",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 20,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {**_LINEAR, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        norm_offset=1.0,
        model="Gemma3",
    ),
    # The kind of 31B: keys that are values, too, and wider heads in layers without a window.
    "gemma4_text": Golden(
        "Gemma4Text", {**_GEMMA_4, "tie_word_embeddings": False}, reply=64, model="Gemma4"
    ),
    # The kind of E2B: inputs of each layer, and layers that attend to keys of others.
    "gemma4_text-per-layer": Golden(
        "Gemma4Text",
        {
            **_GEMMA_4,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_key_value_heads": 1,
            "attention_k_eq_v": False,
            "num_global_key_value_heads": None,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": VOCAB_SIZE,
        },
        reply=64,
        model="Gemma4",
    ),
    # The kind of 26B A4B: experts beside a dense network.
    "gemma4_text-experts": Golden(
        "Gemma4Text",
        {
            **_GEMMA_4,
            "tie_word_embeddings": False,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 48,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        reply=64,
        model="Gemma4",
        stacked=True,
    ),
    # Layers of other widths, some of which cut off activations, and a table with fewer rows.
    "gemma3n_text": Golden(
        "Gemma3nText",
        {
            "head_dim": 16,
            "num_hidden_layers": 6,
            "intermediate_size": [96, 128, 64, 64, 64, 96],
            "activation_sparsity_pattern": [0.9, 0.7, 0.0, 0.0, 0.3, 0.0],
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "sliding_window": 8,
            "num_kv_shared_layers": 2,
            "laurel_rank": 16,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": 256,
            "final_logit_softcapping": 5.0,
            "rms_norm_eps": 0.001,
        },
        reply=64,
        model="Gemma3n",
    ),
    "lfm2": Golden(
        "Lfm2",
        {
            "intermediate_size": 96,
            "block_multiple_of": 16,
            "layer_types": ["conv", "full_attention", "conv"],
            "num_hidden_layers": 3,
            "pad_token_id": None,
        },
        reply=64,
    ),
    "qwen3_5_text": Golden(
        "Qwen3_5Text",
        {**_LINEAR_ATTENTION, "rope_parameters": {**_MROPE, "partial_rotary_factor": 0.25}},
        norm_offset=1.0,
        model="Qwen3_5",
        reply=64,
    ),
    "qwen3_5_moe_text": Golden(
        "Qwen3_5MoeText",
        {**_LINEAR_ATTENTION, **_QWEN_EXPERTS, "linear_num_key_heads": 4},
        norm_offset=1.0,
        model="Qwen3_5Moe",
        reply=64,
    ),
    "qwen3_next": Golden(
        "Qwen3Next",
        {**_LINEAR_ATTENTION, **_QWEN_EXPERTS, "linear_conv_kernel_dim": 3},
        norm_offset=1.0,
        reply=64,
    ),
    "olmo_hybrid": Golden(
        "OlmoHybrid",
        {
            "tie_word_embeddings": False,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "rms_norm_eps": 0.01,  # which norms of heads do not have
            "rope_parameters": {"rope_type": "default", "rope_theta": None},
            "pad_token_id": None,
        },
        reply=64,
        names={
            ".input_layernorm.": ".attention_layer_norm.",
            ".0.post_attention_layernorm.": ".0.feedforward_layer_norm.",
            ".2.post_attention_layernorm.": ".2.feedforward_layer_norm.",
        },
    ),
    "exaone4": Golden(
        "Exaone4",
        {
            "tie_word_embeddings": False,
            "sliding_window": 8,
            "sliding_window_pattern": 2,
            "num_hidden_layers": 3,
            "rope_parameters": {**ROPE, **_LLAMA3},
            "pad_token_id": None,
        },
        reply=64,
    ),
    "hunyuan_v1_dense": Golden(
        "HunYuanDenseV1",
        {
            "head_dim": 32,
            "rope_parameters": _ALPHA,
            "pad_token_id": None,
        },
        reply=64,
    ),
    "seed_oss": Golden(
        "SeedOss",
        {
            "tie_word_embeddings": False,
            "head_dim": 32,
            "attention_out_bias": True,
            "attention_dropout": 0.0,
            "residual_dropout": 0.0,
            "pad_token_id": None,
        },
        reply=64,
    ),
    "glm": Golden("Glm", {**_GLM_4, **ONE_LAYER}, reply=64),
    "glm4": Golden("Glm4", {**_GLM_4, "attention_bias": False}, reply=64),
    "ernie4_5": Golden("Ernie4_5", {"head_dim": 32, "use_bias": True, "pad_token_id": None}),
    "bitnet-master": Golden("BitNet", _BITNET, 16, quantization=_ONLINE),
    "bitnet-packed": Golden("BitNet", _BITNET, 16, quantization=_BITLINEAR),
    "bitnet-offline": Golden("BitNet", _BITNET, 16, quantization=_OFFLINE),
    "apertus": Golden("Apertus", _UNTIED, reply=64),
    "arcee": Golden("Arcee", _UNTIED, reply=64),
    "cwm": Golden("Cwm", {**_UNTIED, **ONE_LAYER, "head_dim": 32, "sliding_window": 8}),
    "gemma": Golden("Gemma", {**ONE_LAYER, "head_dim": 32}, norm_offset=1.0),
    "granite_swa": Golden(
        "GraniteSWA",
        {
            **FACTORS,
            **_UNTIED,
            "num_hidden_layers": 3,
            "sliding_window": 8,
            "layer_rope_theta": [10000.0, 0, 100.0],
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
        },
        reply=64,
    ),
    "helium": Golden("Helium", {**_UNTIED, **ONE_LAYER, "head_dim": 16, "attention_bias": True}),
    "hyperclovax": Golden("HyperCLOVAX", {**FACTORS, "logits_scaling": 0.2, "pad_token_id": None}),
    "lfm3": Golden(
        "Lfm3",
        {
            **_UNTIED,
            "head_dim": 32,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "sliding_attention", "full_attention"],
            "sliding_window": 8,
            "conv_L_cache": 4,
        },
        reply=64,
        names={".g_proj.": ".gate_proj."},
    ),
    "vaultgemma": Golden(
        "VaultGemma",
        {**_UNTIED, **ONE_LAYER, "head_dim": 32, "sliding_window": 8},
        norm_offset=1.0,
    ),
    "youtu": Golden(
        "Youtu", {**LATENT, "rope_parameters": {**ROPE, "rope_type": "default"}}, reply=64
    ),
}
