"""Ministral 3: Mistral with YaRN, and scores that grow with positions beyond the original context.

A bundle has the original context, within which those scores are the usual ones.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import number, positive, said_of_rope, says_of_rope
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec

_DEFAULT = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``ministral3``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    nothing = {"rope_type": "default"} if says_of_rope(config) else _DEFAULT
    parameters = said_of_rope(config) or nothing
    config = {**config, "rope_parameters": parameters, "rope_scaling": None}
    spec = llama.describe({"head_dim": 128, **config})
    if config.get("sliding_window") is not None:
        spec = spec.with_windows([positive(config, "sliding_window")] * spec.num_layers)
    return replace(
        within_original(spec, parameters),
        architecture="ministral3",
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        ropes=(rope(config, spec.head_dim),),
        biases=frozenset(),
    )


def within_original(spec: DecoderSpec, parameters: Config) -> DecoderSpec:
    """The same decoder; where scores grow with positions, with the context where they do not yet.

    Args:
        spec: the decoder.
        parameters: what is said of its rope.

    Raises:
        CheckpointError: the original context is out of range.
    """
    context = spec.context_length
    original = positive(parameters, "original_max_position_embeddings", context)
    if not parameters.get("llama_4_scaling_beta") or original >= context:
        return spec
    note = (
        f"the context is {original} tokens: for longer ones, up to {context}, this model scales "
        "its attention by position, which has no operator"
    )
    return replace(spec, context_length=original, notes=(note,))


ARCHITECTURE = describe
