"""Qwen 1.5 and 2 with experts, one of which all tokens go through (Qwen1.5 MoE A2.7B)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import flag, layer_windows, positive
from edgerun_export.architectures.decoder.layer import Experts, SharedExpert
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.experts.qwen3_moe import feed_forward

BIASES = frozenset({"q_proj", "k_proj", "v_proj"})


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``qwen2_moe``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = llama.describe(config)
    spec = spec.with_windows(layer_windows(config, spec.num_layers))
    shared = SharedExpert(positive(config, "shared_expert_intermediate_size"))
    parts = [
        replace(part, shared=shared) if isinstance(part, Experts) else part
        for part in feed_forward(config, spec.num_layers)
    ]
    return replace(
        spec.with_feed_forward(parts),
        architecture="qwen2_moe",
        biases=BIASES if flag(config, "qkv_bias", True) else frozenset(),
    )


ARCHITECTURE = describe
