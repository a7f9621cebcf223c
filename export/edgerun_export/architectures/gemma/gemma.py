"""Gemma 1 and CodeGemma: Llama with norms stored less one and a scaled embedding (2024)."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import activation, flag
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage
from edgerun_export.architectures.gemma.parts import like_llama, stored_factors

_ACTIVATION = "gelu_pytorch_tanh"


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``gemma``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    if flag(config, "use_bidirectional_attention"):
        raise UnsupportedError("gemma checkpoints with bidirectional attention are not supported")
    said = config.get("hidden_act") or _ACTIVATION
    act = _ACTIVATION if said == "gelu" else said  # what it means in the first releases
    ropes = {key: config.get(key) for key in ("rope_parameters", "rope_scaling")}
    plain = {**like_llama(config, head_dim=256, kv_heads=16, context=8192), **ropes}
    spec = llama.describe({**plain, "hidden_act": act})
    return replace(
        spec,
        architecture="gemma",
        activation=activation({"hidden_act": act}),
        biases=declared_biases(config, ("attention_bias",)),
        storage=Storage(factors=stored_factors(spec), norm_offset=1.0),
    )


ARCHITECTURE = describe
