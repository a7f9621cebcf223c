"""Families with state spaces (Mamba 2) in some layers, or beside attention in all."""

from __future__ import annotations

from tools.golden.differential.llama_like import granite_factors
from tools.golden.differential.parts import (
    FULL,
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
    shared_width,
    without,
)

_MOST_HEADS = 16


def _divisors(number: int, most: int) -> list[int]:
    return [each for each in range(1, most + 1) if number % each == 0]


def _mamba(draw: Draw, hidden_size: int) -> Config:
    expand = draw.of(1, 2)
    heads = draw.of(*_divisors(expand * hidden_size, _MOST_HEADS)[-3:])
    return {
        "mamba_expand": expand,
        "mamba_n_heads": heads,
        "mamba_d_head": expand * hidden_size // heads,
        "mamba_n_groups": draw.of(*_divisors(heads, heads)[:3]),
        "mamba_d_state": draw.of(8, 16, 20, 32),
        "mamba_d_conv": draw.of(2, 3, 4),
        "mamba_chunk_size": draw.of(8, 16, 256),
    }


def granitemoehybrid(draw: Draw) -> Config:
    sizes = shared_width(draw)
    return {
        **sizes,
        **draw.of({}, granite_factors(draw)),
        **_mamba(draw, sizes["hidden_size"]),
        **draw.of({"num_local_experts": 0}, experts(draw, "num_local_experts")),
        **flags(draw, "attention_bias"),
        "layer_types": layer_types(draw, sizes, "mamba", "mamba", "attention"),
        "position_embedding_type": draw.of("rope", "nope", None),
        "shared_intermediate_size": draw.of(48, 64, 100),
        "rope_parameters": rope(draw),
    }


def bamba(draw: Draw) -> Config:
    sizes = shared_width(draw)
    layers = sizes["num_hidden_layers"]
    part = part_that_turns(draw, head_dim_of(sizes), 0.25, 0.5, 1.0)
    return {
        **sizes,
        **_mamba(draw, sizes["hidden_size"]),
        **flags(draw, "attention_bias", "mlp_bias"),
        "attn_layer_indices": sorted(draw.sample(range(layers), draw.randint(1, layers))),
        "rope_parameters": rope(draw, **part),
    }


def falcon_h1(draw: Draw) -> Config:
    sizes = own_heads(draw)
    mamba = _mamba(draw, sizes["hidden_size"])
    factors = {
        f"{name}_multiplier": draw.of(0.4, 0.8, 1.0, 1.7)
        for name in ("lm_head", "embedding", "key", "attention_in", "attention_out")
        + ("ssm_in", "ssm_out")
    }
    lists = {"mlp_multipliers": [0.9, 0.4], "ssm_multipliers": [0.7, 1.3, 0.9, 1.1, 0.6]}
    return {
        **sizes,
        **mamba,
        **draw.of({}, factors),
        **draw.of({}, lists),
        **flags(draw, "mamba_rms_norm", "mamba_norm_before_gate"),
        "mamba_d_ssm": draw.of(None, mamba["mamba_n_heads"] * mamba["mamba_d_head"]),
        "rope_parameters": rope(draw),
    }


def nemotron_h(draw: Draw) -> Config:
    sizes = {**own_heads(draw), "num_hidden_layers": draw.of(2, 3, 4, 5)}
    return {
        **without(sizes, "num_hidden_layers", "rms_norm_eps"),
        **experts(draw, "n_routed_experts"),
        **expert_width(draw),
        **flags(draw, "norm_topk_prob"),
        "layers_block_type": layer_types(draw, sizes, "linear_attention", "mlp", "moe", FULL),
        "layer_norm_epsilon": draw.of(1e-5, 1e-3),
        "mamba_num_heads": draw.of(4, 6),
        "mamba_head_dim": draw.of(8, 12, 24),
        "n_groups": draw.of(1, 2),
        "ssm_state_size": draw.of(8, 16, 20),
        "conv_kernel": draw.of(2, 4),
        "chunk_size": draw.of(8, 128),
        "time_step_min": 1e-30,  # transformers keeps times above it in prompts, not in replies
        "moe_shared_expert_intermediate_size": draw.of(33, 64),
        "routed_scaling_factor": draw.of(1.0, 2.5),
    }


FAMILIES = {
    "bamba": bamba,
    "falcon_h1": falcon_h1,
    "granitemoehybrid": granitemoehybrid,
    "nemotron_h": nemotron_h,
}
