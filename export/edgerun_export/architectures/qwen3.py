"""Qwen 3 (dense): Llama with a norm on every query and key head, and a head_dim of its own."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import layer_windows
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``qwen3``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    # Qwen3Config's default is 128, not hidden_size / num_attention_heads.
    head_dim = config.get("head_dim")
    spec = llama.describe({**config, "head_dim": 128 if head_dim is None else head_dim})
    spec = spec.with_windows(layer_windows(config, spec.num_layers))
    return replace(
        spec,
        architecture="qwen3",
        biases=declared_biases(config, ("attention_bias",)),
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
    )


ARCHITECTURE = describe
