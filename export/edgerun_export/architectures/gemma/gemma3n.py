"""Gemma 3n as it is released: the text model, beside parts for pictures and sound."""

from __future__ import annotations

from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.gemma import gemma3n_text
from edgerun_export.architectures.gemma.with_pictures import text_part


def describe(config: Config) -> DecoderSpec:
    """Describes the text model of a checkpoint of model_type ``gemma3n``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    return text_part(config, "gemma3n", gemma3n_text.describe)


ARCHITECTURE = describe
