"""Families whose experts are chosen as DeepSeek's are, with latent attention or the usual one."""

from __future__ import annotations

from tools.golden.differential.parts import (
    Config,
    Draw,
    expert_width,
    experts,
    flags,
    head_dim_of,
    own_heads,
    part_that_turns,
    rope,
    usual_windows,
    without,
)


def _routed(draw: Draw) -> Config:
    """Experts, in groups or not, beside some that every token goes to."""
    groups = {
        "n_routed_experts": 12,
        "n_group": draw.of(3, 4),
        "topk_group": draw.of(1, 2),
        "num_experts_per_tok": draw.of(2, 3),
    }
    return {
        **experts(draw, "n_routed_experts"),
        **expert_width(draw),
        **flags(draw, "norm_topk_prob"),
        "n_group": 1,
        "topk_group": 1,
        "n_shared_experts": draw.of(1, 2),
        "routed_scaling_factor": draw.of(1.0, 1.5, 2.5),
        **draw.of({}, groups),
    }


def _first_dense(draw: Draw) -> Config:
    return {"first_k_dense_replace": draw.of(0, 1)}


def _latent(draw: Draw) -> Config:
    """Attention whose keys and values are made of few numbers a token."""
    sizes = without(own_heads(draw), "head_dim")
    heads, still, turning = sizes["num_attention_heads"], draw.of(8, 12, 24), draw.of(8, 12, 16)
    return {
        **sizes,
        "num_key_value_heads": heads,
        "kv_lora_rank": draw.of(16, 20, 32),
        "q_lora_rank": draw.of(None, 24, 48),
        "qk_nope_head_dim": still,
        "qk_rope_head_dim": turning,
        "v_head_dim": draw.of(8, 16, still + turning),
    }


def deepseek_v2(draw: Draw) -> Config:
    return {
        **_latent(draw),
        **_routed(draw),
        **_first_dense(draw),
        "topk_method": draw.of("greedy", "group_limited_greedy"),
        "norm_topk_prob": False,
        "rope_parameters": rope(draw, ("default", "yarn", "yarn")),
    }


def deepseek_v3(draw: Draw) -> Config:
    return {
        **_latent(draw),
        **_routed(draw),
        **_first_dense(draw),
        **flags(draw, "rope_interleave"),
        "rope_parameters": rope(draw, ("default", "yarn", "yarn", "linear")),
        "num_nextn_predict_layers": draw.of(0, 1),
    }


def glm4_moe_lite(draw: Draw) -> Config:
    sizes = _latent(draw)
    networks = [draw.of("dense", "sparse") for _ in range(sizes["num_hidden_layers"])]
    return {
        **sizes,
        **_routed(draw),
        **flags(draw, "rope_interleave"),
        **draw.of({}, {"mlp_layer_types": networks}),
        "rope_parameters": rope(draw, ("default", "yarn")),
    }


def glm4_moe(draw: Draw) -> Config:
    sizes = own_heads(draw)
    part = part_that_turns(draw, head_dim_of(sizes), 0.25, 0.5, 1.0)
    return {
        **sizes,
        **_routed(draw),
        **_first_dense(draw),
        **flags(draw, "attention_bias", "use_qk_norm"),
        "rope_parameters": rope(draw, **part),
        "num_nextn_predict_layers": draw.of(0, 1),
    }


def sarvam_moe(draw: Draw) -> Config:
    return {
        **own_heads(draw),
        **_routed(draw),
        **_first_dense(draw),
        **flags(draw, "attention_bias", "use_qk_norm"),
        **draw.of({}, {"rope_parameters": rope(draw)}),
    }


def dots1(draw: Draw) -> Config:
    sizes = own_heads(draw)
    windows = usual_windows(draw, sizes, {"max_window_layers": draw.of(0, 1, 2)})
    return {
        **sizes,
        **_routed(draw),
        **_first_dense(draw),
        **flags(draw, "attention_bias"),
        **draw.of({"sliding_window": None}, windows, windows),
        "rope_parameters": rope(draw),
    }


def solar_open(draw: Draw) -> Config:
    return {
        **without(own_heads(draw), "intermediate_size"),
        **_routed(draw),
        **flags(draw, "attention_bias"),
        "rope_parameters": rope(draw),
    }


def exaone_moe(draw: Draw) -> Config:
    sizes = own_heads(draw)
    networks = [draw.of("dense", "sparse") for _ in range(sizes["num_hidden_layers"])]
    groups = {"num_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 2}
    return {
        **sizes,
        **usual_windows(draw, sizes, {"sliding_window_pattern": draw.of(2, 3)}),
        **experts(draw),
        **expert_width(draw),
        **draw.of({}, groups),
        **flags(draw, "norm_topk_prob"),
        **draw.of({"mlp_layer_types": networks}, _first_dense(draw)),
        "num_shared_experts": draw.of(1, 2),
        "routed_scaling_factor": draw.of(1.0, 2.5),
        "rope_parameters": rope(draw),
    }


def youtu(draw: Draw) -> Config:
    return {
        **_latent(draw),
        **flags(draw, "rope_interleave"),
        "rope_parameters": rope(draw, ("default", "yarn", "linear")),
    }


def hy_v3(draw: Draw) -> Config:
    sizes = own_heads(draw)
    networks = [draw.of("dense", "sparse") for _ in range(sizes["num_hidden_layers"])]
    return {
        **sizes,
        **experts(draw),
        **expert_width(draw),
        **flags(draw, "attention_bias", "enable_moe_fp32_combine"),
        **draw.of({}, {"mlp_layer_types": networks}),
        "num_shared_experts": draw.of(1, 2),
        "router_scaling_factor": draw.of(1.0, 2.826),
        "rope_parameters": rope(draw),
    }


def mistral4(draw: Draw) -> Config:
    turned = rope(draw, ("yarn",))
    scores = {"llama_4_scaling_beta": 0.1}
    return {
        **_latent(draw),
        **_routed(draw),
        **_first_dense(draw),
        **flags(draw, "rope_interleave"),
        "n_group": 1,
        "topk_group": 1,
        "rope_parameters": {**turned, **scores},
    }


def minicpm3(draw: Draw) -> Config:
    return {
        **_latent(draw),
        **draw.of({}, {"scale_emb": draw.of(1, 12)}),
        **draw.of({}, {"scale_depth": draw.of(None, 1.4, 0.7)}),
        **draw.of({}, {"dim_model_base": draw.of(None, 16, 256)}),
        "rope_parameters": rope(draw, ("default", "linear")),
    }


def afmoe(draw: Draw) -> Config:
    sizes = own_heads(draw)
    return {
        **sizes,
        **usual_windows(draw, sizes, {"global_attn_every_n_layers": draw.of(2, 3)}),
        **experts(draw),
        **expert_width(draw),
        **flags(draw, "mup_enabled", "attention_bias"),
        "num_shared_experts": draw.of(1, 2),
        "num_dense_layers": draw.of(0, 1),
        "route_scale": draw.of(1.0, 2.5),
        "rope_parameters": rope(draw),
    }


FAMILIES = {
    "afmoe": afmoe,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "dots1": dots1,
    "exaone_moe": exaone_moe,
    "glm4_moe": glm4_moe,
    "glm4_moe_lite": glm4_moe_lite,
    "hy_v3": hy_v3,
    "kimi_k2": deepseek_v3,
    "sarvam_moe": sarvam_moe,
    "solar_open": solar_open,
    "minicpm3": minicpm3,
    "youtu": youtu,
}
