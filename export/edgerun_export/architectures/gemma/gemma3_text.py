"""Gemma 3 (text): norms before and after, windows with a rope of their own, a scaled embedding."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import (
    activation,
    flag,
    number,
    positive,
    typed_windows,
)
from edgerun_export.architectures.decoder.rope import rope_of_type
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage

_GLOBAL_THETA, _LOCAL_THETA = 1000000.0, 10000.0


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``gemma3_text``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(key) is not None:
            raise UnsupportedError(f"gemma3 checkpoints with {key} are not supported")
    if flag(config, "use_bidirectional_attention"):
        raise UnsupportedError("gemma3 checkpoints with bidirectional attention are not supported")
    plain = {
        **config,
        "hidden_act": config.get("hidden_activation") or "gelu_pytorch_tanh",
        "head_dim": positive(config, "head_dim", 256),
        "rope_parameters": None,
        "rope_scaling": None,
        "tie_word_embeddings": flag(config, "tie_word_embeddings", True),
    }
    spec = llama.describe(plain)
    pattern = positive(config, "sliding_window_pattern", 6)
    slides = [(layer + 1) % pattern != 0 for layer in range(spec.num_layers)]
    spec = spec.with_windows(
        typed_windows(config, positive(config, "sliding_window", 4096), slides)
    )
    root = float(spec.hidden_size) ** 0.5
    factors = {spec.embedding_weight: root}
    if spec.tied:
        factors[spec.final_norm_weight] = 1 / root
    return replace(
        spec.with_ropes([1 if layer.window else 0 for layer in spec.layers]),
        architecture="gemma3_text",
        activation=activation(plain),
        ropes=(
            rope_of_type(config, "full_attention", spec.head_dim, _GLOBAL_THETA),
            rope_of_type(config, "sliding_attention", spec.head_dim, _LOCAL_THETA),
        ),
        biases=declared_biases(config, ("attention_bias",)),
        score_scale=number(config, "query_pre_attn_scalar", 256) ** -0.5,
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        attention_out_norm="post_attention_layernorm",
        feed_forward_norm="pre_feedforward_layernorm",
        feed_forward_out_norm="post_feedforward_layernorm",
        storage=Storage(factors=factors, norm_offset=1.0),
    )


ARCHITECTURE = describe
