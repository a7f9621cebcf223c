"""CWM 32B, Meta's code world model: Llama with windows in three of four layers (2025)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import (
    number,
    positive,
    typed_windows,
)
from edgerun_export.architectures.decoder.rope import rope, with_llama3
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec

# Of the rope that transformers takes where nothing is said.
_THETA, _FACTOR = 1e6, 16.0


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``cwm``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    said = with_llama3(config, _THETA, _FACTOR)
    spec = llama.describe({"head_dim": 128, **said})
    if config.get("sliding_window", 8192):  # 0 and null are none
        window = positive(config, "sliding_window", 8192)
        slides = [layer % 4 != 0 for layer in range(spec.num_layers)]
        spec = spec.with_windows(typed_windows(config, window, slides))
    return replace(
        spec,
        architecture="cwm",
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        ropes=(rope(said, spec.head_dim, default_theta=_THETA),),
        biases=spec.biases - {"q_proj", "k_proj", "v_proj", "o_proj"},
    )


ARCHITECTURE = describe
