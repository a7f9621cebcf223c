"""Gemma's families, with windows in some layers and ropes that differ by the kind of layer."""

from __future__ import annotations

from tools.golden.differential.parts import (
    FULL,
    SLIDING,
    Config,
    Draw,
    flags,
    own_heads,
    rope,
    ropes_by_type,
    usual_windows,
    window,
)


def _ropes(draw: Draw) -> Config:
    """A rope of each kind of layer, or none that is told."""
    ropes = ropes_by_type(draw, 1e6, 10000.0, ("default", "linear"))
    told: Config = draw.of({}, {"rope_parameters": ropes})
    return told


def gemma(draw: Draw) -> Config:
    return {
        **own_heads(draw),
        **flags(draw, "attention_bias"),
        "rope_parameters": rope(draw),
        "hidden_act": draw.of("gelu_pytorch_tanh", "gelu", "silu"),
    }


def gemma2(draw: Draw) -> Config:
    sizes = own_heads(draw)
    return {
        **sizes,
        **usual_windows(draw, sizes, {}),
        **flags(draw, "attention_bias"),
        "rope_parameters": rope(draw),
        "query_pre_attn_scalar": draw.of(4, 16, 30),
        "attn_logit_softcapping": draw.of(None, 3.0, 50.0),
        "final_logit_softcapping": draw.of(None, 5.0, 30.0),
        "hidden_activation": draw.of("gelu_pytorch_tanh", "gelu_pytorch_tanh", "silu"),
    }


def gemma3_text(draw: Draw) -> Config:
    sizes = own_heads(draw)
    return {
        **sizes,
        **usual_windows(draw, sizes, {}),
        **flags(draw, "attention_bias"),
        **_ropes(draw),
        "query_pre_attn_scalar": draw.of(4, 16, 30),
    }


def _layers_that_share(draw: Draw, layers: int) -> Config:
    """Layers of which the last may use the keys of the last of their kind before."""
    others = [draw.of(SLIDING, FULL) for _ in range(layers - 2)]
    return {
        **window(draw),
        "num_hidden_layers": layers,
        "layer_types": [SLIDING, FULL, *others],
        "num_kv_shared_layers": draw.of(*range(min(3, layers - 1))),
    }


def gemma3n_text(draw: Draw) -> Config:
    sizes, layers = own_heads(draw), draw.of(4, 5, 6)
    sparse = [draw.of(0.0, 0.5, 0.9) for _ in range(layers)]
    return {
        **sizes,
        **_layers_that_share(draw, layers),
        **flags(draw, "attention_bias", "altup_correct_scale"),
        **_ropes(draw),
        "intermediate_size": draw.of(64, [draw.of(48, 64, 72) for _ in range(layers)]),
        "activation_sparsity_pattern": draw.of(sparse, [0.0] * layers),
        "laurel_rank": draw.of(8, 12, 16),
        "hidden_size_per_layer_input": draw.of(8, 12, 16),
        "vocab_size_per_layer_input": draw.of(sizes["vocab_size"], 258),
        "final_logit_softcapping": draw.of(5.0, 30.0),
        "altup_num_inputs": draw.of(2, 3, 4),
        "altup_coef_clip": 120.0,
    }


def gemma4_unified_text(draw: Draw) -> Config:
    sizes = own_heads(draw)
    sharing = _layers_that_share(draw, draw.of(2, 4, 5))
    part = {"rope_type": "proportional", "partial_rotary_factor": draw.of(0.25, 0.5, 1.0)}
    global_heads = {
        "attention_k_eq_v": True,
        "num_global_key_value_heads": draw.of(1, None),
    }
    return {
        **sizes,
        **sharing,
        **flags(draw, "use_double_wide_mlp", "attention_bias"),
        **draw.of({}, {"global_head_dim": draw.of(8, 16, 24, 32, 48)}),
        **draw.of({}, global_heads),
        "layer_types": [*sharing["layer_types"][:-1], FULL],
        "rope_parameters": {
            FULL: {**draw.of(part, part, {"rope_type": "default"}), "rope_theta": 1e6},
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
        },
        "final_logit_softcapping": draw.of(None, 5.0),
    }


def gemma4_text(draw: Draw) -> Config:
    config = gemma4_unified_text(draw)
    # transformers computes no prompt of layers that share keys and have no inputs of their own.
    inputs = draw.of(8, 12) if config["num_kv_shared_layers"] else draw.of(0, 8, 12)
    mixture = {
        "enable_moe_block": True,
        "num_experts": draw.of(4, 6),
        "top_k_experts": draw.of(1, 2),
        "moe_intermediate_size": draw.of(33, 48),
    }
    return {
        **config,
        **draw.of({}, mixture),
        "hidden_size_per_layer_input": inputs,
        "vocab_size_per_layer_input": config["vocab_size"],
    }


def muse_glimmer_text(draw: Draw) -> Config:
    sizes, turning = own_heads(draw), rope(draw)
    thetas = [draw.of(0, turning["rope_theta"]) for _ in range(sizes["num_hidden_layers"])]
    return {
        **sizes,
        **draw.of({}, usual_windows(draw, sizes, {})),
        **flags(draw, "attention_bias"),
        **draw.of({}, {"layer_rope_theta": thetas}),
        **draw.of({}, {"post_norm_eps": draw.of(1e-8, 1e-6, 1e-2)}),
        "tie_word_embeddings": False,
        "rope_parameters": turning,
        "qk_scale_factor": draw.of(1.0, 3.87),
        "output_multiplier": draw.of(0.2, 1.5),
        "final_logit_softcapping": draw.of(5.0, 20.0),
        "hidden_activation": draw.of("silu", "silu", "gelu_pytorch_tanh"),
    }


FAMILIES = {
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3_text,
    "gemma3n_text": gemma3n_text,
    "gemma4_text": gemma4_text,
    "gemma4_unified_text": gemma4_unified_text,
    "vaultgemma": gemma2,
}
