"""Ministral 8B, as transformers 5 calls a Mistral whose layers have types."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import mistral
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``ministral``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    return replace(mistral.describe(config), architecture="ministral")


ARCHITECTURE = describe
