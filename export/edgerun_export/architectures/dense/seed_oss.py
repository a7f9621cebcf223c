"""Seed-OSS: Llama with biases of queries, keys and values, and heads of a width of their own."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import flag
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``seed_oss``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    biases = {"q_proj", "k_proj", "v_proj"} if flag(config, "attention_bias", True) else set()
    biases |= {"o_proj"} if flag(config, "attention_out_bias") else set()
    return replace(
        llama.describe({"head_dim": 128, **config}),
        architecture="seed_oss",
        biases=frozenset(biases) | declared_biases(config, ("mlp_bias",)),
    )


ARCHITECTURE = describe
