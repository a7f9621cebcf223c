"""VaultGemma 1B: Gemma 2 without norms of what layers add (2025)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.gemma import gemma2


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``vaultgemma``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    return replace(
        gemma2.describe(config),
        architecture="vaultgemma",
        attention_out_norm=None,
        feed_forward_out_norm=None,
    )


ARCHITECTURE = describe
