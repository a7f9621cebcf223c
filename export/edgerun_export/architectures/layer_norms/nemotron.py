"""Nemotron 4 15B, Nemotron 3 8B and Minitron 4B, 8B: squared ReLU without a gate (2024)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.layer_norms.parts import described, turned_in_part, ungated


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``nemotron``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = ungated(described(config, "nemotron", epsilon="norm_eps"), config, "relu2")
    spec = turned_in_part(spec, config, 0.5)
    storage = replace(spec.storage, norm_offset=1.0)
    return replace(spec, norm_biases=True, storage=storage)


ARCHITECTURE = describe
