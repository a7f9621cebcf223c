"""Attention whose keys and values are made of narrow rows, as config.json describes it."""

from __future__ import annotations

import math
from dataclasses import replace

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import (
    flag,
    nullable_flag,
    number,
    positive,
    said_of_rope,
)
from edgerun_export.architectures.decoder.layer import LatentAttention
from edgerun_export.architectures.decoder.rope import behind, rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage

_MAX_WIDTH = 4096  # of a part of a head, far beyond any model's


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
        rope(config, latent.turned), head_dim, interleaved=nullable_flag(config, "rope_interleave")
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
    scaling = said_of_rope(config)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    scale = float(head_dim**-0.5)
    if kind == "default" or not scaling.get("mscale_all_dim"):
        return scale
    factor = number(scaling, "factor")
    growth = 0.1 * number(scaling, "mscale_all_dim") * math.log(factor) if factor > 1 else 0.0
    return scale * (1 + growth) ** 2
