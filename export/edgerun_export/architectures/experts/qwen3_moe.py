"""Qwen 3 with experts in some layers or all (Qwen3 30B A3B, 235B A22B)."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import CheckpointError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import experts_chosen, flag, positive
from edgerun_export.architectures.decoder.layer import Dense, Experts, FeedForward
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec

_COUNTS = ("num_local_experts", "num_experts")  # as transformers 5 writes it, and others


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``qwen3_moe``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = llama.describe(config)
    if flag(config, "use_sliding_window") and config.get("sliding_window") is not None:
        spec = spec.with_windows([positive(config, "sliding_window")] * spec.num_layers)
    return replace(
        spec.with_feed_forward(feed_forward(config, spec.num_layers)),
        architecture="qwen3_moe",
        biases=declared_biases(config, ("attention_bias",)),
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
    )


def feed_forward(config: Config, num_layers: int) -> list[FeedForward]:
    """Every ``decoder_sparse_step``-th layer has experts, but for ``mlp_only_layers``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
    """
    said = next((key for key in _COUNTS if config.get(key) is not None), _COUNTS[-1])
    count, top_k = experts_chosen(config, said)
    experts = Experts(
        count=count,
        top_k=top_k,
        width=positive(config, "moe_intermediate_size"),
        normalise=flag(config, "norm_topk_prob"),
    )
    dense = Dense(positive(config, "intermediate_size"))
    step, without = positive(config, "decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    if not isinstance(without, list) or not all(type(layer) is int for layer in without):
        raise CheckpointError(
            f"config.json: 'mlp_only_layers' is {without!r} and must be a list of whole numbers"
        )
    return [
        experts if layer not in without and (layer + 1) % step == 0 else dense
        for layer in range(num_layers)
    ]


ARCHITECTURE = describe
