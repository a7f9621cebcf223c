"""MiniCPM3 4B: MiniCPM's factors, keys and values made of narrow rows (OpenBMB 2024)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.fields import flag, number, positive
from edgerun_export.architectures.decoder.latent import with_latent_attention
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.scaled.minicpm import with_factors

# MiniCPM3Config's, where what is reused has others or none.
_USUAL = {
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "scale_emb": 12,
    "rope_interleave": False,
}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``minicpm3``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    said = {**_USUAL, **{key: value for key, value in config.items() if value is not None}}
    values = positive(config, "hidden_size") // positive(config, "num_attention_heads")
    own = {
        "v_head_dim": positive(config, "v_head_dim", max(values, 1)),
        "q_lora_rank": config.get("q_lora_rank", 768),
        "rms_norm_eps": number(config, "rms_norm_eps", 1e-5),
        "tie_word_embeddings": flag(config, "tie_word_embeddings", True),
    }
    spec = replace(with_latent_attention({**said, **own}), architecture="minicpm3")
    # Null means no factor, an absent key the class's own.
    depth, base = config.get("scale_depth", 1.4), config.get("dim_model_base", 256)
    depth = spec.num_layers**0.5 if depth is None else depth
    base = spec.hidden_size if base is None else base
    return with_factors(spec, {**said, "scale_depth": depth, "dim_model_base": base})


ARCHITECTURE = describe
