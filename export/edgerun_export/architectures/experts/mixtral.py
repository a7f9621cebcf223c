"""Mixtral: Mistral with experts instead of one feed-forward network (Jiang et al. 2024)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import experts_chosen, number, positive
from edgerun_export.architectures.decoder.layer import Experts
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``mixtral``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = llama.describe(config)
    window = config.get("sliding_window")
    if window is not None:
        spec = spec.with_windows([positive(config, "sliding_window")] * spec.num_layers)
    count, top_k = experts_chosen(config, "num_local_experts")
    experts = Experts(
        count=count,
        top_k=top_k,
        width=positive(config, "intermediate_size"),
        normalise=True,
        module="block_sparse_moe",
        names=("w1", "w3", "w2"),
    )
    return replace(
        spec.with_feed_forward([experts] * spec.num_layers),
        architecture="mixtral",
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        ropes=(rope(config, spec.head_dim, default_theta=1e6),),
        biases=frozenset(),
    )


ARCHITECTURE = describe
