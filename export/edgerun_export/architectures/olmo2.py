"""OLMo 2: norms after attention and feed-forward part, not before (OLMo team 2024)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import number
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``olmo2``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    return replace(
        llama.describe(config),
        architecture="olmo2",
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        biases=declared_biases(config, ("attention_bias",)),
        q_row_norm="self_attn.q_norm",
        k_row_norm="self_attn.k_norm",
        input_norm=None,
        attention_out_norm="post_attention_layernorm",
        feed_forward_norm=None,
        feed_forward_out_norm="post_feedforward_layernorm",
    )


ARCHITECTURE = describe
