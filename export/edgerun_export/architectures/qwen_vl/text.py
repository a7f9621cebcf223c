"""What describes the text models, which transformers has as parts of others alone."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import qwen2, qwen3
from edgerun_export.architectures.decoder.fields import number
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.experts import qwen3_moe
from edgerun_export.architectures.qwen_vl.mrope import of_text

# Defaults of transformers' Qwen2VLTextConfig and Qwen2_5_VLTextConfig that Qwen2Config has not.
_WINDOWS = {"max_window_layers": 80, "sliding_window": 4096}
_QWEN2_EPSILON, _QWEN2_THETA = 1e-5, 1000000.0
_QWEN3_THETA = 500000.0  # of Qwen3VLTextConfig and Qwen3VLMoeTextConfig


def of_qwen2(config: Config) -> DecoderSpec:
    """Describes the text model of Qwen2-VL or Qwen2.5-VL: Qwen 2 with M-RoPE.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    config = of_text({**_WINDOWS, **config})
    spec = qwen2.describe(config)
    return replace(
        spec,
        norm_eps=number(config, "rms_norm_eps", _QWEN2_EPSILON),
        ropes=(rope(config, spec.head_dim, _QWEN2_THETA),),
    )


def of_qwen3(config: Config) -> DecoderSpec:
    """Describes the text model of Qwen3-VL: Qwen 3 with M-RoPE, and without windows.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    config = of_text({**config, "use_sliding_window": False})
    spec = qwen3.describe(config)
    return replace(spec, ropes=(rope(config, spec.head_dim, _QWEN3_THETA),))


def of_qwen3_moe(config: Config) -> DecoderSpec:
    """Describes the text model of Qwen3-VL with experts, likewise.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    if config.get("norm_topk_prob") is False:
        raise UnsupportedError(
            "qwen3_vl_moe checkpoints with a norm_topk_prob of false are not supported: "
            "transformers lets the weights of experts add up to 1 whatever it is"
        )
    plain = {**config, "norm_topk_prob": True, "use_sliding_window": False}
    config = of_text(plain)
    spec = qwen3_moe.describe(config)
    return replace(spec, ropes=(rope(config, spec.head_dim, _QWEN3_THETA),))
