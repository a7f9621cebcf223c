"""Command R, R+, Aya 23 and Aya Expanse: both parts of a layer read the same norm (Cohere 2024)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import flag, number
from edgerun_export.architectures.decoder.rope import partial, rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage
from edgerun_export.architectures.layer_norms.parts import described, gated, with_head_norms

_THETA = 500000.0
_HEADS = "use_qk_norm"  # Command R+


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``cohere``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = of_kind({**config, _HEADS: None}, "cohere", _THETA)
    return with_head_norms(spec, config, _HEADS, "self_attn.{}_norm")


def of_kind(config: Config, name: str, default_theta: float) -> DecoderSpec:
    """Describes one of several generations, with attention to all tokens.

    Args:
        config: keys of config.json.
        name: of the architecture.
        default_theta: base of the rope, unless ``config`` has one.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = gated(described(config, name), config)
    turning, head_rows = partial(
        rope(config, spec.head_dim, default_theta), spec.head_dim, interleaved=True
    )
    factors = {spec.final_norm_weight: number(config, "logit_scale", 0.0625)}
    return replace(
        spec,
        ropes=(turning,),
        tied=flag(config, "tie_word_embeddings", True),
        biases=declared_biases(config, ("attention_bias",)),
        parallel=True,
        feed_forward_norm=spec.input_norm,
        storage=Storage(factors=factors, head_rows=head_rows),
    )


ARCHITECTURE = describe
