"""OLMo 1B and 7B of 2024: norms without weights (Groeneveld et al. 2024)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import check_off
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import EVERY_NORM, Storage
from edgerun_export.architectures.layer_norms.parts import described, gated


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``olmo``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    check_off(config, "olmo", ("clip_qkv",))
    spec = gated(described({**config, "layer_norm_eps": None}, "olmo"), config)
    return replace(
        spec,
        ropes=(rope(config, spec.head_dim),),
        biases=declared_biases(config, ("attention_bias",)),
        storage=Storage(bare_norms=EVERY_NORM),
    )


ARCHITECTURE = describe
