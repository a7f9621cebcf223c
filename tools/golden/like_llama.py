"""Tiny checkpoints of families that are nearly Llama, Granite, Gemma or LFM2."""

from __future__ import annotations

from typing import Any

from tools.golden.base import ONE_LAYER, ROPE, Golden

_UNTIED: dict[str, Any] = {"tie_word_embeddings": False, "pad_token_id": None}
FACTORS = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.1,
    "logits_scaling": 8.0,
}
_EXAONE = {
    "model.embed_tokens.": "transformer.wte.",
    "model.layers.": "transformer.h.",
    "model.norm.": "transformer.ln_f.",
    ".self_attn.o_proj.": ".attn.attention.out_proj.",
    ".self_attn.": ".attn.attention.",
    ".input_layernorm.": ".ln_1.",
    ".post_attention_layernorm.": ".ln_2.",
    ".mlp.gate_proj.": ".mlp.c_fc_0.",
    ".mlp.up_proj.": ".mlp.c_fc_1.",
    ".mlp.down_proj.": ".mlp.c_proj.",
}
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}

LIKE_LLAMA: dict[str, Golden] = {
    "arcee": Golden("Arcee", _UNTIED, reply=64),
    "cwm": Golden("Cwm", {**_UNTIED, **ONE_LAYER, "head_dim": 32, "sliding_window": 8}),
    "exaone": Golden("Exaone", {**ONE_LAYER, "pad_token_id": None}, model="Llama", names=_EXAONE),
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
    "internlm3": Golden(
        "InternLM3",
        {**_UNTIED, **ONE_LAYER, "head_dim": 32, "attention_bias": True, "mlp_bias": True},
        model="Llama",
    ),
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
        "Youtu", {**_LATENT, "rope_parameters": {**ROPE, "rope_type": "default"}}, reply=64
    ),
}
