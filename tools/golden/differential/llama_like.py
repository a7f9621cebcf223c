"""Families that are nearly Llama: attention and a gated network in each layer."""

from __future__ import annotations

from tools.golden.differential.parts import (
    FULL,
    Config,
    Draw,
    any_heads,
    flags,
    head_dim_of,
    own_heads,
    part_that_turns,
    rope,
    ropes_by_type,
    shared_width,
    switched_windows,
    usual_windows,
)


def llama(draw: Draw) -> Config:
    return {
        **any_heads(draw),
        **flags(draw, "attention_bias", "mlp_bias"),
        "rope_parameters": rope(draw),
        "hidden_act": draw.of("silu", "silu", "gelu_pytorch_tanh", "relu", "relu2"),
    }


def mistral(draw: Draw) -> Config:
    return {
        **any_heads(draw),
        "sliding_window": draw.of(None, 1, 3, 8, 16, 300),
        "rope_parameters": rope(draw),
    }


def ministral3(draw: Draw) -> Config:
    return {
        **own_heads(draw),
        "rope_parameters": rope(draw, ("yarn",), llama_4_scaling_beta=0.1),
        "sliding_window": draw.of(None, None, 5),
    }


def qwen2(draw: Draw) -> Config:
    sizes = shared_width(draw)
    return {**sizes, **switched_windows(draw, sizes), "rope_parameters": rope(draw)}


def qwen3(draw: Draw) -> Config:
    sizes = own_heads(draw)
    return {
        **sizes,
        **switched_windows(draw, sizes),
        **flags(draw, "attention_bias"),
        "rope_parameters": rope(draw),
    }


def ministral(draw: Draw) -> Config:
    sizes = own_heads(draw)
    return {**sizes, **usual_windows(draw, sizes, {}), "rope_parameters": rope(draw)}


def smollm3(draw: Draw) -> Config:
    sizes = shared_width(draw)
    turns = [draw.of(0, 1) for _ in range(sizes["num_hidden_layers"])]
    windows = {"use_sliding_window": True, **usual_windows(draw, sizes, {})}
    return {
        **sizes,
        **flags(draw, "attention_bias", "mlp_bias"),
        **draw.of({"no_rope_layers": turns}, {"no_rope_layer_interval": draw.of(1, 2, 3, 4)}),
        **draw.of({}, windows),
        "rope_parameters": rope(draw),
    }


def olmo2(draw: Draw) -> Config:
    return {
        **shared_width(draw),
        **flags(draw, "attention_bias"),
        "rope_parameters": rope(draw),
    }


def olmo3(draw: Draw) -> Config:
    sizes, theta = shared_width(draw), draw.of(10000.0, 500000.0)
    ropes = ropes_by_type(draw, theta, theta, ("default",))
    return {
        **sizes,
        **usual_windows(draw, sizes, {}),
        **flags(draw, "attention_bias"),
        **draw.of({}, {"rope_parameters": ropes}),
    }


def granite_factors(draw: Draw) -> Config:
    """What Granite multiplies by."""
    return {
        "embedding_multiplier": draw.of(3.0, 12.0),
        "residual_multiplier": draw.of(0.22, 0.5, 1.3),
        "attention_multiplier": draw.of(0.015625, 0.1, 0.3),
        "logits_scaling": draw.of(0.5, 3.0, 8.0),
    }


def granite(draw: Draw) -> Config:
    return {
        **shared_width(draw),
        **draw.of({}, granite_factors(draw)),
        **flags(draw, "attention_bias", "mlp_bias"),
        "rope_parameters": rope(draw),
    }


def phi3(draw: Draw) -> Config:
    sizes = shared_width(draw)
    part = part_that_turns(draw, head_dim_of(sizes), 0.5, 0.75, 1.0)
    half = int(head_dim_of(sizes) * part["partial_rotary_factor"]) // 2
    long_rope = {
        **rope(draw, ("default",)),
        "rope_type": "longrope",
        "short_factor": [1 + 0.05 * index for index in range(half)],
        "long_factor": [1 + 0.6 * index for index in range(half)],
        **draw.of({}, {"factor": 4.0}, {"attention_factor": 1.1}),
    }
    return {
        **sizes,
        "rope_parameters": {**draw.of(long_rope, rope(draw, ("default",))), **part},
        "original_max_position_embeddings": draw.of(32, 64, 256),
        "sliding_window": draw.of(None, None, 8, 20),
    }


def exaone4(draw: Draw) -> Config:
    sizes = any_heads(draw)
    plain = {"sliding_window": None, "layer_types": [FULL] * sizes["num_hidden_layers"]}
    windows = usual_windows(draw, sizes, {"sliding_window_pattern": draw.of(2, 3, 4)})
    return {**sizes, **draw.of(plain, windows, windows), "rope_parameters": rope(draw)}


