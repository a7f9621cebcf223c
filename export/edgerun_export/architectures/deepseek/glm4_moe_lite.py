"""GLM 4.7 Flash: attention and experts of DeepSeek V3's kind, and layers listed by type."""

from __future__ import annotations

from edgerun_export.architectures.decoder.fields import sparse_layers
from edgerun_export.architectures.decoder.latent import with_latent_attention
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.deepseek.deepseek_v3 import with_experts


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``glm4_moe_lite``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = with_latent_attention({"rms_norm_eps": 1e-5, **config})
    usual = [False] + [True] * (spec.num_layers - 1)
    return with_experts(spec, config, sparse_layers(config, usual))


ARCHITECTURE = describe
