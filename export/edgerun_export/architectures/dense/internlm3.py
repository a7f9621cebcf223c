"""InternLM3 8B: Llama, whose biases have keys of other names (2025)."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import flag, number
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec

# By what transformers calls them, what released configurations do.
_KEYS = {"attention_bias": "qkv_bias", "mlp_bias": "bias"}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``internlm3``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    said = {key: flag(config, key, flag(config, old)) for key, old in _KEYS.items()}
    if len({*said.values()}) > 1:
        raise UnsupportedError(
            "internlm3 checkpoints with biases in attention alone, or in networks alone (qkv_bias "
            "and bias), are not supported"
        )
    return replace(
        llama.describe({"head_dim": 128, "num_key_value_heads": 2, **config, **said}),
        architecture="internlm3",
        norm_eps=number(config, "rms_norm_eps", 1e-5),
    )


ARCHITECTURE = describe
