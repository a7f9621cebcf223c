"""GLM 4.7 Flash: attention and experts of DeepSeek V3's kind, and layers listed by type."""

from __future__ import annotations

from edgerun.errors import CheckpointError
from edgerun_export.architectures.decoder.fields import names
from edgerun_export.architectures.decoder.latent import with_latent_attention
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.deepseek.deepseek_v3 import with_experts

_TYPES = ("dense", "sparse")


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``glm4_moe_lite``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = with_latent_attention({"rms_norm_eps": 1e-5, **config})
    types = names(config, "mlp_layer_types")
    types = types or ["dense"] + ["sparse"] * (spec.num_layers - 1)
    if len(types) != spec.num_layers or not {*types} <= {*_TYPES}:
        raise CheckpointError(
            f"config.json: mlp_layer_types must be {spec.num_layers} times 'dense' or 'sparse', "
            f"not {types[:8]}"
        )
    return with_experts(spec, config, [kind == "sparse" for kind in types])


ARCHITECTURE = describe
