"""DeepSeek V2 and V3, and others whose experts are chosen by sigmoids, as GGUF files name them.

Source: llama.cpp's ``conversion/deepseek.py``, ``glm.py``, ``bailingmoe.py`` and ``minimax.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint.base import F32
from edgerun_export.checkpoint.kinds.base import SIGMOID, Architecture, Experts
from edgerun_export.checkpoint.kinds.keys import Keys

_Config = Mapping[str, Any]
_Factors = Mapping[str, F32]

_DEEPSEEK_EXPERTS = Experts(
    count_key="n_routed_experts",
    width_key=("moe_intermediate_size", "expert_feed_forward_length"),
    normalises=False,
)
_DEEPSEEK_KEYS = ("expert_shared_count", "leading_dense_block_count", "expert_group_count")
_AFTER_DEEPSEEK = {
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_DEEPSEEK = Architecture(
    "deepseek_v2",
    "DeepseekV2ForCausalLM",
    False,
    {"hidden_act": "silu"},
    _DEEPSEEK_EXPERTS,
    {
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
        "attn_k_b": "self_attn.k_b_proj",
        "attn_v_b": "self_attn.v_b_proj",
        **_AFTER_DEEPSEEK,
    },
    factors={
        "expert_weights_scale": "routed_scaling_factor",
        "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
    },
    own_keys=_DEEPSEEK_KEYS,
    is_latent=True,
)
DEEPSEEK_KINDS = {
    "deepseek2": _DEEPSEEK,
    "glm4moe": Architecture(
        "glm4_moe",
        "Glm4MoeForCausalLM",
        False,
        {"hidden_act": "silu"},
        replace(_DEEPSEEK_EXPERTS, normalises=True),
        {"post_attention_norm": "post_attention_layernorm", **_AFTER_DEEPSEEK},
        factors={"expert_weights_scale": "routed_scaling_factor"},
        own_keys=(*_DEEPSEEK_KEYS, "expert_gating_func"),
        partial=True,
        told={"attention_bias": "attn_q.bias", "use_qk_norm": "attn_q_norm.weight"},
    ),
    "bailingmoe2": Architecture(
        "bailing_moe_v2",
        "BailingMoeV2ForCausalLM",
        False,
        {"hidden_act": "silu", "use_bias": False},
        replace(_DEEPSEEK_EXPERTS, count_key="num_experts", normalises=True),
        {
            **_AFTER_DEEPSEEK,
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "attn_q_norm": "attention.query_layernorm",
            "attn_k_norm": "attention.key_layernorm",
            "exp_probs_b": "mlp.gate.expert_bias",
        },
        factors={"expert_weights_scale": "routed_scaling_factor"},
        own_keys=(*_DEEPSEEK_KEYS, "expert_gating_func"),
        partial=True,
        embedding="model.word_embeddings",
        told={"use_qkv_bias": "attn_qkv.bias", "use_qk_norm": "attn_q_norm.weight"},
    ),
    "dots1": Architecture(
        "dots1",
        "Dots1ForCausalLM",
        False,
        {"hidden_act": "silu", "sliding_window": None},
        replace(_DEEPSEEK_EXPERTS, normalises=True),
        _AFTER_DEEPSEEK,
        factors={"expert_weights_scale": "routed_scaling_factor"},
        own_keys=(*_DEEPSEEK_KEYS, "expert_gating_func"),
    ),
    "minimax-m2": Architecture(
        "minimax_m2",
        "MiniMaxM2ForCausalLM",
        False,
        {"hidden_act": "silu"},
        Experts(
            "block_sparse_moe",
            ("w1", "w3", "w2"),
            "num_local_experts",
            ("intermediate_size", "expert_feed_forward_length"),
        ),
        {"exp_probs_b": "block_sparse_moe.e_score_correction_bias"},
        own_keys=("expert_gating_func",),
        partial=True,
    ),
}
# What llama.cpp calls DeepSeek's second model, too: V3 and others that choose experts by sigmoids.
SIGMOIDS = replace(
    _DEEPSEEK,
    model_type="deepseek_v3",
    class_name="DeepseekV3ForCausalLM",
    experts=replace(_DEEPSEEK_EXPERTS, normalises=True),
    own_keys=(*_DEEPSEEK.own_keys, "expert_gating_func"),
)


def _deepseek(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    """What is said of key and value heads is of rows in newer files, which have `mla` keys too."""
    turned = config["head_dim"]
    keys_of_heads, values = (
        keys.size(f"attention.{part}_length_mla", keys.size(f"attention.{part}_length"))
        for part in ("key", "value")
    )
    if keys_of_heads <= turned:
        raise CheckpointError(
            f"key heads have {keys_of_heads} elements and {turned} of them are turned; expected "
            "fewer"
        )
    scaling = dict(config["rope_scaling"] or {"rope_type": "default"})
    if config["mscale_all_dim"]:  # written as a tenth, and once for two keys
        scale = 10 * config["mscale_all_dim"]
        scaling |= {"mscale": scale, "mscale_all_dim": scale}
    query_rank = keys.number("attention.q_lora_rank", 0)
    return {
        **_as_deepseek(keys, config),
        "kv_lora_rank": keys.size("attention.kv_lora_rank"),
        "q_lora_rank": keys.size("attention.q_lora_rank") if query_rank else None,
        "qk_nope_head_dim": keys_of_heads - turned,
        "qk_rope_head_dim": turned,
        "v_head_dim": values,
        "rope_scaling": scaling,
    }


def _as_deepseek(keys: Keys, config: _Config) -> dict[str, Any]:
    """Which layers have experts of DeepSeek's kind, and what else these keys say of them."""
    predicting = keys.count("nextn_predict_layers", 0)  # behind the others, and counted among them
    return {
        "num_hidden_layers": config["num_hidden_layers"] - predicting,
        "num_nextn_predict_layers": predicting,
        "first_k_dense_replace": keys.count("leading_dense_block_count", 0),
        "n_shared_experts": keys.count("expert_shared_count", 0),
        **_groups(keys),
        "routed_scaling_factor": config["routed_scaling_factor"] or 1.0,
    }


