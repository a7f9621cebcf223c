"""Granite 3 with windows and sinks, and ropes that differ from layer to layer."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.fields import (
    flag,
    layer_thetas,
    number,
    positive,
    said_of_rope,
    typed_windows,
)
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.scaled import granite


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``granite_swa``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    tied = flag(config, "tie_word_embeddings", True)
    eps = number(config, "rms_norm_eps", 1e-5)
    spec = granite.describe({**config, "tie_word_embeddings": tied, "rms_norm_eps": eps})
    return replace(with_sinks(spec, config), architecture="granite_swa")


def with_sinks(spec: DecoderSpec, config: Config) -> DecoderSpec:
    """The same decoder with sinks, windows in three of four layers, and ropes of each layer.

    A base of 0 in ``layer_rope_theta`` means no rope.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    slides = [layer % 4 != 0 for layer in range(spec.num_layers)]
    if config.get("sliding_window", 128) is not None:
        window = positive(config, "sliding_window", 128)
        spec = spec.with_windows(typed_windows(config, window, slides))
    spec = replace(spec, sinks="self_attn.sinks")
    thetas = layer_thetas(config, spec.num_layers)
    if thetas is None:
        return spec
    bases = [*dict.fromkeys(theta for theta in thetas if theta)]
    ropes = tuple(rope(_with_base(config, base), spec.head_dim) for base in bases)
    which = [bases.index(theta) if theta else None for theta in thetas]
    return replace(spec.with_ropes(which), ropes=ropes or spec.ropes)


def _with_base(config: Config, base: float) -> Config:
    said = {**said_of_rope(config), "rope_theta": base}
    return {**config, "rope_parameters": None, "rope_scaling": said}


ARCHITECTURE = describe
