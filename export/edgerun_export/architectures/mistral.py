"""Mistral 7B: Llama with a sliding window in every layer."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import positive
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``mistral``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = llama.describe(config)
    # An absent key means 4096 in transformers' MistralConfig; null means no window.
    window = config.get("sliding_window", 4096)
    if window is not None:
        window = positive(config, "sliding_window", 4096)
    spec = spec.with_windows([window] * spec.num_layers)
    return replace(spec, architecture="mistral", biases=frozenset())


ARCHITECTURE = describe
