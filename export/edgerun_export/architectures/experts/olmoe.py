"""OLMoE: many small experts, and norms over whole queries and keys (Muennighoff et al. 2024)."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import experts_chosen, flag, number, positive
from edgerun_export.architectures.decoder.layer import Experts
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``olmoe``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = llama.describe(config)
    if config.get("clip_qkv") is not None:
        raise UnsupportedError("olmoe checkpoints with clip_qkv are not supported")
    count, top_k = experts_chosen(config, "num_experts")
    experts = Experts(
        count=count,
        top_k=top_k,
        width=positive(config, "intermediate_size"),
        normalise=flag(config, "norm_topk_prob"),
    )
    return replace(
        spec.with_feed_forward([experts] * spec.num_layers),
        architecture="olmoe",
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        biases=declared_biases(config, ("attention_bias",)),
        q_row_norm="self_attn.q_norm",
        k_row_norm="self_attn.k_norm",
    )


ARCHITECTURE = describe
