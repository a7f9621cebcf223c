"""Qwen 2 and 2.5: Llama with biases on q, k and v, and windows in some layers."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import layer_windows
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``qwen2``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = llama.describe(config)
    spec = spec.with_windows(layer_windows(config, spec.num_layers))
    return replace(spec, architecture="qwen2", biases=frozenset({"q_proj", "k_proj", "v_proj"}))


ARCHITECTURE = describe
