"""GLM-4 and GLM-Z1 of April 2025 (9B and 32B): GLM with norms before and after."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.dense import glm


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``glm4``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    return replace(
        glm.describe(config),
        architecture="glm4",
        attention_out_norm="post_self_attn_layernorm",
        feed_forward_out_norm="post_mlp_layernorm",
    )


ARCHITECTURE = describe
