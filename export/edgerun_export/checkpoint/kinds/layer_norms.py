"""Decoders whose norms subtract the mean, as GGUF files name them.

Source: llama.cpp's ``conversion/command_r.py``, ``phi.py``, ``stablelm.py``, ``starcoder.py``,
``nemotron.py`` and ``olmo.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edgerun_export.checkpoint.base import F32
from edgerun_export.checkpoint.kinds.base import Architecture
from edgerun_export.checkpoint.kinds.keys import Keys

_Config = Mapping[str, Any]
_Factors = Mapping[str, F32]

_FACTORS = {"logit_scale": "logit_scale"}
_BIASES = {"attention_bias": "attn_q.bias"}
LAYER_NORM_KINDS = {
    "command-r": Architecture(
        "cohere",
        "CohereForCausalLM",
        False,
        {"hidden_act": "silu"},
        epsilon="layer_norm_eps",
        factors=_FACTORS,
        told={**_BIASES, "use_qk_norm": "attn_q_norm.weight"},
    ),
    "cohere2": Architecture(
        "cohere2",
        "Cohere2ForCausalLM",
        False,
        {"hidden_act": "silu"},
        epsilon="layer_norm_eps",
        factors=_FACTORS,
        told=_BIASES,
        windows=True,
    ),
    "jais2": Architecture(
        "jais2",
        "Jais2ForCausalLM",
        False,
        {"hidden_act": "relu2"},
        epsilon="layer_norm_eps",
        told={**_BIASES, "mlp_bias": "ffn_up.bias"},
    ),
    "nemotron": Architecture(
        "nemotron",
        "NemotronForCausalLM",
        False,
        {"hidden_act": "relu2"},
        epsilon="norm_eps",
        norm_offset=1.0,
        partial=True,
        told={**_BIASES, "mlp_bias": "ffn_up.bias"},
    ),
    "olmo": Architecture(
        "olmo",
        "OlmoForCausalLM",
        True,
        {"hidden_act": "silu"},
        epsilon="layer_norm_eps",
        told=_BIASES,
    ),
    "phi2": Architecture(
        "phi",
        "PhiForCausalLM",
        False,
        {"hidden_act": "gelu_new"},
        epsilon="layer_norm_eps",
        partial=True,
        final_norm="model.final_layernorm",
        tensors={
            "attn_output": "self_attn.dense",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
        },
    ),
    "stablelm": Architecture(
        "stablelm",
        "StableLmForCausalLM",
        False,
        {"hidden_act": "silu"},
        epsilon="layer_norm_eps",
        partial=True,
        tensors={
            "attn_q_norm": "self_attn.q_layernorm",
            "attn_k_norm": "self_attn.k_layernorm",
        },
        told={"use_qkv_bias": "attn_q.bias", "qk_layernorm": "attn_q_norm.weight"},
    ),
    # llama.cpp attends to all of a text, whatever the window in config.json.
    "starcoder2": Architecture(
        "starcoder2",
        "Starcoder2ForCausalLM",
        False,
        {"hidden_act": "gelu_pytorch_tanh"},
        epsilon="norm_epsilon",
        tensors={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        told={"use_bias": "attn_q.bias"},
    ),
}


def _turned_part(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    """All of a head where nothing is said, which is not the configuration's default."""
    return {"partial_rotary_factor": config.get("partial_rotary_factor", 1.0)}


def _cohere2(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    kinds = keys.layer_types(4, config["num_hidden_layers"])
    return {"layer_types": kinds, "logit_scale": config["logit_scale"]}


def _stablelm(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    is_parallel = keys.text("use_parallel_residual", "False") == "True"
    part = _turned_part(keys, config, rope_factors)
    return {**part, "use_parallel_residual": is_parallel}


LAYER_NORM_FAMILIES: Mapping[str, Callable[[Keys, _Config, _Factors], dict[str, Any]]] = {
    "cohere2": _cohere2,
    "nemotron": _turned_part,
    "phi": _turned_part,
    "stablelm": _stablelm,
}
