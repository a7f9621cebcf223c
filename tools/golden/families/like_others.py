"""Decoders that compute what others do, under other names or with other factors."""

from __future__ import annotations

from typing import Any

from tools.golden.base import BASE, LATENT, LONG, ONE_LAYER, Golden

_UNTIED: dict[str, Any] = {"tie_word_embeddings": False, "pad_token_id": None}
_EYE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
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
_MINICPM_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.5, 1.7, 2.0, 2.5, 3.0],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 9.0, 9.5],
}
_QKV = ("attention.q_proj", "attention.k_proj", "attention.v_proj")

LIKE_OTHERS: dict[str, Golden] = {
    "exaone": Golden("Exaone", {**ONE_LAYER, "pad_token_id": None}, model="Llama", names=_EXAONE),
    "internlm2": Golden(
        "Llama",
        {**_UNTIED, **ONE_LAYER, "attention_bias": True},
        names={
            "model.embed_tokens.": "model.tok_embeddings.",
            "lm_head.": "output.",
            ".self_attn.o_proj.": ".attention.wo.",
            ".self_attn.": ".attention.",
            ".mlp.gate_proj.": ".feed_forward.w1.",
            ".mlp.up_proj.": ".feed_forward.w3.",
            ".mlp.down_proj.": ".feed_forward.w2.",
            ".input_layernorm.": ".attention_norm.",
            ".post_attention_layernorm.": ".ffn_norm.",
        },
        joined={
            "attention.wqkv": (
                BASE["num_key_value_heads"],
                _QKV,
            )
        },
        said={
            "model_type": "internlm2",
            "architectures": ["InternLM2ForCausalLM"],
            "bias": True,
            **dict.fromkeys(("attention_bias", "mlp_bias", "rope_parameters")),
            "rope_theta": 10000.0,
        },
    ),
    "iquestcoder": Golden("IQuestCoder", {**_UNTIED, **ONE_LAYER, "head_dim": 32}, model="Llama"),
    "internlm3": Golden(
        "InternLM3",
        {**_UNTIED, **ONE_LAYER, "head_dim": 32, "attention_bias": True, "mlp_bias": True},
        model="Llama",
    ),
    # Whose head has fewer rows than its embedding.
    "apertus1p5_text": Golden(
        "Apertus1p5Text",
        {**_UNTIED, **ONE_LAYER, "output_vocab_size": 260},
        reply=64,
    ),
    "minicpm": Golden(
        "Granite",
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 1.4 / 2**0.5,
            "attention_multiplier": 0.25,
            "logits_scaling": 4.0,
            "rope_parameters": _MINICPM_ROPE,
            **LONG,
            "pad_token_id": None,
        },
        said={
            "model_type": "minicpm",
            "architectures": ["MiniCPMForCausalLM"],
            "scale_emb": 12,
            "scale_depth": 1.4,
            "dim_model_base": 16,
            **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "rope_parameters")),
            **dict.fromkeys(("attention_multiplier", "logits_scaling")),
            "original_max_position_embeddings": None,
            "rope_theta": 10000.0,
            "rope_scaling": {**_MINICPM_ROPE, "original_max_position_embeddings": 64},
        },
    ),
    "minicpm3": Golden(
        "MiniCPM3",
        {**LATENT, "scale_depth": 1.4, "dim_model_base": 32, "pad_token_id": None},
        reply=64,
    ),
    "muse_glimmer_text": Golden(
        "MuseGlimmer",
        {
            **_UNTIED,
            "head_dim": 32,
            "sliding_window": 8,
            "attention_bias": True,
            "rms_norm_eps": 0.01,
            "post_norm_eps": 0.001,
            "output_multiplier": 8.0,
            "final_logit_softcapping": 5.0,
        },
        norm_offset=1.0,
        reply=64,
        names={"model.language_model.": "model."},
        said={"architectures": ["MuseGlimmerTextModel"]},
        beside={"vision_config": _EYE, "out_hidden_size": 128, "projector_hidden_size": 32},
    ),
    "nanochat": Golden("NanoChat", {**_UNTIED, "final_logit_softcapping": 5.0}, reply=64),
}
