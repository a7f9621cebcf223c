"""Aleph Alpha's Kolibri 1: EXAONE 4.0's attention, norms before and after, experts (2026).

A bias is added to logits for the choice of experts, whose weights are sigmoids of the logits alone.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import (
    experts_chosen,
    flag,
    positive,
    typed_windows,
)
from edgerun_export.architectures.decoder.layer import Experts, SharedExpert
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec

# As transformers 5 writes it, and as models are released.
_COUNTS = ("num_local_experts", "num_experts")
_WINDOW = 513
# Kolibri1Config's, where what is reused has others or none.
_USUAL = {
    "head_dim": 128,
    "num_key_value_heads": 4,
    "max_position_embeddings": 262144,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 512,
}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``kolibri1``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    if config.get("sliding_window", _WINDOW) is None:
        raise UnsupportedError(
            "kolibri1 checkpoints with a sliding_window of null, which turns the heads of all "
            "layers, are not supported; those with windows are"
        )
    said = _USUAL | {key: value for key, value in config.items() if value is not None}
    experts = _experts(said)
    spec = llama.describe({**said, "intermediate_size": experts.width})
    slides = [(layer + 1) % 5 != 0 for layer in range(spec.num_layers)]
    windows = typed_windows(said, positive(said, "sliding_window", _WINDOW), slides)
    turns = [0 if window else None for window in windows]
    return replace(
        spec.with_windows(windows).with_ropes(turns).with_feed_forward([experts] * len(turns)),
        architecture="kolibri1",
        biases=frozenset(),
        attention_out_norm="post_attn_norm",
        feed_forward_out_norm="post_ffn_norm",
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
    )


def _experts(config: Config) -> Experts:
    said = next((key for key in _COUNTS if key in config), _COUNTS[0])
    count, top_k = experts_chosen({_COUNTS[0]: 384, **config}, said)
    width = positive(config, "shared_expert_intermediate_size", 512)
    return Experts(
        count=count,
        top_k=top_k,
        width=positive(config, "moe_intermediate_size"),
        normalise=flag(config, "norm_topk_prob"),
        scoring="sigmoid",
        selection_bias="moe.router.expert_bias",
        biased="logits",
        shared=SharedExpert(width, "mlp.shared_experts", gate=""),
    )


ARCHITECTURE = describe