def hunyuan_v1_dense(draw: Draw) -> Config:
    return {
        **own_heads(draw),
        **flags(draw, "attention_bias"),
        "rope_parameters": rope(draw, ("default", "linear", "yarn", "dynamic", "dynamic")),
    }


def seed_oss(draw: Draw) -> Config:
    return {
        **own_heads(draw),
        **flags(draw, "attention_bias", "attention_out_bias", "mlp_bias"),
        "attention_dropout": 0.0,
        "residual_dropout": 0.0,
        "rope_parameters": rope(draw),
    }


def glm(draw: Draw) -> Config:
    sizes = own_heads(draw)
    part = part_that_turns(draw, head_dim_of(sizes), 0.25, 0.5, 1.0)
    return {
        **sizes,
        **flags(draw, "attention_bias"),
        "rope_parameters": rope(draw, **draw.of({}, part, part)),
    }


def ernie4_5(draw: Draw) -> Config:
    return {**own_heads(draw), **flags(draw, "use_bias"), "rope_parameters": rope(draw)}


def apertus(draw: Draw) -> Config:
    return {
        **any_heads(draw),
        **flags(draw, "attention_bias"),
        **draw.of({}, {"rope_parameters": rope(draw)}),
    }


def apertus1p5_text(draw: Draw) -> Config:
    sizes, fewer = apertus(draw), {"tie_word_embeddings": False, "output_vocab_size": 258}
    return {**sizes, **draw.of({}, fewer, fewer)}


def arcee(draw: Draw) -> Config:
    return {
        **any_heads(draw),
        **flags(draw, "attention_bias", "mlp_bias"),
        "rope_parameters": rope(draw),
    }


def cwm(draw: Draw) -> Config:
    sizes = own_heads(draw)
    return {
        **sizes,
        **usual_windows(draw, sizes, {}),
        **flags(draw, "mlp_bias"),
        **draw.of({}, {"rope_parameters": rope(draw)}),
    }


def exaone(draw: Draw) -> Config:
    return {**shared_width(draw), "rope_parameters": rope(draw)}


def helium(draw: Draw) -> Config:
    sizes = shared_width(draw)
    return {
        **sizes,
        "head_dim": head_dim_of(sizes),
        **flags(draw, "attention_bias", "mlp_bias"),
        "rope_parameters": rope(draw),
    }


def iquestcoder(draw: Draw) -> Config:
    return {
        **any_heads(draw),
        **flags(draw, "attention_bias", "mlp_bias"),
        **draw.of({}, {"rope_parameters": rope(draw)}),
    }


def nanochat(draw: Draw) -> Config:
    return {
        **shared_width(draw),
        **flags(draw, "attention_bias"),
        "tie_word_embeddings": False,
        "rope_parameters": rope(draw),
        "final_logit_softcapping": draw.of(None, 5.0, 15.0),
    }


def internlm3(draw: Draw) -> Config:
    biased = draw.chance()
    return {
        **own_heads(draw),
        "attention_bias": biased,
        "mlp_bias": biased,
        "rope_parameters": rope(draw),
    }


def hyperclovax(draw: Draw) -> Config:
    return {**granite(draw), **draw.of({}, flags(draw, "use_post_norm"))}


def sinks(draw: Draw, sizes: Config) -> Config:
    """Granite's windows, and a base of the rope for each layer."""
    thetas = [draw.of(0, 100.0, 10000.0, 1e6) for _ in range(sizes["num_hidden_layers"])]
    return {
        **usual_windows(draw, sizes, {}),
        **draw.of({}, {"layer_rope_theta": thetas}),
    }


def granite_swa(draw: Draw) -> Config:
    sizes = granite(draw)
    return {**sizes, **sinks(draw, sizes)}


FAMILIES = {
    "apertus": apertus,
    "apertus1p5_text": apertus1p5_text,
    "arcee": arcee,
    "cwm": cwm,
    "ernie4_5": ernie4_5,
    "exaone": exaone,
    "exaone4": exaone4,
    "glm": glm,
    "glm4": glm,
    "granite": granite,
    "granite_swa": granite_swa,
    "helium": helium,
    "hunyuan_v1_dense": hunyuan_v1_dense,
    "hyperclovax": hyperclovax,
    "internlm3": internlm3,
    "iquestcoder": iquestcoder,
    "llama": llama,
    "ministral": ministral,
    "ministral3": ministral3,
    "mistral": mistral,
    "nanochat": nanochat,
    "olmo2": olmo2,
    "olmo3": olmo3,
    "phi3": phi3,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "seed_oss": seed_oss,
    "smollm3": smollm3,
}
