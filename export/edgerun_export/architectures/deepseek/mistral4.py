"""Mistral Small 4 119B A6B: DeepSeek V3's attention, experts chosen by a softmax (Mistral 2026).

Scores grow with positions beyond the original context, as those of Ministral 3 do; a bundle has the
original context, within which they are the usual ones.

Source: transformers 5.24, ``modular_mistral4.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures.decoder.fields import (
    flag,
    natural,
    number,
    positive,
    said_of_rope,
)
from edgerun_export.architectures.decoder.latent import with_latent_attention
from edgerun_export.architectures.decoder.layer import Dense, FeedForward
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.deepseek.deepseek_v2 import expert_groups, experts_beside_shared
from edgerun_export.architectures.ministral3 import within_original

# Mistral4Config's; a longest text of its own it takes from beside them.
_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_PART = "partial_rotary_factor"


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``mistral4``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    parameters = dict(said_of_rope(config) or _ROPE)
    _check_part(config, parameters.pop(_PART, None))
    said = {**config, "rope_parameters": parameters, "rope_scaling": None, _PART: None}
    said["max_position_embeddings"] = positive(config, "max_position_embeddings", 1048576)
    spec = with_latent_attention(said)
    if expert_groups(config, (1, 1), best=2) is not None:
        raise UnsupportedError(
            f"mistral4 checkpoints that choose topk_group {config.get('topk_group')} of n_group "
            f"{config['n_group']} groups of experts are not supported; those with one group are"
        )
    first = natural(config, "first_k_dense_replace", 0, limit=spec.num_layers)
    experts = replace(
        experts_beside_shared({"n_shared_experts": 1, **config}),
        normalise=flag(config, "norm_topk_prob", True),
    )
    parts: list[FeedForward] = [Dense(positive(config, "intermediate_size"))] * first
    parts += [experts] * (spec.num_layers - first)
    spec = within_original(spec.with_feed_forward(parts), parameters)
    return replace(spec, architecture="mistral4")


def _check_part(config: Config, said: Any) -> None:
    """Refuses a rope that turns other elements than those of which ``config`` says so.

    Raises:
        CheckpointError: it does.
    """
    part = {_PART: config.get(_PART) if said is None else said}
    turned = positive(config, "qk_rope_head_dim")
    width = turned + positive(config, "qk_nope_head_dim")
    if part[_PART] is not None and round(number(part, _PART) * width) != turned:
        raise CheckpointError(
            f"config.json: a {_PART} of {part[_PART]} turns others than the qk_rope_head_dim "
            f"{turned} of {width} elements of a head; leave it out"
        )


ARCHITECTURE = describe
