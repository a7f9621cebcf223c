"""Falcon H1: a state space beside attention in every layer, and factors on all that is added.

The factors are in the weights: what multiplies an input or an output of a projection multiplies its
rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from edgerun.errors import CheckpointError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import (
    check_off,
    flag,
    nullable_flag,
    number,
    positive,
)
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.state_space import StateSpace
from edgerun_export.architectures.decoder.storage import Factor, Storage
from edgerun_export.architectures.state_spaces.parts import (
    expanded,
    renamed,
    state_space,
    with_state_spaces,
)

_NAME = "falcon_h1"
# FalconH1Config's, where what is reused has others.
_USUAL = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "intermediate_size": 14336,
    "rms_norm_eps": 1e-5,
}
_INNER = 1024
_NULLABLE = ("mamba_norm_before_gate", "mamba_conv_bias")  # flags whose null means no
_PARTS = ("z", "x", "B", "C", "dt")  # that ssm_multipliers are of
_NAMES = {f"mlp.{each}": f"feed_forward.{each}" for each in ("gate_proj", "up_proj", "down_proj")}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``falcon_h1``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    is_stated = config.get("mamba_d_ssm", _INNER) is not None
    said = {k: value for k, value in config.items() if value is not None or k in _NULLABLE}
    config = {**_USUAL, **said}
    check_off(config, _NAME, ("attention_bias", "mlp_bias", "projectors_bias"))
    plain = llama.describe(config)
    stated = positive(config, "mamba_d_ssm", _INNER)
    inner = stated if is_stated else expanded(config, plain.hidden_size)
    space = state_space(config, _NAME, inner, plain.norm_eps)
    space = replace(space, is_beside=True, norm=_norm(config))
    names = {plain.final_norm_weight: "model.final_layernorm.weight"}
    spec = replace(
        plain,
        architecture=_NAME,
        feed_forward_norm="pre_ff_layernorm",
        storage=Storage(
            names=names | renamed(plain, _NAMES), factors=_factors(config, plain, space)
        ),
    )
    return with_state_spaces(spec, [space] * spec.num_layers)


def _norm(config: Config) -> Literal["behind", "before", ""]:
    if not flag(config, "mamba_rms_norm"):
        return ""
    return "before" if nullable_flag(config, "mamba_norm_before_gate") else "behind"


def _factors(config: Config, spec: DecoderSpec, space: StateSpace) -> dict[str, Factor]:
    """What the values of tensors, or their rows, are multiplied by."""

    def factor(name: str) -> float:
        return number(config, f"{name}_multiplier", 1.0)

    z, x, b, c, dt = _listed(config, "ssm_multipliers", len(_PARTS))
    gate, down = _listed(config, "mlp_multipliers", 2)
    attention, ssm = factor("attention_in"), factor("ssm_in")
    of_xbc = np.repeat([x, b, c], [space.inner, space.keys, space.keys]) * ssm
    of_layer: dict[str, Factor] = {
        "self_attn.q_proj": attention,
        "self_attn.k_proj": attention * factor("key"),
        "self_attn.v_proj": attention,
        "self_attn.o_proj": factor("attention_out"),
        f"{space.module}.in_proj_z": z * ssm,
        f"{space.module}.in_proj_xbc": tuple(of_xbc.tolist()),
        f"{space.module}.in_proj_dt": dt * ssm,
        f"{space.module}.out_proj": factor("ssm_out"),
        "mlp.gate_proj": gate,
        "mlp.down_proj": down,
    }
    embedding, logits = factor("embedding"), factor("lm_head")
    # The head reads the embedding's weights with their factor, which the norm before takes back.
    whole: dict[str, Factor] = {spec.embedding_weight: embedding}
    if spec.tied:
        whole[spec.final_norm_weight] = logits / embedding
    else:
        whole[spec.head_weight] = logits
    for layer in range(spec.num_layers):
        whole |= {f"model.layers.{layer}.{path}.weight": each for path, each in of_layer.items()}
    return {name: each for name, each in whole.items() if each != 1}


def _listed(config: Config, key: str, count: int) -> list[float]:
    values = config.get(key, [1.0] * count)
    if not isinstance(values, list) or len(values) != count:
        raise CheckpointError(
            f"config.json: '{key}' is {str(values)[:60]} and must be a list of {count} numbers"
        )
    return [number({key: value}, key) for value in values]


ARCHITECTURE = describe
