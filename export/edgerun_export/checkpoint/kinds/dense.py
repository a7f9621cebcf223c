"""Apertus, Arcee, EXAONE, Seed-OSS, GLM-4, ERNIE 4.5, Hunyuan and others, as GGUF files name them.

Source: llama.cpp's ``conversion/llama.py``, ``apertus.py``, ``exaone.py``, ``glm.py``,
``ernie.py`` and ``hunyuan.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint.base import F32
from edgerun_export.checkpoint.kinds.base import NORMS_AFTER, Architecture, Experts
from edgerun_export.checkpoint.kinds.keys import Keys, short_float
from edgerun_export.checkpoint.kinds.long_rope import long_rope
from edgerun_export.checkpoint.views.curves import CURVES

_Config = Mapping[str, Any]
_Factors = Mapping[str, F32]

_HUNYUAN = {
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}
DENSE_KINDS = {
    "apertus": Architecture(
        "apertus",
        "ApertusForCausalLM",
        False,
        {"hidden_act": "xielu"},
        tensors={"attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm"},
    ),
    "arcee": Architecture("arcee", "ArceeForCausalLM", True, {"hidden_act": "relu2"}),
    "exaone": Architecture(
        "exaone",
        "ExaoneForCausalLM",
        False,
        {"hidden_act": "silu"},
        embedding="transformer.wte",
        final_norm="transformer.ln_f",
        tensors={
            "attn_norm": "ln_1",
            "attn_q": "attn.attention.q_proj",
            "attn_k": "attn.attention.k_proj",
            "attn_v": "attn.attention.v_proj",
            "attn_output": "attn.attention.out_proj",
            "ffn_norm": "ln_2",
            "ffn_gate": "mlp.c_fc_0",
            "ffn_up": "mlp.c_fc_1",
            "ffn_down": "mlp.c_proj",
        },
        renamed={"model.layers.": "transformer.h."},
    ),
    "exaone4": Architecture(
        "exaone4", "Exaone4ForCausalLM", False, {"hidden_act": "silu"}, tensors=NORMS_AFTER
    ),
    "seed_oss": Architecture(
        "seed_oss",
        "SeedOssForCausalLM",
        False,
        {"hidden_act": "silu"},
        tensors={"post_attention_norm": "post_attention_layernorm"},
        told={"attention_bias": "attn_q.bias", "attention_out_bias": "attn_output.bias"},
    ),
    "hunyuan-dense": Architecture(
        "hunyuan_v1_dense",
        "HunYuanDenseV1ForCausalLM",
        False,
        {"hidden_act": "silu"},
        tensors=_HUNYUAN,
    ),
    "hunyuan-moe": Architecture(
        "hunyuan_v1_moe",
        "HunYuanMoEV1ForCausalLM",
        False,
        {"hidden_act": "silu"},
        Experts(router="gate.wg", width_key=("intermediate_size", "expert_feed_forward_length")),
        {
            **_HUNYUAN,
            "ffn_gate_shexp": "mlp.shared_mlp.gate_proj",
            "ffn_up_shexp": "mlp.shared_mlp.up_proj",
            "ffn_down_shexp": "mlp.shared_mlp.down_proj",
        },
        own_keys=("expert_shared_count",),
    ),
    "glm4": Architecture(
        "glm4",
        "Glm4ForCausalLM",
        False,
        {"hidden_act": "silu"},
        tensors={
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_up": "mlp.gate_up_proj",
        },
        partial=True,
        told={"attention_bias": "attn_q.bias"},
    ),
    "minicpm": Architecture(
        "minicpm",
        "MiniCPMForCausalLM",
        True,
        {"hidden_act": "silu"},
        factors={key: key for key in ("embedding_scale", "residual_scale", "logit_scale")},
        long_rope=True,
    ),
    "ernie4_5": Architecture(
        "ernie4_5",
        "Ernie4_5ForCausalLM",
        False,
        {"hidden_act": "silu"},
        told={"use_bias": "attn_q.bias"},
    ),
}


def _apertus(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    curves, layers = keys.beside("xielu"), config["num_hidden_layers"]
    values = {name: curves.numbers(name, layers) for name in ("alpha_p", "alpha_n", "beta", "eps")}
    for name, numbers in values.items():
        if not np.isfinite(numbers).all():
            raise CheckpointError(
                f"metadata 'xielu.{name}' is {numbers}; expected finite numbers, so it is damaged"
            )
    if config["rope_scaling"] is not None:
        return {CURVES: values}
    # Where nothing is said of a scaling, config.json has one.
    plain = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    return {CURVES: values, "rope_parameters": plain}


def _exaone4(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    """What llama.cpp takes for granted stands for the list of layers."""
    window = keys.count("attention.sliding_window", 0)
    pattern, layers = "attention.sliding_window_pattern", config["num_hidden_layers"]
    values: dict[str, Any] = {"sliding_window": window or None}
    if window and keys.has(pattern):
        slides = keys.flags(pattern, layers)
        kinds = ["sliding_attention" if slide else "full_attention" for slide in slides]
        values["layer_types"] = kinds
    return values


def _glm4(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    if keys.has("rope.dimension_sections"):  # whose rows of queries and keys are in another order
        raise UnsupportedError("GGUF files of glm4 that see pictures are not supported")
    return {"partial_rotary_factor": config.get("partial_rotary_factor", 1.0)}


def _minicpm(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    """Its factors as the configuration has them: of depth and width."""
    factors = {
        name: keys.positive(name) for name in ("embedding_scale", "residual_scale", "logit_scale")
    }
    return {
        **long_rope(keys, config, rope_factors),
        "scale_emb": short_float(factors["embedding_scale"]),
        "scale_depth": factors["residual_scale"] * config["num_hidden_layers"] ** 0.5,
        "dim_model_base": max(round(config["hidden_size"] / factors["logit_scale"]), 1),
    }


def _hunyuan_v1_moe(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    if keys.count("expert_shared_count", 1) != 1:
        raise UnsupportedError(
            "GGUF files of hunyuan_v1_moe without one network for all tokens are not supported"
        )
    return {"moe_topk": config["num_experts_per_tok"]}


DENSE_FAMILIES: Mapping[str, Callable[[Keys, _Config, _Factors], dict[str, Any]]] = {
    "apertus": _apertus,
    "exaone4": _exaone4,
    "glm4": _glm4,
    "hunyuan_v1_moe": _hunyuan_v1_moe,
    "minicpm": _minicpm,
}
