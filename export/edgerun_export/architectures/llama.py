"""Llama 1 to 3.2 and everything that has its shape (TinyLlama, SmolLM, stories, ...)."""

from __future__ import annotations

from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import (
    activation,
    dimensions,
    flag,
    number,
    ternary_origin,
)
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``llama``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    sizes = dimensions(config)
    return DecoderSpec(
        architecture="llama",
        **sizes,
        norm_eps=number(config, "rms_norm_eps", 1e-6),
        activation=activation(config),
        ropes=(rope(config, sizes["head_dim"]),),
        tied=flag(config, "tie_word_embeddings"),
        biases=declared_biases(config),
        ternary=ternary_origin(config),
    )


ARCHITECTURE = describe
