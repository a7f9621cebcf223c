"""Arcee AFM 4.5B: Llama whose networks have squared ReLU and no gate (2025)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import check_activation, number, positive
from edgerun_export.architectures.decoder.layer import Dense
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``arcee``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    check_activation(config, "arcee", "relu2")
    spec = llama.describe({**config, "hidden_act": "relu"})  # times what it is made of: squared
    network = Dense(positive(config, "intermediate_size"), gated=False)
    return replace(
        spec.with_feed_forward([network] * spec.num_layers),
        architecture="arcee",
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        biases=spec.biases - {"gate_proj"},
    )


ARCHITECTURE = describe
