"""OLMo 3: OLMo 2 with windows in three of four layers, whose rope is not scaled (2025)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import olmo2
from edgerun_export.architectures.decoder.fields import positive, typed_windows
from edgerun_export.architectures.decoder.rope import rope_of_type
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec

_THETA = 500000.0


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``olmo3``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = olmo2.describe({**config, "rope_parameters": None, "rope_scaling": None})
    slides = [(layer + 1) % 4 != 0 for layer in range(spec.num_layers)]
    spec = spec.with_windows(
        typed_windows(config, positive(config, "sliding_window", 4096), slides)
    )
    # Before rope_parameters there was one theta for both.
    local = None if config.get("rope_parameters") else config.get("rope_theta")
    both = {**config, "rope_local_base_freq": local}
    return replace(
        spec.with_ropes([1 if layer.window else 0 for layer in spec.layers]),
        architecture="olmo3",
        ropes=(
            rope_of_type(both, "full_attention", spec.head_dim, _THETA),
            rope_of_type(both, "sliding_attention", spec.head_dim, _THETA),
        ),
    )


ARCHITECTURE = describe
