"""Flint: Qwen3 MoE with sigmoids in the router, sinks, and rope where there is a window (2026)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.fields import positive, typed_windows
from edgerun_export.architectures.decoder.layer import Experts, SharedExpert
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage
from edgerun_export.architectures.experts import qwen3_moe

# FlintConfig's, where what is reused has others or none.
_USUAL = {
    "head_dim": 128,
    "num_key_value_heads": 4,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 6,
    "norm_topk_prob": True,
    "mlp_only_layers": [0, 1],
}
_SINKS, _STORED_SINKS = "self_attn.sinks", "self_attn.softmax_offset"


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``flint``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    said = _USUAL | {key: value for key, value in config.items() if value is not None}
    spec = qwen3_moe.describe({**said, "use_sliding_window": False})
    last = spec.num_layers - 1
    slides = [layer >= 2 and layer % 4 != 1 and layer != last for layer in range(spec.num_layers)]
    windows = typed_windows({**config, **said}, positive(said, "sliding_window", 513), slides)
    shared = SharedExpert(positive(said, "shared_expert_intermediate_size", 1024), gate="")
    parts = [layer.feed_forward for layer in spec.layers]
    spec = spec.with_feed_forward(
        [
            replace(part, scoring="sigmoid", shared=shared) if isinstance(part, Experts) else part
            for part in parts
        ]
    )
    layers = [f"model.layers.{layer}." for layer in range(spec.num_layers)]
    return replace(
        spec.with_windows(windows).with_ropes([0 if window else None for window in windows]),
        architecture="flint",
        sinks=_SINKS,
        storage=Storage(names={f"{layer}{_SINKS}": f"{layer}{_STORED_SINKS}" for layer in layers}),
    )


ARCHITECTURE = describe
