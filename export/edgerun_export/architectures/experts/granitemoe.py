"""Granite 3 with experts (Granite 3.0 and 3.1 1B A400M and 3B A800M)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import experts_chosen, positive
from edgerun_export.architectures.decoder.layer import Experts
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.scaled import granite


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``granitemoe``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = granite.describe(config)
    count, top_k = experts_chosen(config, "num_local_experts")
    experts = Experts(
        count=count,
        top_k=top_k,
        width=positive(config, "intermediate_size"),
        normalise=True,
        module="block_sparse_moe",
        router="router.layer",
    )
    return replace(
        spec.with_feed_forward([experts] * spec.num_layers),
        architecture="granitemoe",
        biases=declared_biases(config, ("attention_bias",)),
    )


ARCHITECTURE = describe
