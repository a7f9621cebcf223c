"""BitNet b1.58 with experts in some layers or all, as ``tools/train_default`` trains them.

Attention and dense layers are BitNet's. Experts are ternary networks without the norm before the
down projection, and config.json says of them what Qwen 3's does.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import bitnet
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.experts.qwen3_moe import feed_forward


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``bitnet_moe``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = bitnet.describe(config)
    return replace(
        spec.with_feed_forward(feed_forward(config, spec.num_layers)), architecture="bitnet_moe"
    )


ARCHITECTURE = describe
