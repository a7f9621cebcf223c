"""Hy3: norms of heads, and experts as DeepSeek V3 has them (Tencent 2026).

Source: transformers 5.24, ``modular_hy_v3.py``; what released models call their tensors is in its
``conversion_mapping.py``.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import (
    check_off,
    number,
    positive,
    sparse_layers,
)
from edgerun_export.architectures.decoder.layer import Dense
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import MTP_LEFT_OUT, Storage
from edgerun_export.architectures.deepseek.afmoe import biased_experts

# HYV3Config's, where what is reused has others or none.
_USUAL = {
    **{"head_dim": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072},
    **{"moe_intermediate_size": 1536, "num_shared_experts": 1, "router_scaling_factor": 2.826},
}
_THETA = 11158840.0


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``hy_v3``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    check_off(config, "hy_v3", ("mlp_bias",))
    config = _USUAL | {key: value for key, value in config.items() if value is not None}
    spec = llama.describe(config)
    usual = [False] + [True] * (spec.num_layers - 1)
    experts = biased_experts(config, number(config, "router_scaling_factor"), "mlp.shared_mlp")
    dense = Dense(positive(config, "intermediate_size"))
    parts = [experts if sparse else dense for sparse in sparse_layers(config, usual)]
    predicting = f"model.layers.{spec.num_layers}."  # the layer behind the others
    return replace(
        spec.with_feed_forward(parts),
        architecture="hy_v3",
        ropes=(rope(config, spec.head_dim, default_theta=_THETA),),
        biases=declared_biases(config, ("attention_bias",)),
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        storage=Storage(unused=(predicting,), said_of_unused={predicting: MTP_LEFT_OUT}),
    )


ARCHITECTURE = describe
