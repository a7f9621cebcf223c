"""Granite 4 (dense): Granite 3 with gate and up projection in one, and rope or none.

Those with Mamba layers or experts have no implementation.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import granite
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import names, positive
from edgerun_export.architectures.decoder.layer import Dense
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec

_MODULE = "shared_mlp"


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``granitemoehybrid``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it has layers without an implementation.
    """
    width = positive(config, "shared_intermediate_size", 1024)
    spec = granite.describe({**config, "intermediate_size": width})
    _check_layers(config, spec.num_layers)
    rotates = config.get("position_embedding_type") == "rope"
    return replace(
        spec.with_feed_forward([Dense(width)] * spec.num_layers).with_ropes(
            [0 if rotates else None] * spec.num_layers
        ),
        architecture="granitemoehybrid",
        biases=declared_biases(config, ("attention_bias",)),
        storage=replace(
            spec.storage,
            joined={
                f"{_MODULE}.input_linear": ("gate_proj", "up_proj"),
                f"{_MODULE}.output_linear": ("down_proj",),
            },
        ),
    )


def _check_layers(config: Config, num_layers: int) -> None:
    if config.get("num_local_experts", 8) != 0:
        raise UnsupportedError(
            "granitemoehybrid checkpoints with experts are not supported; those with "
            "num_local_experts 0 are"
        )
    types = names(config, "layer_types") or names(config, "layers_block_type")
    others = sorted({*types} - {"attention", "full_attention"}) or ([] if types else ["mamba"])
    if others:
        raise UnsupportedError(
            f"granitemoehybrid checkpoints with layers of '{others[0]}' are not supported; those "
            "that have attention in every layer are"
        )
    if len(types) != num_layers:
        raise CheckpointError(
            f"config.json: layer_types names {len(types)} layers, the model has {num_layers}"
        )


ARCHITECTURE = describe
