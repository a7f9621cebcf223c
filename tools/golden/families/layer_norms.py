"""Decoders whose norms subtract the mean."""

from __future__ import annotations

from typing import Any

from tools.golden.base import ONE_LAYER, Golden

_UNTIED: dict[str, Any] = {"tie_word_embeddings": False, "pad_token_id": None}

LAYER_NORMS: dict[str, Golden] = {
    "cohere": Golden("Cohere", {**ONE_LAYER, "logit_scale": 0.25}),
    # As Command R+ is, whose heads have norms.
    "cohere-norms": Golden(
        "Cohere", {"logit_scale": 0.25, "use_qk_norm": True, "pad_token_id": None}, reply=64
    ),
    "cohere2": Golden(
        "Cohere2",
        {
            "num_hidden_layers": 3,
            "logit_scale": 0.5,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        reply=64,
    ),
    "cohere2_moe": Golden(
        "Cohere2Moe",
        {
            "num_hidden_layers": 3,
            "head_dim": 16,
            "logit_scale": 0.25,
            "intermediate_size": 40,
            "prefix_dense_intermediate_size": 48,
            "num_experts": 5,
            "num_shared_experts": 1,
            "sliding_window": 8,
            # All have a rope but the last.
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "pad_token_id": None,
        },
        reply=64,
    ),
    "gpt_neox": Golden("GPTNeoX", _UNTIED, reply=64, names={"lm_head.": "embed_out."}),
    "jais2": Golden("Jais2", {**_UNTIED, **ONE_LAYER}),
    "nemotron": Golden("Nemotron", _UNTIED, norm_offset=1.0),
    "olmo": Golden("Olmo", {**_UNTIED, **ONE_LAYER}),
    "phi": Golden("Phi", _UNTIED, reply=64),
    # A margin of 0.4, with which some experts count for others and some do not.
    "phimoe": Golden(
        "Phimoe",
        {
            **_UNTIED,
            "intermediate_size": 40,
            "num_local_experts": 5,
            "router_jitter_noise": 0.2,
            "attention_bias": True,
            "lm_head_bias": True,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1 + 0.05 * index for index in range(8)],
                "long_factor": [1 + 0.6 * index for index in range(8)],
                **{"short_mscale": 1.25, "long_mscale": 1.25},
                "original_max_position_embeddings": 128,
            },
        },
        reply=64,
        names={
            ".mlp.router.": ".block_sparse_moe.gate.",
            ".mlp.": ".block_sparse_moe.",
            ".gate_proj.": ".w1.",
            ".up_proj.": ".w3.",
            ".down_proj.": ".w2.",
        },
    ),
    "stablelm": Golden("StableLm", {**_UNTIED, "use_qkv_bias": True}),
    # As StableLM 2 12B is.
    "stablelm-norms": Golden(
        "StableLm",
        {**_UNTIED, **ONE_LAYER, "qk_layernorm": True, "use_parallel_residual": True},
    ),
    "starcoder2": Golden("Starcoder2", {"sliding_window": 8, "pad_token_id": None}),
}
