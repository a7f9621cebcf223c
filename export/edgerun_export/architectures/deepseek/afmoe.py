"""Arcee Trinity (Nano 6B A1B, Mini 26B A3B): gated attention, norms before and after, experts.

Layers without a window have no rope. Experts are chosen by sigmoids and a bias, beside a network
that all tokens go through.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import (
    experts_chosen,
    flag,
    natural,
    number,
    positive,
    typed_windows,
)
from edgerun_export.architectures.decoder.layer import Dense, Experts, FeedForward, SharedExpert
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage

# AfmoeConfig's, where what is reused has others or none.
_USUAL = {
    **{"head_dim": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 16384},
    **{"moe_intermediate_size": 1408, "num_shared_experts": 2, "route_scale": 1.0},
}
_MAX_SHARED = 64  # more than any model has


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``afmoe``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    config = _USUAL | {key: value for key, value in config.items() if value is not None}
    spec = llama.describe(config)
    every = positive(config, "global_attn_every_n_layers", 4)
    slides = [(layer + 1) % every != 0 for layer in range(spec.num_layers)]
    windows = typed_windows(config, positive(config, "sliding_window", 1024), slides)
    spec = spec.with_windows(windows).with_ropes([0 if window else None for window in windows])
    dense = natural(config, "num_dense_layers", 1, limit=spec.num_layers)
    experts = biased_experts(config, number(config, "route_scale"), "mlp.shared_experts")
    network = Dense(positive(config, "intermediate_size"))
    parts: list[FeedForward] = [network] * dense + [experts] * (spec.num_layers - dense)
    names = {
        f"model.layers.{layer}.self_attn.attention_gate.weight": (
            f"model.layers.{layer}.self_attn.gate_proj.weight"
        )
        for layer in range(spec.num_layers)
    }
    return replace(
        spec.with_feed_forward(parts),
        architecture="afmoe",
        biases=declared_biases(config, ("attention_bias",)),
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        gates_attention=True,
        attention_out_norm="post_attention_layernorm",
        feed_forward_norm="pre_mlp_layernorm",
        feed_forward_out_norm="post_mlp_layernorm",
        storage=Storage(names=names, factors=_factors(spec, config)),
    )


def biased_experts(config: Config, scale: float, shared_module: str) -> Experts:
    """Experts that sigmoids and a bias choose, beside at least one that is every token's.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
    """
    count, top_k = experts_chosen(config, "num_experts")
    width = positive(config, "moe_intermediate_size")
    shared = positive(config, "num_shared_experts", limit=_MAX_SHARED)
    return Experts(
        count=count,
        top_k=top_k,
        width=width,
        normalise=True,
        scoring="sigmoid",
        selection_bias="mlp.expert_bias",
        scale=scale,
        router="router.gate",
        shared=SharedExpert(shared * width, shared_module, gate=""),
    )


def _factors(spec: DecoderSpec, config: Config) -> dict[str, float]:
    """The embedding is multiplied by the root of its width, which a head that reads it is not."""
    if not flag(config, "mup_enabled"):
        return {}
    root = float(spec.hidden_size) ** 0.5
    back = {spec.final_norm_weight: 1 / root} if spec.tied else {}
    return {spec.embedding_weight: root, **back}


ARCHITECTURE = describe
