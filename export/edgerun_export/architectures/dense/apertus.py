"""Apertus 8B and 70B: networks without a gate, whose activation every layer has learned (2025)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import (
    check_activation,
    number,
    positive,
)
from edgerun_export.architectures.decoder.layer import Dense
from edgerun_export.architectures.decoder.rope import rope, with_llama3
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage
from edgerun_export.architectures.decoder.xielu import Xielu

# Of the rope that transformers takes where nothing is said.
_THETA, _FACTOR = 1.2e7, 8.0


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``apertus``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    check_activation(config, "apertus", "xielu")
    said = with_llama3(config, _THETA, _FACTOR)
    spec = llama.describe({**said, "hidden_act": "relu"})  # which no layer has
    curve = Xielu()
    network = Dense(positive(config, "intermediate_size"), gated=False, curve=curve)
    return replace(
        spec.with_feed_forward([network] * spec.num_layers),
        architecture="apertus",
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        ropes=(rope(said, spec.head_dim, default_theta=_THETA),),
        biases=declared_biases(config, ("attention_bias",)),
        input_norm="attention_layernorm",
        feed_forward_norm="feedforward_layernorm",
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        storage=_storage(spec.num_layers, curve),
    )


def _storage(layers: int, curve: Xielu) -> Storage:
    stored = {curve.square: "mlp.act_fn.alpha_p", curve.bend: "mlp.act_fn.alpha_n"}
    prefixes = [f"model.layers.{layer}." for layer in range(layers)]
    return Storage(
        names={prefix + own: prefix + name for prefix in prefixes for own, name in stored.items()},
        softplus=curve.softplus,
        constants={"mlp.act_fn.beta": curve.slope, "mlp.act_fn.eps": -1e-6},
    )


ARCHITECTURE = describe
