"""Granite 3 (dense): Llama with factors on embedding, residuals, scores and logits.

The factor of what a layer adds is the same everywhere, so the whole residual stream is kept divided
by it: every part begins with a norm, which does not see that but for its epsilon. Then only the
embedding and the last norm have factors, and those go into their weights.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import number
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``granite``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = multiplied(
        llama.describe(config),
        embedding=number(config, "embedding_multiplier", 1.0),
        residual=number(config, "residual_multiplier", 1.0),
        logits=1 / number(config, "logits_scaling", 1.0),
    )
    scale = number(config, "attention_multiplier", 1.0)
    return replace(spec, architecture="granite", score_scale=scale)


def multiplied(
    spec: DecoderSpec, *, embedding: float, residual: float, logits: float
) -> DecoderSpec:
    """The same decoder with factors, none of which needs a node.

    Args:
        spec: the decoder.
        embedding: factor of embedded tokens.
        residual: of what each part of a layer adds.
        logits: of logits.
    """
    embedding = embedding / residual
    # The head reads the embedding's weights with their factor, which the norm before takes back.
    last = logits / embedding if spec.tied else logits
    factors = {spec.embedding_weight: embedding, spec.final_norm_weight: last}
    own = {name: value for name, value in factors.items() if value != 1}
    return replace(
        spec,
        norm_eps=spec.norm_eps / residual**2,
        storage=replace(spec.storage, factors={**spec.storage.factors, **own}),
    )


ARCHITECTURE = describe
