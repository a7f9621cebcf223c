"""FlexOlmo: OLMo 2's layers with OLMoE's experts, each trained by itself (Shi et al. 2025)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import olmo2
from edgerun_export.architectures.decoder.fields import experts_chosen, flag, number, positive
from edgerun_export.architectures.decoder.layer import Experts
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``flex_olmo``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = olmo2.describe(config)
    count, top_k = experts_chosen(config, "num_experts")
    experts = Experts(
        count=count,
        top_k=top_k,
        width=positive(config, "intermediate_size"),
        normalise=flag(config, "norm_topk_prob"),
    )
    return replace(
        spec.with_feed_forward([experts] * spec.num_layers),
        architecture="flex_olmo",
        norm_eps=number(config, "rms_norm_eps", 1e-6),
        ropes=(rope(config, spec.head_dim, default_theta=500000.0),),
    )


ARCHITECTURE = describe
