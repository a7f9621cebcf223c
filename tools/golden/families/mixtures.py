"""Mixtures of experts among the tiny checkpoints: their configurations, and what else they have."""

from __future__ import annotations

from tools.golden.base import FACTORS, ONE_LAYER, ROPE, YARN, Golden

_EXPERTS = {
    "tie_word_embeddings": False,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
}
_LATENT = {
    **_EXPERTS,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.5,
}
_ONE_GROUP = {"n_group": 1, "topk_group": 1, "norm_topk_prob": True}
_GROUPS = {
    "n_routed_experts": 12,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "q_lora_rank": 48,
}
_GLM = {
    **_EXPERTS,
    "head_dim": 32,
    "attention_bias": True,
    "rms_norm_eps": 0.01,
    "routed_scaling_factor": 2.5,
    "num_mtp_layers": 0,
    "pad_token_id": None,
}
_GRANITE = {
    **FACTORS,
    "tie_word_embeddings": False,
    "intermediate_size": 40,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 48,
    "pad_token_id": None,
}
_GRANITE_NAMES = {
    ".experts.gate_up_proj": ".input_linear.weight",
    ".experts.down_proj": ".output_linear.weight",
    ".router.weight": ".router.layer.weight",
}
_QUARTER = {**YARN, **ROPE, "partial_rotary_factor": 0.25}
_MSCALE = {**YARN, **ROPE, "mscale": 0.7, "mscale_all_dim": 0.5}