def _groups(keys: Keys) -> dict[str, Any]:
    """Groups of experts, of which files say nothing that were made before llama.cpp had them."""
    count = keys.count("expert_group_count", 1)
    if count <= 1:
        return {"n_group": 1, "topk_group": 1}
    chosen = keys.size("expert_group_used_count")
    return {"n_group": count, "topk_group": chosen, "topk_method": "group_limited_greedy"}


def _deepseek_v3(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    _check_normalised("deepseek2", keys)
    return _deepseek(keys, config, rope_factors)


def _glm4_moe(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    _check_normalised("glm4moe", keys)
    # To llama.cpp 0, or nothing, means sigmoids.
    check_sigmoids(keys.number("expert_gating_func", 0) or SIGMOID, config)
    part = config.get("partial_rotary_factor", 1.0)
    return {**_as_deepseek(keys, config), "partial_rotary_factor": part}


def _dots1(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    _check_normalised("dots1", keys)
    check_sigmoids(keys.number("expert_gating_func"), config)
    return _as_deepseek(keys, config)


def _bailing(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    _check_normalised("bailingmoe2", keys)
    check_sigmoids(keys.number("expert_gating_func"), config)
    values = _as_deepseek(keys, config)
    part = config.get("partial_rotary_factor", 1.0)
    shared = values.pop("n_shared_experts")
    return {**values, "num_shared_experts": shared, "partial_rotary_factor": part}


def _minimax_m2(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    check_sigmoids(keys.number("expert_gating_func"), config)
    return {"partial_rotary_factor": config.get("partial_rotary_factor", 1.0)}


def _check_normalised(name: str, keys: Keys) -> None:
    if not keys.has("expert_weights_norm"):  # to llama.cpp that means no, to the models yes
        raise CheckpointError(
            f"metadata lacks '{name}.expert_weights_norm', which says whether the weights of "
            "experts add up to 1"
        )


def check_sigmoids(scoring: float, config: _Config) -> None:
    """Refuses scores of experts that are no sigmoids.

    Raises:
        UnsupportedError: llama.cpp's number of another function.
    """
    if scoring != SIGMOID:
        raise UnsupportedError(
            f"metadata 'expert_gating_func' is {scoring:g}, which {config['model_type']} is not "
            f"supported with; expected {SIGMOID} for sigmoids"
        )


DEEPSEEK_FAMILIES: Mapping[str, Callable[[Keys, _Config, _Factors], dict[str, Any]]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek_v3,
    "glm4_moe": _glm4_moe,
    "dots1": _dots1,
    "bailing_moe_v2": _bailing,
    "minimax_m2": _minimax_m2,
}
