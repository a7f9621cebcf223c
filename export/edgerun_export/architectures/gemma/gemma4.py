"""Gemma 4 as it is released: the text model, beside parts for pictures and sound."""

from __future__ import annotations

from functools import partial

from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.gemma.gemma4_text import Defaults, decoder
from edgerun_export.architectures.gemma.with_pictures import text_part


def describe(config: Config) -> DecoderSpec:
    """Describes the text model of a checkpoint of model_type ``gemma4``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    return text_part(config, "gemma4", partial(decoder, usual=Defaults("gemma4")))


ARCHITECTURE = describe
