"""Gemma 4 12B as it is released: the text model, beside parts for pictures and sound."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.gemma.gemma4_text import decoder
from edgerun_export.architectures.gemma.gemma4_unified_text import USUAL
from edgerun_export.architectures.gemma.with_pictures import text_part


def describe(config: Config) -> DecoderSpec:
    """Describes the text model of a checkpoint of model_type ``gemma4_unified``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    usual = replace(USUAL, architecture="gemma4_unified")
    return text_part(config, usual.architecture, partial(decoder, usual=usual))


ARCHITECTURE = describe
