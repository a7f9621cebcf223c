"""Gemma 4 as it is released: the text model, beside parts for pictures and sound."""

from __future__ import annotations

from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.gemma.gemma4_text import Defaults
from edgerun_export.architectures.gemma.with_pictures import text_part


def describe(config: Config) -> DecoderSpec:
    """Describes the text model of a checkpoint of model_type ``gemma4``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    return text_part(config, Defaults("gemma4"))


ARCHITECTURE = describe
