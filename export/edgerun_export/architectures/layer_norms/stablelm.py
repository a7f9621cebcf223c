"""StableLM 3B, StableLM 2 1.6B and 12B, StableLM Zephyr: a quarter of heads is turned (2023)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.fields import flag
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.layer_norms.parts import (
    QKV,
    described,
    gated,
    turned_in_part,
    with_head_norms,
)

_HEADS = "qk_layernorm"  # StableLM 2 12B


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``stablelm``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = gated(described({**config, _HEADS: None}, "stablelm"), config)
    spec = with_head_norms(spec, config, _HEADS, "self_attn.{}_layernorm")
    is_parallel = flag(config, "use_parallel_residual")
    return replace(
        turned_in_part(spec, config, 0.25),
        biases=frozenset(QKV if flag(config, "use_qkv_bias") else ()),
        norm_biases=True,
        parallel=is_parallel,
        feed_forward_norm=spec.input_norm if is_parallel else spec.feed_forward_norm,
    )


ARCHITECTURE = describe
