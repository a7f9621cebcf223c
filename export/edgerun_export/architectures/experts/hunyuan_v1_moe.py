"""Hunyuan A13B: the layers of the dense models with experts, and a network for all tokens."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun_export.architectures.decoder.fields import experts_chosen, positive
from edgerun_export.architectures.decoder.layer import Experts, SharedExpert
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.dense import hunyuan_v1_dense


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``hunyuan_v1_moe``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = hunyuan_v1_dense.describe(config)
    said = {key: _of_all_layers(config, key) for key in ("num_experts", "moe_topk")}
    count, top_k = experts_chosen({**config, **said}, "num_experts", "moe_topk")
    width = positive(config, "intermediate_size")
    experts = Experts(
        count=count,
        top_k=top_k,
        width=width,
        normalise=True,
        router="gate.wg",
        shared=SharedExpert(width, "mlp.shared_mlp", gate=""),
    )
    return replace(
        spec.with_feed_forward([experts] * spec.num_layers), architecture="hunyuan_v1_moe"
    )


def _of_all_layers(config: Config, key: str) -> object:
    """A number that configurations may list layer by layer.

    Raises:
        UnsupportedError: layers differ.
    """
    value = config.get(key)
    if not isinstance(value, list):
        return value
    if any(each != value[0] for each in value):
        raise UnsupportedError(
            f"hunyuan_v1_moe checkpoints whose layers have {key} of {sorted({*map(str, value)})} "
            "are not supported; those with the same in all layers are"
        )
    return value[0] if value else None


ARCHITECTURE = describe
