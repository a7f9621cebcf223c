"""LFM2 with experts in all layers but the first ones (LFM2 8B A1B, 24B A2B)."""

from __future__ import annotations

from edgerun_export.architectures import lfm2
from edgerun_export.architectures.decoder.fields import (
    experts_chosen,
    flag,
    natural,
    number,
    positive,
)
from edgerun_export.architectures.decoder.layer import Dense, Experts
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec

_EPSILON = 1e-6  # transformers' ``Lfm2MoeTopKRouter`` adds it to the sum of scores


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``lfm2_moe``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    width = positive(config, "intermediate_size", 7168)
    spec = lfm2.hybrid(config, "lfm2_moe", width)
    dense = natural(config, "num_dense_layers", 2, limit=spec.num_layers)
    networks = [Dense(width)] * dense + [_experts(config)] * (spec.num_layers - dense)
    return spec.with_feed_forward(networks)


def _experts(config: Config) -> Experts:
    count, top_k = experts_chosen(config, "num_experts")
    normalise = flag(config, "norm_topk_prob", True)
    return Experts(
        count=count,
        top_k=top_k,
        width=positive(config, "moe_intermediate_size"),
        normalise=normalise,
        scoring="sigmoid",
        selection_bias="feed_forward.expert_bias" if flag(config, "use_expert_bias", True) else "",
        epsilon=_EPSILON if normalise else 0.0,
        scale=number(config, "routed_scaling_factor", 1.0),
        module="feed_forward",
        names=("w1", "w3", "w2"),
    )


ARCHITECTURE = describe
