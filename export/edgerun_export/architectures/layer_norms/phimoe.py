"""Phi-3.5 MoE 42B A6.6B and Phi mini MoE: experts that are scored one after the other (2024, 2025).

Source: transformers 5.24, ``modular_phimoe.py``. Of two choices each has a softmax of its own, over
what is close enough to it (Liu et al. 2024, GRIN). Long rope has one set of divisors for texts
within the original context and another for longer ones; a bundle has the first, and that context.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun.values import shown
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import (
    experts_chosen,
    flag,
    number,
    positive,
    said_of_rope,
)
from edgerun_export.architectures.decoder.layer import Experts
from edgerun_export.architectures.decoder.rope import long_rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.layer_norms.parts import described, gated

_CHOSEN = 2
_ROPES = ("default", "longrope")
_USUAL = {"rope_theta": 1000000.0, "num_key_value_heads": 8}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``phimoe``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    config = _USUAL | {key: value for key, value in config.items() if value is not None}
    spec = gated(described(config, "phimoe", epsilon="rms_norm_eps"), config)
    if "sliding_window" in config:
        spec = spec.with_windows([positive(config, "sliding_window")] * spec.num_layers)
    return replace(
        _with_rope(spec.with_feed_forward([_experts(config)] * spec.num_layers), config),
        biases=declared_biases(config, ("attention_bias",)),
        head_bias=flag(config, "lm_head_bias"),
        norm_biases=True,
    )


def _experts(config: Config) -> Experts:
    count, top_k = experts_chosen({"num_experts_per_tok": _CHOSEN, **config}, "num_local_experts")
    if top_k != _CHOSEN:
        raise UnsupportedError(
            f"phimoe checkpoints with num_experts_per_tok {top_k} are not supported; those with "
            f"{_CHOSEN} are, which is what transformers chooses whatever the key says"
        )
    return Experts(
        count=count,
        top_k=top_k,
        width=positive(config, "intermediate_size"),
        normalise=False,
        scoring="sparse_mixer",
        margin=2 * number(config, "router_jitter_noise", 0.01),
        module="block_sparse_moe",
        names=("w1", "w3", "w2"),
    )


def _with_rope(spec: DecoderSpec, config: Config) -> DecoderSpec:
    """The decoder with its rope, whose cosines and sines have factors of their own if it is long.

    Raises:
        CheckpointError: a parameter is missing or out of range.
        UnsupportedError: a scaling variant without an implementation.
    """
    parameters = said_of_rope(config)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in _ROPES:
        raise UnsupportedError(
            f"phimoe checkpoints with a rope of type {shown(kind)} are not supported; those with "
            f"{' or '.join(_ROPES)} are"
        )
    said = config
    if kind == "longrope":
        factor = {"attention_factor": number(parameters, "short_mscale")}
        said = {**config, "rope_parameters": {**parameters, **factor}, "rope_scaling": None}
    turning, context = long_rope(said, spec.head_dim)
    if context >= spec.context_length:
        return replace(spec, ropes=(turning,))
    note = (
        f"the context is {context} tokens: for longer ones, up to {spec.context_length}, this "
        "model has another rotary embedding, and a bundle has one"
    )
    return replace(spec, ropes=(turning,), context_length=context, notes=(note,))


ARCHITECTURE = describe
