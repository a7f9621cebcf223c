"""What GGUF files have of models of which few layers attend, as llama.cpp's converter has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]
# By name: whether it is stored as projections are, or as float32; rows and columns.
Shapes = dict[str, tuple[bool, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Family:
    """Models of one kind.

    Attributes:
        architecture: llama.cpp's name.
        mixer: the tensors of a layer but for those of its network, by number of the layer.
        metadata: what files say besides the usual, without the architecture's name.
    """

    architecture: str
    mixer: Callable[[Config, int], Shapes]
    metadata: Callable[[Config], dict[str, Any]]


def _attention(config: Config, width: int, factor: int = 1) -> Shapes:
    """Projections of attention with heads so wide; ``factor`` times the queries, with gates."""
    hidden, inner = config["hidden_size"], width * config["num_attention_heads"]
    keys = width * config["num_key_value_heads"]
    return {
        "attn_q.weight": (True, (factor * inner, hidden)),
        "attn_k.weight": (True, (keys, hidden)),
        "attn_v.weight": (True, (keys, hidden)),
        "attn_output.weight": (True, (hidden, inner)),
    }


def _granite_mixer(config: Config, layer: int) -> Shapes:
    hidden, heads = config["hidden_size"], config["mamba_n_heads"]
    norms: Shapes = {f"{name}_norm.weight": (False, (hidden,)) for name in ("attn", "ffn")}
    if config["layer_types"][layer] == "attention":
        return norms | _attention(config, hidden // config["num_attention_heads"])
    inner, groups = heads * config["mamba_d_head"], config["mamba_n_groups"]
    channels = inner + 2 * groups * config["mamba_d_state"]
    return norms | {
        "ssm_in.weight": (True, (inner + channels + heads, hidden)),
        "ssm_conv1d.weight": (False, (channels, 4)),
        "ssm_conv1d.bias": (False, (channels,)),
        "ssm_dt.bias": (False, (heads,)),
        "ssm_a": (False, (heads, 1)),
        "ssm_d": (False, (heads, 1)),
        "ssm_norm.weight": (False, (groups, inner // groups)),
        "ssm_out.weight": (True, (hidden, inner)),
    }


def _granite_metadata(config: Config) -> dict[str, Any]:
    heads = config["num_key_value_heads"]
    return {
        "attention.head_count_kv": [
            heads if kind == "attention" else 0 for kind in config["layer_types"]
        ],
        "ssm.conv_kernel": 4,
        "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"],
        "ssm.time_step_rank": config["mamba_n_heads"],
        "ssm.inner_size": config["mamba_n_heads"] * config["mamba_d_head"],
        "rope.scaling.finetuned": False,
        "attention.scale": config["attention_multiplier"],
        "residual_scale": 1.0,
        "embedding_scale": 1.0,
        "logit_scale": 1.0,
    }


def _attends(layer: int) -> bool:
    return layer % 4 == 3


def _qwen_mixer(config: Config, layer: int) -> Shapes:
    hidden = config["hidden_size"]
    norms: Shapes = {
        f"{name}_norm.weight": (False, (hidden,)) for name in ("attn", "post_attention")
    }
    if _attends(layer):
        width = config["head_dim"]
        own: Shapes = {f"attn_{name}_norm.weight": (False, (width,)) for name in "qk"}
        return norms | own | _attention(config, width, 2)
    heads = config["linear_num_value_heads"]
    values = heads * config["linear_value_head_dim"]
    channels = values + 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    return norms | {
        "attn_qkv.weight": (True, (channels, hidden)),
        "attn_gate.weight": (True, (values, hidden)),
        "ssm_alpha.weight": (True, (heads, hidden)),
        "ssm_beta.weight": (True, (heads, hidden)),
        "ssm_a": (False, (heads,)),
        "ssm_dt.bias": (False, (heads,)),
        "ssm_conv1d.weight": (False, (channels, config["linear_conv_kernel_dim"])),
        "ssm_norm.weight": (False, (config["linear_value_head_dim"],)),
        "ssm_out.weight": (True, (hidden, values)),
    }


def _qwen_metadata(config: Config) -> dict[str, Any]:
    turned = round(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"])
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"],
        "full_attention_interval": 4,
        "rope.dimension_sections": [turned // 6 + turned // 2 % 3, turned // 6, turned // 6, 0],
        "attention.recurrent_layers": [
            not _attends(layer) for layer in range(config["num_hidden_layers"])
        ],
    }


FAMILIES: Mapping[str, Family] = {
    "granitemoehybrid": Family("granitehybrid", _granite_mixer, _granite_metadata),
    "qwen3_5_text": Family("qwen35", _qwen_mixer, _qwen_metadata),
}
