"""SmolLM3: Llama with layers whose queries and keys are not rotated (Yang et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgerun.errors import CheckpointError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import flag, positive, typed_windows
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``smollm3``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    tied = flag(config, "tie_word_embeddings", True)
    spec = llama.describe({**config, "tie_word_embeddings": tied})
    rotated = _rotated(config, spec.num_layers)
    if flag(config, "use_sliding_window") and config.get("sliding_window") is not None:
        without = [not turned for turned in rotated]
        window = positive(config, "sliding_window")
        spec = spec.with_windows(typed_windows(config, window, without))
    return replace(
        spec.with_ropes([0 if turned else None for turned in rotated]),
        architecture="smollm3",
        ropes=(rope(config, spec.head_dim, default_theta=2000000.0),),
    )


def _rotated(config: Config, num_layers: int) -> Sequence[bool]:
    """Of every layer whether it has a rope: 1 in ``no_rope_layers``, by its name's contrary."""
    listed = config.get("no_rope_layers")
    if listed is None:
        interval = positive(config, "no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if not isinstance(listed, list) or not all(type(each) is int for each in listed):
        raise CheckpointError(
            f"config.json: 'no_rope_layers' is {listed!r} and must be a list of 0 and 1"
        )
    if len(listed) < num_layers or not set(listed) <= {0, 1}:
        raise CheckpointError(
            f"config.json: 'no_rope_layers' has {len(listed)} entries for {num_layers} layers; "
            "expected 0 or 1 for each"
        )
    return [bool(each) for each in listed[:num_layers]]


ARCHITECTURE = describe
