"""Command R7B and Command A: windows in three of four layers, no rope in the others (2024)."""

from __future__ import annotations

from edgerun_export.architectures.decoder.fields import positive, typed_windows
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.layer_norms.cohere import of_kind


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``cohere2``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = of_kind(config, "cohere2", 10000.0)
    pattern = positive(config, "sliding_window_pattern", 4)
    usual = [(layer + 1) % pattern != 0 for layer in range(spec.num_layers)]
    window = positive(config, "sliding_window", 4096)
    spec = spec.with_windows(typed_windows(config, window, usual))
    return spec.with_ropes([0 if layer.window else None for layer in spec.layers])


ARCHITECTURE = describe
