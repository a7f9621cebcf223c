"""Sarvam 30B A2.4B: the layers of GLM 4.5 under other names, heads turned whole (2026)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.fields import flag
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.deepseek import glm4_moe
from edgerun_export.architectures.deepseek.bailing_moe import QKV, stored_names

# By what GLM 4.5 calls them, the keys of config.json.
_KEYS = {
    "n_routed_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
    "num_nextn_predict_layers": "num_mtp_layers",
    "attention_bias": "use_qkv_bias",
}
_USUAL = {
    "head_dim": 64,
    "num_key_value_heads": 4,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1024,
    "n_routed_experts": 128,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-6,
}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``sarvam_moe``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    said = {key: value for key, value in config.items() if value is not None}
    said |= {own: said[key] for own, key in _KEYS.items() if key in said}
    is_normed = flag(config, "use_qk_norm", True)
    spec = glm4_moe.describe({**_USUAL, **said, "use_qk_norm": False})
    return replace(
        spec,
        ropes=(rope(config, spec.head_dim, default_theta=8000000.0),),
        q_norm="attention.query_layernorm" if is_normed else None,
        k_norm="attention.key_layernorm" if is_normed else None,
        storage=replace(
            spec.storage,
            joined={"attention.query_key_value": QKV},
            names=stored_names(spec),
            head_rows=None,
        ),
    )


ARCHITECTURE = describe
