"""The text model of Gemma 4 12B: Gemma 4 without inputs of layers."""

from __future__ import annotations

from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.gemma.gemma4_text import Defaults, decoder

USUAL = Defaults("gemma4_unified_text", window=1024, context=262144, per_layer_width=0)


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``gemma4_unified_text``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    return decoder(config, USUAL)


ARCHITECTURE = describe
