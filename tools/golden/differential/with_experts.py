"""Families with experts whose attention is that of Llama."""

from __future__ import annotations

from tools.golden.differential.llama_like import (
    granite_factors,
    hunyuan_v1_dense,
    sinks,
)
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
    ropes_by_type,
    shared_width,
    switched_windows,
    usual_windows,
    window,
)


def mixtral(draw: Draw) -> Config:
    return {
        **own_heads(draw),
        **experts(draw, "num_local_experts"),
        "sliding_window": draw.of(None, 4, 16),
        "rope_parameters": rope(draw),
    }


def olmoe(draw: Draw) -> Config:
    return {
        **shared_width(draw),
        **experts(draw),
        **flags(draw, "norm_topk_prob", "attention_bias"),
        "rope_parameters": rope(draw),
    }


def granitemoe(draw: Draw) -> Config:
    return {
        **shared_width(draw),
        **draw.of({}, granite_factors(draw)),
        **experts(draw, "num_local_experts"),
        **flags(draw, "attention_bias"),
        "rope_parameters": rope(draw),
    }


def granitemoeshared(draw: Draw) -> Config:
    return {**granitemoe(draw), "shared_intermediate_size": draw.of(0, 33, 48)}


def granitemoe_swa(draw: Draw) -> Config:
    sizes = granitemoeshared(draw)
    return {**sizes, **sinks(draw, sizes)}


def kolibri1(draw: Draw) -> Config:
    sizes = own_heads(draw)
    return {
        **sizes,
        **usual_windows(draw, sizes, {}),
        **experts(draw),
        **expert_width(draw),
        **flags(draw, "norm_topk_prob"),
        "shared_expert_intermediate_size": draw.of(33, 48),
        "rope_parameters": rope(draw),
    }


def laguna(draw: Draw) -> Config:
    sizes = own_heads(draw)
    layers, key_heads = sizes["num_hidden_layers"], sizes["num_key_value_heads"]
    heads = [key_heads * draw.of(1, 2, 3) for _ in range(layers)]
    networks = [draw.of("dense", "sparse") for _ in range(layers)]
    ropes = ropes_by_type(draw, 500000.0, 10000.0, ("default", "linear"))
    for each in ropes.values():
        each |= part_that_turns(draw, head_dim_of(sizes), 0.25, 0.5, 1.0)
    return {
        **sizes,
        **draw.of({}, usual_windows(draw, sizes, {})),
        **experts(draw),
        **expert_width(draw),
        **flags(draw, "attention_bias"),
        **draw.of({}, {"num_attention_heads_per_layer": heads}),
        **draw.of({}, {"mlp_layer_types": networks}),
        **draw.of({}, {"rope_parameters": ropes}),
        **draw.of({}, {"gating": draw.of(True, "per-head", "per-element")}),
        **draw.of({}, {"moe_router_logit_softcapping": draw.of(0.0, 0.5, 2.0)}),
        "moe_routed_scaling_factor": draw.of(1.0, 2.5),
        "shared_expert_intermediate_size": draw.of(33, 48),
    }


def mellum(draw: Draw) -> Config:
    sizes = own_heads(draw)
    networks = [draw.of("dense", "sparse") for _ in range(sizes["num_hidden_layers"])]
    ropes = ropes_by_type(draw, 500000.0, 10000.0, ("default", "linear"))
    return {
        **sizes,
        **usual_windows(draw, sizes, {}),
        **experts(draw),
        **expert_width(draw),
        **flags(draw, "norm_topk_prob", "attention_bias"),
        **draw.of({}, {"mlp_layer_types": networks}),
        **draw.of({}, {"rope_parameters": ropes}),
    }


def qwen2_moe(draw: Draw) -> Config:
    sizes = shared_width(draw)
    return {
        **sizes,
        **switched_windows(draw, sizes),
        **experts(draw),
        **expert_width(draw),
        **dense_layers(draw),
        **flags(draw, "norm_topk_prob", "qkv_bias"),
        "shared_expert_intermediate_size": draw.of(33, 48),
        "rope_parameters": rope(draw),
    }


def qwen3_moe(draw: Draw) -> Config:
    sizes = own_heads(draw)
    return {
        **sizes,
        **draw.of({}, {"use_sliding_window": True, **window(draw)}),
        **experts(draw),
        **expert_width(draw),
        **dense_layers(draw),
        **flags(draw, "norm_topk_prob", "attention_bias"),
        "rope_parameters": rope(draw),
    }


def dense_layers(draw: Draw) -> Config:
    """Qwen's ways to say which layers have no experts."""
    return {"decoder_sparse_step": draw.of(1, 1, 2), "mlp_only_layers": draw.of([], [0])}


def hunyuan_v1_moe(draw: Draw) -> Config:
    config = {**hunyuan_v1_dense(draw), **experts(draw, top="moe_topk")}
    of_each_layer = [config["moe_topk"]] * config["num_hidden_layers"]
    return {**config, **draw.of({}, {"moe_topk": of_each_layer})}


def ernie4_5_moe(draw: Draw) -> Config:
    sizes = shared_width(draw)
    return {
        **sizes,
        **experts(draw, "moe_num_experts", "moe_k"),
        **expert_width(draw),
        "use_bias": False,
        "moe_num_shared_experts": draw.of(0, 1, 2),
        "moe_layer_start_index": draw.of(0, 1),
        "moe_layer_end_index": draw.of(-1, sizes["num_hidden_layers"] - 1),
        "moe_layer_interval": draw.of(1, 2),
        "rope_parameters": rope(draw),
    }


def minimax_m2(draw: Draw) -> Config:
    sizes = own_heads(draw)
    part = part_that_turns(draw, head_dim_of(sizes), 0.25, 0.5, 1.0)
    return {
        **sizes,
        **experts(draw, "num_local_experts"),
        "rope_parameters": rope(draw, **draw.of({}, part, part)),
    }


def flint(draw: Draw) -> Config:
    sizes = own_heads(draw)
    return {
        **sizes,
        **usual_windows(draw, sizes, {}),
        **experts(draw),
        **expert_width(draw),
        **draw.of({}, dense_layers(draw)),
        **flags(draw, "norm_topk_prob", "attention_bias"),
        "shared_expert_intermediate_size": draw.of(33, 48),
        "rope_parameters": rope(draw),
    }


def gpt_oss(draw: Draw) -> Config:
    sizes = own_heads(draw)
    return {
        **sizes,
        **usual_windows(draw, sizes, {}),
        **experts(draw, "num_local_experts"),
        **flags(draw, "attention_bias"),
        **draw.of({}, {"rope_parameters": rope(draw)}),
    }


FAMILIES = {
    "ernie4_5_moe": ernie4_5_moe,
    "flex_olmo": olmoe,
    "flint": flint,
    "gpt_oss": gpt_oss,
    "granitemoe": granitemoe,
    "granitemoe_swa": granitemoe_swa,
    "granitemoeshared": granitemoeshared,
    "hunyuan_v1_moe": hunyuan_v1_moe,
    "kolibri1": kolibri1,
    "laguna": laguna,
    "mellum": mellum,
    "minimax_m2": minimax_m2,
    "mixtral": mixtral,
    "olmoe": olmoe,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
}
