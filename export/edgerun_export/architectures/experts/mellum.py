"""Mellum 2 (JetBrains, 12B A2.5B): Qwen3 with experts, and windows with a rope of their own."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.fields import positive, sparse_layers, typed_windows
from edgerun_export.architectures.decoder.layer import Dense
from edgerun_export.architectures.decoder.rope import by_type_alone, rope_of_type
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import MTP_LEFT_OUT
from edgerun_export.architectures.experts import qwen3_moe

_GLOBAL_THETA, _LOCAL_THETA = 500000.0, 10000.0
_USUAL_ROPES = {
    "full_attention": {"rope_theta": _GLOBAL_THETA},
    "sliding_attention": {"rope_theta": _LOCAL_THETA},
}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``mellum``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    said = {key: value for key, value in config.items() if value is not None}
    plain = {**said, "rope_parameters": None, "rope_scaling": None, "use_sliding_window": False}
    spec = qwen3_moe.describe({"head_dim": 128, "norm_topk_prob": True, **plain})
    windows = typed_windows(
        config, positive(config, "sliding_window", 1024), [False] * spec.num_layers
    )
    network = Dense(positive(config, "intermediate_size", 7168))
    parts = [
        layer.feed_forward if is_sparse else network
        for layer, is_sparse in zip(
            spec.layers, sparse_layers(config, [True] * spec.num_layers), strict=True
        )
    ]
    spec = spec.with_windows(windows).with_feed_forward(parts)
    ropes = by_type_alone(config, _USUAL_ROPES)
    return replace(
        spec.with_ropes([1 if window else 0 for window in windows]),
        architecture="mellum",
        ropes=(
            rope_of_type(ropes, "full_attention", spec.head_dim, _GLOBAL_THETA),
            rope_of_type(ropes, "sliding_attention", spec.head_dim, _LOCAL_THETA),
        ),
        storage=replace(spec.storage, unused=("mtp.",), said_of_unused={"mtp.": MTP_LEFT_OUT}),
    )


ARCHITECTURE = describe
