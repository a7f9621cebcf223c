"""Qwen3-Next and Qwen3.5, whose linear attention llama.cpp names like state-space layers.

Source: llama.cpp's ``conversion/qwen.py`` and ``models/qwen35.cpp``. How heads lie is in
``views/linear.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.base import F32
from edgerun_export.checkpoint.kinds.base import DELTA_CONV, SHARED_GATE, Architecture, Experts
from edgerun_export.checkpoint.kinds.keys import Keys

_NEXT, _DENSE, _SPARSE = "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"
MODEL_TYPES = (_NEXT, _DENSE, _SPARSE)
_MODULE = "linear_attn"
RATE = f"{_MODULE}.rate"  # which Hugging Face has the logarithm of, A_log
_TENSORS = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": f"{_MODULE}.in_proj_qkv",
    "attn_gate": f"{_MODULE}.in_proj_z",
    "ssm_conv1d": DELTA_CONV,
    "ssm_dt": f"{_MODULE}.dt_bias",
    "ssm_a": RATE,
    "ssm_norm": f"{_MODULE}.norm",
    "ssm_out": f"{_MODULE}.out_proj",
}
_APART = {"ssm_alpha": f"{_MODULE}.in_proj_a", "ssm_beta": f"{_MODULE}.in_proj_b"}
_TOGETHER = {"ssm_ba": f"{_MODULE}.in_proj_ba", "ssm_in": f"{_MODULE}.in_proj_qkvz"}
_SHARED = {
    "ffn_gate_inp_shexp": SHARED_GATE,
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_EXPERTS = Experts(
    width_key=("moe_intermediate_size", "expert_feed_forward_length"), has_shared=True
)


def _architecture(
    model_type: str, class_name: str, experts: Experts | None, tensors: Mapping[str, str]
) -> Architecture:
    return Architecture(
        model_type,
        class_name,
        False,
        {"hidden_act": "silu"},
        experts,
        {**_TENSORS, **tensors},
        partial=True,
        norm_offset=1.0,
        plain_norm=f"{_MODULE}.norm",
        convolutions=True,
    )


LINEAR_ATTENTION = {
    "qwen3next": _architecture(_NEXT, "Qwen3NextForCausalLM", _EXPERTS, {**_SHARED, **_TOGETHER}),
    "qwen35": _architecture(_DENSE, "Qwen3_5ForCausalLM", None, _APART),
    "qwen35moe": _architecture(_SPARSE, "Qwen3_5MoeForCausalLM", _EXPERTS, {**_SHARED, **_APART}),
}


def linear_attention(
    keys: Keys, config: Mapping[str, Any], rope_factors: Mapping[str, F32]
) -> dict[str, Any]:
    """Sizes of heads, and which layers have linear attention.

    Raises:
        CheckpointError: a key is missing or out of range.
    """
    heads, width = keys.size("ssm.time_step_rank"), keys.size("ssm.inner_size")
    if width % heads:
        raise CheckpointError(f"{width} elements of values are not a multiple of {heads} heads")
    every = config["num_hidden_layers"]
    predicting = keys.count("nextn_predict_layers", 0)  # behind the others, and counted among them
    layers = every - predicting
    interval, named = keys.size("full_attention_interval", 4), "attention.recurrent_layers"
    are_linear = [(layer + 1) % interval != 0 for layer in range(layers)]
    if keys.has(named):
        are_linear = keys.flags(named, every)[:layers]
    return {
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": predicting,
        "layer_types": ["linear_attention" if each else "full_attention" for each in are_linear],
        "linear_conv_kernel_dim": keys.size("ssm.conv_kernel"),
        "linear_key_head_dim": keys.size("ssm.state_size"),
        "linear_value_head_dim": width // heads,
        "linear_num_key_heads": keys.size("ssm.group_count"),
        "linear_num_value_heads": heads,
        "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),
    }
