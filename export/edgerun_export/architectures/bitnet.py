"""BitNet b1.58: ternary projections, sub-norms, squared ReLU (Ma et al. 2024 and 2025)."""

from __future__ import annotations

from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import (
    activation,
    dimensions,
    flag,
    number,
    ternary_origin,
)
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``bitnet``.

    Without a ``quantization_config`` the weights are taken for the float master of a b1.58 model:
    nothing else is ever trained in this shape.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    sizes = dimensions(config)
    return DecoderSpec(
        architecture="bitnet",
        **sizes,
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        activation=activation(config, "relu2"),
        ropes=(rope(config, sizes["head_dim"], default_theta=500000.0),),
        tied=flag(config, "tie_word_embeddings"),
        biases=declared_biases(config, ("attention_bias",)),
        attention_sub_norm="self_attn.attn_sub_norm",
        mlp_sub_norm="mlp.ffn_sub_norm",
        ternary=ternary_origin(config, default="master"),
    )


ARCHITECTURE = describe
