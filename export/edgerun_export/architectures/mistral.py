"""Mistral 7B: Llama with a sliding window in every layer; Ministral 8B: in those of a type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import names, positive, typed_windows
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``mistral``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    return _described(config, names(config, "layer_types"))


def without_types(config: Config) -> DecoderSpec:
    """Describes one that is part of a larger checkpoint, where all layers are alike.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    return _described(config, [])


def _described(config: Config, types: Sequence[str]) -> DecoderSpec:
    spec = llama.describe(config)
    # An absent key means 4096 in transformers' MistralConfig; null means no window.
    if config.get("sliding_window", 4096) is not None:
        window, each = positive(config, "sliding_window", 4096), [True] * spec.num_layers
        spec = spec.with_windows(typed_windows({"layer_types": [*types]}, window, each))
    return replace(spec, architecture="mistral", biases=frozenset())


ARCHITECTURE = describe
