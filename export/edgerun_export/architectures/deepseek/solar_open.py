"""Solar Open: Llama's attention, and experts in every layer, as DeepSeek V3 has them."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import flag, natural, number
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.deepseek.deepseek_v3 import with_experts

_USUAL = {"head_dim": 128, "n_shared_experts": 1, "routed_scaling_factor": 1.0}
_QKV = ("q_proj", "k_proj", "v_proj")


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``solar_open``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    said = _USUAL | {key: value for key, value in config.items() if value is not None}
    said = {"intermediate_size": said.get("moe_intermediate_size"), **said}  # of no layer
    spec = llama.describe(said)
    if flag(config, "use_qk_norm") or natural(config, "first_k_dense_replace", 0, limit=1024):
        raise UnsupportedError(
            "solar_open checkpoints with use_qk_norm or a first_k_dense_replace are not supported"
        )
    spec = replace(
        spec,
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        ropes=(rope(config, spec.head_dim, default_theta=1e6),),
        biases=frozenset(_QKV if flag(config, "attention_bias") else ()),
    )
    return with_experts(spec, said, [True] * spec.num_layers)


ARCHITECTURE = describe
