"""Gemma 2: bounded scores and logits, norms before and after, windows in every other layer."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import flag, number, positive, typed_windows
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage
from edgerun_export.architectures.gemma.parts import like_llama, softcap, stored_factors

_SCORES, _LOGITS = "attn_logit_softcapping", "final_logit_softcapping"
_USUAL_BOUNDS = {_SCORES: 50.0, _LOGITS: 30.0}  # of absent keys; null is no bound


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``gemma2``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    if flag(config, "use_bidirectional_attention"):
        raise UnsupportedError("gemma2 checkpoints with bidirectional attention are not supported")
    ropes = {key: config.get(key) for key in ("rope_parameters", "rope_scaling")}
    plain = {**like_llama(config, head_dim=256, kv_heads=4, context=8192), **ropes}
    spec = llama.describe(plain)
    windows = typed_windows(
        config,
        positive(config, "sliding_window", 4096),
        [layer % 2 == 0 for layer in range(spec.num_layers)],
    )
    bounds = {**_USUAL_BOUNDS, **config}
    return replace(
        spec.with_windows(windows),
        architecture="gemma2",
        attention_out_norm="post_attention_layernorm",
        feed_forward_norm="pre_feedforward_layernorm",
        feed_forward_out_norm="post_feedforward_layernorm",
        softcap=softcap(bounds, _LOGITS),
        score_softcap=softcap(bounds, _SCORES),
        score_scale=number(config, "query_pre_attn_scalar", 256) ** -0.5,
        storage=Storage(factors=stored_factors(spec), norm_offset=1.0),
    )


ARCHITECTURE = describe
