"""Youtu-LLM 2B: DeepSeek V3's attention, and a dense network in every layer (Tencent 2025)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.fields import flag
from edgerun_export.architectures.decoder.latent import with_latent_attention
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``youtu``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    tied = flag(config, "tie_word_embeddings", True)
    spec = with_latent_attention({**config, "tie_word_embeddings": tied})
    return replace(spec, architecture="youtu")


ARCHITECTURE = describe
