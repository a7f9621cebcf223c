"""Granite 4 with state spaces, as GGUF files have it.

Source: llama.cpp's ``conversion/granite.py`` and ``conversion/mamba.py``, and its
``llama-model.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint.base import F32
from edgerun_export.checkpoint.gguf_keys import Keys
from edgerun_export.checkpoint.kinds.base import MAMBA, Architecture, Experts

_GRANITE = "granitemoehybrid"
MODEL_TYPES = (_GRANITE,)
RATES = (f".{MAMBA}.rate",)  # which Hugging Face has the logarithm of, A_log
# Of a network, what Hugging Face has in one tensor.
APART = (".shared_mlp.gate_proj.weight", ".shared_mlp.up_proj.weight")
JOINED = ".shared_mlp.input_linear.weight"
GRANITE_FACTORS = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}


def _of_module(module: str) -> dict[str, str]:
    names = {
        "ssm_in": "in_proj",
        "ssm_conv1d": "conv1d",
        "ssm_dt": "dt_bias",
        "ssm_a": "rate",
        "ssm_d": "D",
        "ssm_norm": "norm",
        "ssm_out": "out_proj",
    }
    return {name: f"{module}.{own}" for name, own in names.items()}


_GRANITE_4 = Architecture(
    _GRANITE,
    "GraniteMoeHybridForCausalLM",
    True,
    {"hidden_act": "silu", "num_local_experts": 0},
    tensors={
        **_of_module(MAMBA),
        "ffn_gate": "shared_mlp.gate_proj",
        "ffn_up": "shared_mlp.up_proj",
        "ffn_down": "shared_mlp.output_linear",
    },
    factors=GRANITE_FACTORS,
    convolutions=True,
)
GRANITE_4_EXPERTS = replace(
    _GRANITE_4,
    extra={"hidden_act": "silu"},
    experts=Experts(
        "block_sparse_moe",
        count_key="num_local_experts",
        width_key=("intermediate_size", "expert_feed_forward_length"),
        router="router.layer",
    ),
    tensors={
        **_of_module(MAMBA),
        "ffn_gate_shexp": "shared_mlp.gate_proj",
        "ffn_up_shexp": "shared_mlp.up_proj",
        "ffn_down_shexp": "shared_mlp.output_linear",
    },
)
STATE_SPACES = {"granitehybrid": _GRANITE_4}


def granite_factors(config: Mapping[str, Any]) -> dict[str, float]:
    """Granite's factors, of which 0 stands for none."""
    neutral = {
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": config["head_dim"] ** -0.5,
        "logits_scaling": 1.0,
    }
    return {name: config[name] or value for name, value in neutral.items()}


def granite_hybrid(
    keys: Keys, config: Mapping[str, Any], rope_factors: Mapping[str, F32]
) -> dict[str, Any]:
    """Sizes of state spaces, which layers have one, and Granite's factors.

    Raises:
        CheckpointError: a key is missing or out of range.
        UnsupportedError: the file is one of Bamba.
    """
    if keys.text("rope.scaling.finetuned", "False") != "False":
        raise UnsupportedError(
            "GGUF files of granitehybrid with rotary embedding (Bamba) are not supported; export "
            "the safetensors checkpoint instead"
        )
    heads, inner = keys.size("ssm.time_step_rank"), keys.size("ssm.inner_size")
    if inner % config["hidden_size"] or inner % heads:
        raise CheckpointError(
            f"{inner} elements of state spaces are not a multiple of {heads} heads and of a hidden "
            f"size of {config['hidden_size']}"
        )
    layers = config["num_hidden_layers"]
    counts = keys.by_layer("attention.head_count_kv", layers)
    width = keys.size("feed_forward_length", config["intermediate_size"])
    return {
        **granite_factors(config),
        "layer_types": ["attention" if count else "mamba" for count in counts],
        "position_embedding_type": None,
        "shared_intermediate_size": keys.size("expert_shared_feed_forward_length", width),
        "mamba_n_heads": heads,
        "mamba_n_groups": keys.size("ssm.group_count"),
        "mamba_d_head": inner // heads,
        "mamba_d_state": keys.size("ssm.state_size"),
        "mamba_d_conv": keys.size("ssm.conv_kernel"),
        "mamba_expand": inner // config["hidden_size"],
    }