MIXTURES: dict[str, Golden] = {
    "deepseek_v2": Golden("DeepseekV2", {**_LATENT, "rope_parameters": _MSCALE}),
    "deepseek_v2-query-rank": Golden(
        "DeepseekV2", {**_LATENT, **ONE_LAYER, "q_lora_rank": 64, "v_head_dim": 32}
    ),
    "deepseek_v3": Golden(
        "DeepseekV3",
        {**_LATENT, **_ONE_GROUP, "rope_parameters": _MSCALE, "num_nextn_predict_layers": 0},
    ),
    # The kind of V2 itself: groups of experts are chosen first, by the best of each.
    "deepseek_v2-groups": Golden(
        "DeepseekV2",
        {
            **_LATENT,
            **_GROUPS,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 2.5,
            "rope_parameters": _MSCALE,
        },
        reply=64,
    ),
    # The kind of V3 and R1: by the sum of two, with a bias.
    "deepseek_v3-groups": Golden(
        "DeepseekV3",
        {
            **_LATENT,
            **_GROUPS,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "rope_parameters": _MSCALE,
            "num_nextn_predict_layers": 0,
        },
        reply=64,
    ),
    "glm4_moe_lite": Golden(
        "Glm4MoeLite",
        {
            **{key: value for key, value in _LATENT.items() if key != "first_k_dense_replace"},
            **_ONE_GROUP,
            "q_lora_rank": 48,
            "v_head_dim": 32,
            "rms_norm_eps": 0.01,  # which norms of narrow rows do not have
            "pad_token_id": None,
        },
        reply=64,
    ),
    "glm4_moe": Golden("Glm4Moe", {**_GLM, "use_qk_norm": True}, reply=64),
    "sarvam_moe": Golden(
        "SarvamMoE",
        model="Glm4Moe",
        changes={
            **_GLM,
            **ONE_LAYER,
            "first_k_dense_replace": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 8000000.0},
        },
        names={
            "model.embed_tokens.": "model.word_embeddings.",
            ".self_attn.o_proj.": ".attention.dense.",
            ".self_attn.q_norm.": ".attention.query_layernorm.",
            ".self_attn.k_norm.": ".attention.key_layernorm.",
            ".self_attn.": ".attention.",
            ".mlp.gate.e_score_correction_bias": ".mlp.gate.expert_bias",
        },
        joined={
            "attention.query_key_value": (
                1,
                ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
            )
        },
    ),
    # Without norms of heads, as GLM 4.5 Air is.
    "glm4_moe-yarn": Golden(
        "Glm4Moe",
        {**_GLM, **ONE_LAYER, "first_k_dense_replace": 0, "rope_parameters": _QUARTER},
    ),
    "dots1": Golden(
        "Dots1",
        {
            **_EXPERTS,
            **_ONE_GROUP,
            "first_k_dense_replace": 1,
            "n_shared_experts": 2,
            "routed_scaling_factor": 2.5,
            "sliding_window": 8,
            "max_window_layers": 1,
        },
        reply=64,
    ),
    "hunyuan_v1_moe": Golden(
        "HunYuanMoEV1",
        {
            "tie_word_embeddings": False,
            "head_dim": 16,
            "num_experts": 6,
            "moe_topk": 2,
            "pad_token_id": None,
        },
        reply=64,
    ),
    "exaone_moe": Golden(
        "ExaoneMoe",
        {
            "tie_word_embeddings": False,
            "num_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "sliding_window": 8,
            "sliding_window_pattern": 2,
            "pad_token_id": None,
        },
        reply=64,
        names={".mlp.gate.e_score": ".mlp.e_score"},
    ),
    "solar_open": Golden(
        "SolarOpen",
        {
            **_EXPERTS,
            "head_dim": 32,
            "rope_parameters": {**ROPE, **YARN},
            "attention_bias": True,
            "routed_scaling_factor": 1.5,
            "pad_token_id": None,
        },
        reply=64,
    ),
    "afmoe": Golden(
        "Afmoe",
        {
            **{key: value for key, value in _EXPERTS.items() if key != "n_routed_experts"},
            "head_dim": 32,
            "num_experts": 6,
            "num_dense_layers": 1,
            "num_hidden_layers": 3,
            "global_attn_every_n_layers": 3,
            "sliding_window": 8,
            "route_scale": 2.5,
            "mup_enabled": True,
            "pad_token_id": None,
        },
        reply=64,
    ),
    "hy_v3": Golden(
        "HYV3",
        {
            **{key: value for key, value in _EXPERTS.items() if key != "n_routed_experts"},
            "head_dim": 32,
            "num_experts": 6,
            "pad_token_id": None,
        },
        reply=64,
        names={
            ".mlp.gate.weight": ".mlp.router.gate.weight",
            ".mlp.e_score_correction_bias": ".mlp.expert_bias",
            ".mlp.shared_experts.": ".mlp.shared_mlp.",
        },
    ),
    # Within its original context, beyond which scores grow with positions.
    "mistral4": Golden(
        "Mistral4",
        {
            **{key: value for key, value in _LATENT.items() if key != "first_k_dense_replace"},
            "q_lora_rank": 48,
            "n_shared_experts": 1,
            "rope_parameters": {
                **{**YARN, **ROPE, "original_max_position_embeddings": 64},
                **{"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
            },
            "pad_token_id": None,
        },
        stacked=True,
    ),
    "flint": Golden(
        "Flint",
        {
            **{key: value for key, value in _EXPERTS.items() if key != "n_routed_experts"},
            "head_dim": 32,
            "num_experts": 6,
            "shared_expert_intermediate_size": 48,
            "mlp_only_layers": [0],
            "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention"],
            "pad_token_id": None,
        },
        reply=64,
        names={".self_attn.sinks": ".self_attn.softmax_offset"},
    ),
    "kolibri1": Golden(
        "Kolibri1",
        {
            **{key: value for key, value in _EXPERTS.items() if key != "n_routed_experts"},
            "head_dim": 32,
            "num_experts": 6,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 48,
            "norm_topk_prob": False,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "pad_token_id": None,
        },
        reply=64,
        names={
            ".mlp.gate.e_score_correction_bias": ".moe.router.expert_bias",
            ".post_self_attn_layernorm.": ".post_attn_norm.",
            ".post_mlp_layernorm.": ".post_ffn_norm.",
        },
    ),
    "laguna": Golden(
        "Laguna",
        {
            **{key: value for key, value in _EXPERTS.items() if key != "n_routed_experts"},
            "head_dim": 16,
            "num_experts": 6,
            "shared_expert_intermediate_size": 48,
            "num_attention_heads_per_layer": [4, 6],
            "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention"],
            "moe_routed_scaling_factor": 2.5,
            "moe_router_logit_softcapping": 1.5,
            "moe_intermediate_size": 48,
            "pad_token_id": None,
        },
        reply=64,
        names={
            ".mlp.gate.e_score_correction_bias": ".mlp.experts.e_score_correction_bias",
            ".mlp.shared_experts.": ".mlp.shared_expert.",
        },
    ),
    "granitemoeshared": Golden("GraniteMoeShared", _GRANITE, names=_GRANITE_NAMES, stacked=True),
    "granitemoe_swa": Golden(
        "GraniteMoeSWA",
        {**_GRANITE, "sliding_window": 8, "layer_rope_theta": [10000.0, 0]},
        stacked=True,
        reply=64,
    ),
    "mellum": Golden(
        "Mellum",
        {
            **{key: value for key, value in _EXPERTS.items() if key != "n_routed_experts"},
            "head_dim": 32,
            "num_experts": 6,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "mlp_layer_types": ["sparse", "dense"],
            "pad_token_id": None,
        },
        reply=64,
    ),
    "flex_olmo": Golden(
        "FlexOlmo",
        {
            "tie_word_embeddings": False,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "intermediate_size": 48,
            "pad_token_id": None,
        },
        reply=64,
    ),
    "minimax_m2": Golden(
        "MiniMaxM2",
        {
            "tie_word_embeddings": False,
            "head_dim": 32,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size": 48,
            "rope_parameters": {**ROPE, **YARN, "partial_rotary_factor": 0.5},
            "pad_token_id": None,
        },
        reply=64,
        names={
            ".mlp.": ".block_sparse_moe.",
            ".gate_proj.": ".w1.",
            ".up_proj.": ".w3.",
            ".down_proj.": ".w2.",
        },
    ),
}
