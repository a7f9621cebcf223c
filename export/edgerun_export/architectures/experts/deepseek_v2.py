"""DeepSeek V2 Lite: keys and values made of narrow rows, experts and a network for all tokens.

DeepSeek-V2 (2024), sections 2.1 and 2.2. Larger models choose groups of experts first.
"""

from __future__ import annotations

import math
from dataclasses import replace

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import (
    experts_chosen,
    flag,
    number,
    positive,
    section,
)
from edgerun_export.architectures.decoder.layer import (
    Dense,
    Experts,
    FeedForward,
    LatentAttention,
    SharedExpert,
)
from edgerun_export.architectures.decoder.rope import behind, rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage

_MAX_WIDTH = 4096  # of a part of a head, far beyond any model's


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
    return replace(
        spec.with_feed_forward(_feed_forward(config, spec.num_layers)), architecture="deepseek_v2"
    )


def with_latent_attention(config: Config) -> DecoderSpec:
    """A decoder whose attention is that of ``config``, and whose layers are dense.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: projections of attention have biases.
    """
    if flag(config, "attention_bias"):
        raise UnsupportedError("checkpoints of latent attention with biases are not supported")
    heads, latent = positive(config, "num_attention_heads"), _latent(config)
    head_dim = latent.plain + latent.turned
    if latent.values > head_dim:
        raise UnsupportedError(
            f"config.json: value heads of v_head_dim {latent.values} elements are wider than key "
            f"heads of {head_dim}, which is not supported"
        )
    # What has the names of other models' keys means something else here.
    plain = {**config, "head_dim": head_dim, "num_key_value_heads": heads, "rope_scaling": None}
    spec = llama.describe({**plain, "rope_parameters": None, "attention_bias": False})
    turning, order = behind(
        rope(config, latent.turned), head_dim, interleaved=flag(config, "rope_interleave", True)
    )
    return replace(
        spec,
        biases=frozenset(),
        ropes=(turning,),
        latent=latent,
        score_scale=_score_scale(config, head_dim),
        storage=Storage(
            names={} if latent.query_rank is None else _names_of_queries(spec),
            head_rows=order,
        ),
    )


def _latent(config: Config) -> LatentAttention:
    query_rank = config.get("q_lora_rank")
    latent = LatentAttention(
        rank=positive(config, "kv_lora_rank"),
        plain=positive(config, "qk_nope_head_dim", limit=_MAX_WIDTH),
        turned=positive(config, "qk_rope_head_dim", limit=_MAX_WIDTH),
        values=positive(config, "v_head_dim", limit=_MAX_WIDTH),
        query_rank=None if query_rank is None else positive(config, "q_lora_rank"),
    )
    if latent.plain % 2 or latent.turned % 2:
        raise CheckpointError(
            f"config.json: of key heads qk_nope_head_dim {latent.plain} and qk_rope_head_dim "
            f"{latent.turned} elements are plain and turned; expected even numbers"
        )
    return latent


def _names_of_queries(spec: DecoderSpec) -> dict[str, str]:
    modules = [f"model.layers.{layer}.self_attn" for layer in range(spec.num_layers)]
    return {f"{module}.q_proj.weight": f"{module}.q_b_proj.weight" for module in modules}


def _score_scale(config: Config, head_dim: int) -> float:
    """With YaRN scores are multiplied by what all dimensions are said to be scaled by, twice."""
    scaling = section(config, "rope_parameters") or section(config, "rope_scaling")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    scale = float(head_dim**-0.5)
    if kind == "default" or not scaling.get("mscale_all_dim"):
        return scale
    factor = number(scaling, "factor")
    growth = 0.1 * number(scaling, "mscale_all_dim") * math.log(factor) if factor > 1 else 0.0
    return scale * (1 + growth) ** 2


def _feed_forward(config: Config, num_layers: int) -> list[FeedForward]:
    count, top_k = experts_chosen(config, "n_routed_experts")
    width = positive(config, "moe_intermediate_size")
    shared = positive(config, "n_shared_experts") if config.get("n_shared_experts") else 0
    experts = Experts(
        count=count,
        top_k=top_k,
        width=width,
        normalise=False,
        scale=number(config, "routed_scaling_factor", 1.0),
        shared=SharedExpert(shared * width, "mlp.shared_experts", gate=None) if shared else None,
    )
    first = config.get("first_k_dense_replace", 0)
    if type(first) is not int or not 0 <= first <= num_layers:
        raise CheckpointError(
            f"config.json: 'first_k_dense_replace' is {first!r} and must be a whole number from 0 "
            f"to the {num_layers} layers that there are"
        )
    dense = Dense(positive(config, "intermediate_size"))
    return [dense if layer < first else experts for layer in range(num_layers)]


ARCHITECTURE = describe
