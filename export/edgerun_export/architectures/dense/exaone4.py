"""EXAONE 4.0: norms of OLMo 2 and of heads; layers without a window have no rope (2025)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import olmo2
from edgerun_export.architectures.decoder.fields import positive, typed_windows
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``exaone4``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = replace(
        olmo2.describe(config),
        architecture="exaone4",
        biases=frozenset(),
        q_row_norm=None,
        k_row_norm=None,
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
    )
    if config.get("sliding_window", 4096) is None:  # the small model, all of whose layers have rope
        return spec
    interval = positive(config, "sliding_window_pattern", 4) if _is_open(config) else 1
    slides = [(layer + 1) % interval != 0 for layer in range(spec.num_layers)]
    windows = typed_windows(config, positive(config, "sliding_window", 4096), slides)
    return spec.with_windows(windows).with_ropes([0 if window else None for window in windows])


def _is_open(config: Config) -> bool:
    """Whether nothing lists the layers that have a window."""
    return config.get("layer_types") is None


ARCHITECTURE = describe
