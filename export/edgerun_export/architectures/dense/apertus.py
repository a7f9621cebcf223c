"""Apertus 8B and 70B: networks without a gate, whose activation every layer has learned (2025)."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import number, positive, said_of_rope
from edgerun_export.architectures.decoder.layer import Dense
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage
from edgerun_export.architectures.decoder.xielu import Xielu

_ACTIVATION = "xielu"
_THETA = 1.2e7
# What transformers' ApertusConfig takes where nothing is said.
_USUAL_ROPE = {
    "rope_type": "llama3",
    "rope_theta": _THETA,
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``apertus``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    activation = config.get("hidden_act") or _ACTIVATION
    if activation != _ACTIVATION:
        raise UnsupportedError(
            f"apertus checkpoints with a hidden_act of '{activation}' are not supported; those "
            f"with {_ACTIVATION} are"
        )
    said = config if said_of_rope(config) else {**config, "rope_parameters": _USUAL_ROPE}
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
