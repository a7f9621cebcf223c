"""DeepSeek V2 Lite: keys and values made of narrow rows, experts and a network for all tokens.

DeepSeek-V2 (2024), sections 2.1 and 2.2. Larger models choose groups of experts first.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun_export.architectures.decoder.fields import (
    experts_chosen,
    flag,
    natural,
    number,
    positive,
)
from edgerun_export.architectures.decoder.latent import with_latent_attention
from edgerun_export.architectures.decoder.layer import Dense, Experts, FeedForward, SharedExpert
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``deepseek_v2``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    method = config.get("topk_method") or "greedy"
    if method != "greedy" and positive(config, "n_group", 1) > 1:
        raise UnsupportedError(
            f"deepseek_v2 checkpoints with a topk_method of '{method}' are not supported; those "
            "with greedy are"
        )
    if flag(config, "norm_topk_prob"):
        raise UnsupportedError("deepseek_v2 checkpoints with norm_topk_prob are not supported")
    spec = with_latent_attention(config)
    first = natural(config, "first_k_dense_replace", 0, limit=spec.num_layers)
    experts = experts_beside_shared(config)
    parts: list[FeedForward] = [Dense(positive(config, "intermediate_size"))] * first
    parts += [experts] * (spec.num_layers - first)
    return replace(spec.with_feed_forward(parts), architecture="deepseek_v2")


def experts_beside_shared(config: Config) -> Experts:
    """Experts chosen by a softmax, and a network of several widths of theirs for all tokens.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
    """
    count, top_k = experts_chosen(config, "n_routed_experts")
    width = positive(config, "moe_intermediate_size")
    shared = natural(config, "n_shared_experts", 0, limit=count)
    return Experts(
        count=count,
        top_k=top_k,
        width=width,
        normalise=False,
        scale=number(config, "routed_scaling_factor", 1.0),
        shared=SharedExpert(shared * width, "mlp.shared_experts", gate="") if shared else None,
    )


ARCHITECTURE = describe
