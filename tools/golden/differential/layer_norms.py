"""Configurations of decoders whose norms subtract the mean."""

from __future__ import annotations

from tools.golden.differential.parts import (
    FULL,
    SLIDING,
    Config,
    Draw,
    any_heads,
    experts,
    flags,
    head_dim_of,
    layer_types,
    own_heads,
    part_that_turns,
    rope,
    shared_width,
    usual_windows,
    window,
    without,
)

_UNGATED = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu2")


def epsilon(draw: Draw, key: str = "layer_norm_eps") -> Config:
    return draw.of({}, {key: draw.of(1e-6, 1e-3)})


def turned_in_part(draw: Draw, sizes: Config) -> Config:
    part = part_that_turns(draw, head_dim_of(sizes), 0.25, 0.5, 0.75, 1.0)
    return {"rope_parameters": rope(draw, ("default", "linear"), **part)}


def cohere(draw: Draw) -> Config:
    return {
        **shared_width(draw),
        **epsilon(draw),
        **flags(draw, "attention_bias", "use_qk_norm"),
        "rope_parameters": rope(draw),
        "logit_scale": draw.of(0.0625, 0.25, 0.8333),
    }


def cohere2(draw: Draw) -> Config:
    sizes = without(cohere(draw), "use_qk_norm")
    return {**sizes, **usual_windows(draw, sizes, {})}


def cohere2_moe(draw: Draw) -> Config:
    sizes = {**own_heads(draw), **epsilon(draw), **window(draw)}
    networks = [draw.of("dense", "sparse") for _ in range(sizes["num_hidden_layers"])]
    patterns = {"sliding_window_pattern": draw.of(2, 3)}
    types = {"layer_types": layer_types(draw, sizes, *draw.of((SLIDING, FULL), (FULL, SLIDING)))}
    return {
        **sizes,
        **flags(draw, "attention_bias", "norm_topk_prob"),
        **experts(draw),
        **draw.of(types, patterns),
        **draw.of({"mlp_layer_types": networks}, {"first_k_dense_replace": draw.of(0, 1, 2)}),
        "prefix_dense_sliding_window_pattern": draw.of(1, 1, 2),
        "prefix_dense_intermediate_size": draw.of(None, 33, 64),
        "expert_selection_fn": draw.of("softmax", "sigmoid"),
        "num_shared_experts": draw.of(0, 1, 2),
        "shared_expert_combination_strategy": draw.of("average", "sum"),
        "rms_norm_eps": draw.of(None, None, 1e-5, 1e-2),
        "rope_parameters": rope(draw),
        "logit_scale": draw.of(0.0625, 0.25, 0.8333),
    }


def gpt_neox(draw: Draw) -> Config:
    sizes = shared_width(draw)
    return {
        **sizes,
        **epsilon(draw),
        **turned_in_part(draw, sizes),
        **flags(draw, "attention_bias", "use_parallel_residual"),
        "hidden_act": draw.of(*_UNGATED),
    }


def jais2(draw: Draw) -> Config:
    return {
        **any_heads(draw),
        **epsilon(draw),
        **flags(draw, "attention_bias", "mlp_bias"),
        "rope_parameters": rope(draw),
        "hidden_act": draw.of(*_UNGATED),
    }


def nemotron(draw: Draw) -> Config:
    sizes = any_heads(draw)
    return {
        **sizes,
        **epsilon(draw, "norm_eps"),
        **turned_in_part(draw, sizes),
        **flags(draw, "attention_bias", "mlp_bias"),
        "hidden_act": draw.of(*_UNGATED),
    }


def olmo(draw: Draw) -> Config:
    return {**shared_width(draw), **flags(draw, "attention_bias"), "rope_parameters": rope(draw)}


def phi(draw: Draw) -> Config:
    sizes = shared_width(draw)
    return {
        **sizes,
        **epsilon(draw),
        **turned_in_part(draw, sizes),
        "hidden_act": draw.of(*_UNGATED),
    }


def phimoe(draw: Draw) -> Config:
    sizes = shared_width(draw)
    half = head_dim_of(sizes) // 2
    long_rope = {
        **rope(draw, ("default",)),
        "rope_type": "longrope",
        "short_factor": [1 + 0.05 * index for index in range(half)],
        "long_factor": [1 + 0.6 * index for index in range(half)],
        "short_mscale": draw.of(1.0, 1.243),
        "long_mscale": 1.243,
        "original_max_position_embeddings": draw.of(32, 64, 256),
    }
    return {
        **sizes,
        **flags(draw, "attention_bias", "lm_head_bias"),
        "num_local_experts": draw.of(2, 5, 8),
        # Larger than released models have it, so that some experts count and others do not.
        "router_jitter_noise": draw.of(0.01, 0.2, 0.5),
        "sliding_window": draw.of(None, None, 8, 20),
        "rope_parameters": draw.of(long_rope, rope(draw, ("default",))),
    }


def stablelm(draw: Draw) -> Config:
    sizes = shared_width(draw)
    return {
        **sizes,
        **epsilon(draw),
        **turned_in_part(draw, sizes),
        **flags(draw, "use_qkv_bias", "use_parallel_residual", "qk_layernorm"),
        "hidden_act": draw.of("silu", "gelu_pytorch_tanh"),
    }


def starcoder2(draw: Draw) -> Config:
    return {
        **any_heads(draw),
        **epsilon(draw, "norm_epsilon"),
        **flags(draw, "use_bias"),
        "rope_parameters": rope(draw),
        "sliding_window": draw.of(None, 4, 9),
        "hidden_act": draw.of(*_UNGATED),
    }


FAMILIES = {
    "cohere": cohere,
    "cohere2": cohere2,
    "cohere2_moe": cohere2_moe,
    "gpt_neox": gpt_neox,
    "jais2": jais2,
    "nemotron": nemotron,
    "olmo": olmo,
    "phi": phi,
    "phimoe": phimoe,
    "stablelm": stablelm,
    "starcoder2": starcoder2,
}
