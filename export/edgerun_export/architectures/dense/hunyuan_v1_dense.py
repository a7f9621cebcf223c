"""Hunyuan 0.5B to 7B: Llama whose heads are normalised after the rope (2025)."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import CheckpointError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import number, said_of_rope
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``hunyuan_v1_dense``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = llama.describe({**config, "rope_parameters": None, "rope_scaling": None})
    return replace(
        spec,
        architecture="hunyuan_v1_dense",
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        ropes=(rope(_with_theta(config, spec.head_dim), spec.head_dim),),
        biases=declared_biases(config, ("attention_bias",)),
        q_norm="self_attn.query_layernorm",
        k_norm="self_attn.key_layernorm",
        norms_after_rope=True,
    )


def _with_theta(config: Config, head_dim: int) -> Config:
    """With the base that ``alpha`` stretches, where that is all of a scaling called dynamic.

    Source: transformers 5.24, ``HunYuanDenseV1RotaryEmbedding``; its frequencies are the same for
    texts of every length.
    """
    said = said_of_rope(config)
    kind = said.get("rope_type") or said.get("type")
    if kind != "dynamic" or not said.get("alpha"):
        return config
    if head_dim <= 2:
        raise CheckpointError(
            f"config.json: heads of {head_dim} elements cannot have a rope that 'alpha' stretches; "
            "expected a head_dim of 4 or more"
        )
    theta = number(said, "rope_theta", number(config, "rope_theta", 10000.0))
    theta *= number(said, "alpha") ** (head_dim / (head_dim - 2))
    return {**config, "rope_parameters": None, "rope_scaling": None, "rope_theta": theta}


ARCHITECTURE = describe
