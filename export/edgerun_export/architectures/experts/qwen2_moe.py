"""Qwen 1.5 and 2 with experts, one of which all tokens go through (Qwen1.5 MoE A2.7B)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import flag, natural, positive, typed_windows
from edgerun_export.architectures.decoder.layer import Experts, SharedExpert
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.experts.qwen3_moe import feed_forward

_MAX_LAYERS = 1 << 16  # far beyond any model's
BIASES = frozenset({"q_proj", "k_proj", "v_proj"})


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``qwen2_moe``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = llama.describe(config)
    if flag(config, "use_sliding_window") and config.get("sliding_window", 4096) is not None:
        window = positive(config, "sliding_window", 4096)
        last = natural(config, "max_window_layers", 28, limit=_MAX_LAYERS)
        slides = [layer % 2 == 0 and layer < last for layer in range(spec.num_layers)]
        spec = spec.with_windows(typed_windows(config, window, slides))
    shared = SharedExpert(positive(config, "shared_expert_intermediate_size"))
    parts = [
        replace(part, shared=shared) if isinstance(part, Experts) else part
        for part in feed_forward(config, spec.num_layers)
    ]
    return replace(
        spec.with_feed_forward(parts),
        architecture="qwen2_moe",
        biases=BIASES if flag(config, "qkv_bias", True) else frozenset(),
    )


ARCHITECTURE = describe
