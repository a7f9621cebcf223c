"""IQuest Coder 7B to 40B: Llama with heads of a size of their own (2026)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import check_off, number
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``iquestcoder``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    check_off(config, "iquestcoder", ("clip_qkv", "use_sliding_window"))
    # Null means that heads share the width, an absent key the class's own.
    spec = llama.describe({"head_dim": 128, "num_key_value_heads": 8, **config})
    eps = number(config, "rms_norm_eps", 1e-5)
    return replace(spec, architecture="iquestcoder", norm_eps=eps)


ARCHITECTURE = describe
