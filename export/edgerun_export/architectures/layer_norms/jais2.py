"""Jais 2 8B and 70B: squared ReLU without a gate, biases everywhere (Inception 2025)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.layer_norms.parts import described, ungated


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``jais2``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    usual = {"attention_bias": True, "mlp_bias": True}
    said = {**usual, **{key: value for key, value in config.items() if value is not None}}
    spec = ungated(described(said, "jais2"), config, "relu2")
    return replace(
        spec,
        ropes=(rope(config, spec.head_dim),),
        biases=declared_biases(said) - {"gate_proj"},
        norm_biases=True,
    )


ARCHITECTURE = describe
