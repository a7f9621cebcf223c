"""Qwen3-Next: linear attention in three of four layers, experts (80B A3B, Coder-Next)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.fields import flag, positive
from edgerun_export.architectures.decoder.layer import Experts, GatedDelta
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import PickedRows, picked_in_turns
from edgerun_export.architectures.experts.qwen3_moe import feed_forward
from edgerun_export.architectures.linear.parts import hybrid, shared_expert

# Qwen3NextConfig's, where what is reused has others or none.
_USUAL = {
    "intermediate_size": 5632,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``qwen3_next``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    config = {**_USUAL, **{key: value for key, value in config.items() if value is not None}}
    config["norm_topk_prob"] = flag(config, "norm_topk_prob", True)
    spec = hybrid(config, "qwen3_next")
    width = positive(config, "shared_expert_intermediate_size")
    parts = [
        shared_expert(part, width) if isinstance(part, Experts) else part
        for part in feed_forward(config, spec.num_layers)
    ]
    picked = {**spec.storage.picked}
    for delta in {layer.delta for layer in spec.layers if layer.delta}:
        picked |= _in_turns(delta)
    return replace(spec.with_feed_forward(parts), storage=replace(spec.storage, picked=picked))


def _in_turns(delta: GatedDelta) -> dict[str, PickedRows]:
    """Of each key head the rows of its query, its key, its values and their gates."""
    per_key = delta.value_heads // delta.key_heads
    keys, values = delta.key_dim, per_key * delta.value_dim
    parts = [("qkv_proj", keys), ("qkv_proj", keys), ("qkv_proj", values), ("z_proj", values)]
    both = picked_in_turns(f"{delta.module}.in_proj_qkvz", delta.key_heads, parts)
    gates = [("write_proj", per_key), ("decay_proj", per_key)]
    return both | picked_in_turns(f"{delta.module}.in_proj_ba", delta.key_heads, gates)


ARCHITECTURE = describe
