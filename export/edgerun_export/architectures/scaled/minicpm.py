"""MiniCPM 1B and 2B, MiniCPM4 0.5B and 8B, MiniCPM4.1 8B: Llama with factors (Hu et al. 2024).

As OpenBMB's ``modeling_minicpm.py`` has them. MiniCPM4.1 may leave tokens of long texts out
(InfLLM v2); a bundle attends to all.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import flag, number, positive
from edgerun_export.architectures.decoder.rope import long_rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.scaled.granite import multiplied


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``minicpm``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    if config.get("num_experts"):
        raise UnsupportedError("minicpm checkpoints with experts are not supported")
    tied = flag(config, "tie_word_embeddings", True)
    plain = {"rope_scaling": None, "rope_parameters": None}
    spec = llama.describe({**config, **plain, "tie_word_embeddings": tied})
    turning, context = long_rope(config, spec.head_dim)
    notes: tuple[str, ...] = ()
    if context < spec.context_length:
        notes = (
            f"the context is {context} tokens: for longer ones, up to {spec.context_length}, this "
            "model has another rotary embedding, and a bundle has one",
        )
    spec = replace(
        spec,
        architecture="minicpm",
        context_length=min(context, spec.context_length),
        ropes=(turning,),
        notes=notes,
    )
    return with_factors(spec, config)


def with_factors(spec: DecoderSpec, config: Config) -> DecoderSpec:
    """The same decoder with MiniCPM's factors, which depend on its depth and width.

    Raises:
        CheckpointError: a key of config.json is out of range.
    """
    depth, width = spec.num_layers**0.5, spec.hidden_size
    return multiplied(
        spec,
        embedding=number(config, "scale_emb", 1.0),
        residual=number(config, "scale_depth", 1.0) / depth,
        logits=positive(config, "dim_model_base", 1) / width,
    )


ARCHITECTURE = describe
