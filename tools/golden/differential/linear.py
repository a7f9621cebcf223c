"""Families with linear attention or convolutions in some layers."""

from __future__ import annotations

from typing import Any

from tools.golden.differential.parts import (
    FULL,
    SLIDING,
    Config,
    Draw,
    expert_width,
    experts,
    flags,
    head_dim_of,
    layer_types,
    own_heads,
    part_that_turns,
    rope,
    ropes_by_type,
    shared_width,
    window,
    without,
)
from tools.golden.differential.with_experts import dense_layers

_ROPES = ("default", "linear", "yarn")
_HALF = {"rope_type": "proportional", "partial_rotary_factor": 0.5}


def sections(turning: int) -> list[int]:
    """How the pairs of a head that turn are divided among time, height and width."""
    third = turning // 2 // 3
    return [turning // 2 - 2 * third, third, third]


def _gated_delta(draw: Draw) -> Config:
    sizes, key_heads = own_heads(draw), draw.of(1, 2, 3)
    return {
        **sizes,
        "layer_types": layer_types(draw, sizes, "linear_attention", FULL),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * draw.of(1, 2, 3),
        "linear_key_head_dim": draw.of(8, 16, 24),
        "linear_value_head_dim": draw.of(8, 16, 20, 32),
        "linear_conv_kernel_dim": draw.of(2, 3, 4),
    }


def _rope(draw: Draw, config: Config, **more: Any) -> Config:
    part = part_that_turns(draw, head_dim_of(config), 0.25, 0.5, 1.0)
    return rope(draw, _ROPES, **part, **more)


def _shared_experts(draw: Draw) -> Config:
    return {
        **experts(draw),
        **expert_width(draw),
        "shared_expert_intermediate_size": draw.of(33, 48),
    }


def qwen3_5_text(draw: Draw) -> Config:
    config = _gated_delta(draw)
    turned = _rope(draw, config, mrope_interleaved=True)
    turning = int(head_dim_of(config) * turned["partial_rotary_factor"])
    return {**config, "rope_parameters": {**turned, "mrope_section": sections(turning)}}


def qwen3_5_moe_text(draw: Draw) -> Config:
    return {**without(qwen3_5_text(draw), "intermediate_size"), **_shared_experts(draw)}


def qwen3_next(draw: Draw) -> Config:
    config = _gated_delta(draw)
    return {
        **config,
        **_shared_experts(draw),
        **dense_layers(draw),
        **flags(draw, "norm_topk_prob"),
        "rope_parameters": _rope(draw, config),
    }


def olmo_hybrid(draw: Draw) -> Config:
    """Of sizes of linear attention those that are not drawn follow from others."""
    sizes = shared_width(draw)
    sizes["num_hidden_layers"] = max(sizes["num_hidden_layers"], 2)
    linear = without(_gated_delta(draw), *sizes, "layer_types", "head_dim")
    if draw.chance():
        linear = {key: linear[key] for key in linear if draw.chance() and "num" not in key}
    both = ("linear_attention", FULL)
    types = [*layer_types(draw, sizes, *both)[:-2], *draw.of(both, both[::-1])]
    none = {"rope_type": "default", "rope_theta": None}
    return {
        **sizes,
        **linear,
        **flags(draw, "attention_bias", "linear_allow_neg_eigval"),
        **draw.of({}, {"layer_types": types}),
        **draw.of({}, {"rope_parameters": none}, {"rope_parameters": rope(draw, _ROPES)}),
    }


def _short_convolutions(draw: Draw) -> Config:
    sizes = shared_width(draw)
    return {
        **without(sizes, "rms_norm_eps"),
        "norm_eps": sizes["rms_norm_eps"],
        "layer_types": layer_types(draw, sizes, "conv", FULL),
        "conv_L_cache": draw.of(2, 3, 4),
        "rope_parameters": rope(draw),
    }


def lfm2(draw: Draw) -> Config:
    config = _short_convolutions(draw)
    types = config["layer_types"]
    indices = {"full_attn_idxs": [index for index, kind in enumerate(types) if kind == FULL]}
    return {
        **without(config, "layer_types"),
        **draw.of({"layer_types": types}, indices),
        **flags(draw, "block_auto_adjust_ff_dim"),
        "block_multiple_of": draw.of(8, 16),
        "block_ffn_dim_multiplier": draw.of(0.7, 1.0, 1.3),
    }


def lfm2_moe(draw: Draw) -> Config:
    config = _short_convolutions(draw)
    return {
        **config,
        **experts(draw),
        **expert_width(draw),
        **flags(draw, "norm_topk_prob", "use_expert_bias"),
        "num_dense_layers": draw.of(0, 1, config["num_hidden_layers"]),
        "routed_scaling_factor": draw.of(1.0, 1.5),
    }


def lfm3(draw: Draw) -> Config:
    sizes = own_heads(draw)
    ropes = ropes_by_type(draw, 1e6, 10000.0, ("default",))
    ropes[FULL] = draw.of(ropes[FULL], {**_HALF, "rope_theta": 1e6})
    return {
        **without(sizes, "rms_norm_eps"),
        "norm_eps": sizes["rms_norm_eps"],
        **window(draw),
        **draw.of({}, {"layer_types": layer_types(draw, sizes, "conv", SLIDING, FULL)}),
        **flags(draw, "use_sandwich_norm", "use_attention_gate", "attention_bias"),
        "conv_L_cache": draw.of(2, 4, 7),
        **draw.of({}, {"rope_parameters": ropes}),
    }


FAMILIES = {
    "lfm2": lfm2,
    "lfm2_moe": lfm2_moe,
    "lfm3": lfm3,
    "olmo_hybrid": olmo_hybrid,
    "qwen3_5_moe_text": qwen3_5_moe_text,
    "qwen3_5_text": qwen3_5_text,
    "qwen3_next": qwen3_next,
}
