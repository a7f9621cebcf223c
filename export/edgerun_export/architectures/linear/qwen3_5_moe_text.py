"""Text models of Qwen3.5 with experts, by themselves (35B A3B, 122B A10B, 397B A17B)."""

from __future__ import annotations

from edgerun_export.architectures.decoder.fields import experts_chosen, positive
from edgerun_export.architectures.decoder.layer import Experts
from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.linear.parts import hybrid, shared_expert
from edgerun_export.architectures.linear.qwen3_5_text import ALONE
from edgerun_export.architectures.qwen_vl.layouts import INSIDE

# Qwen3_5MoeTextConfig's.
_USUAL = {"num_experts": 256, "num_experts_per_tok": 8}
_WIDTH = 512


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``qwen3_5_moe_text``, whose layers all have experts.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    config = {**_USUAL, **{key: value for key, value in config.items() if value is not None}}
    width = positive(config, "moe_intermediate_size", _WIDTH)
    spec = hybrid({**config, "intermediate_size": width}, "qwen3_5_moe_text")
    count, top_k = experts_chosen(config, "num_experts")
    # Weights of experts add up to 1 whatever config.json says (``Qwen3_5MoeTopKRouter``).
    part = Experts(count=count, top_k=top_k, width=width, normalise=True)
    part = shared_expert(part, positive(config, "shared_expert_intermediate_size", _WIDTH))
    return spec.with_feed_forward([part] * spec.num_layers)


ARCHITECTURE = Multimodal(
    texts={"qwen3_5_moe_text": describe}, layouts=(ALONE, INSIDE), is_flat=True
)
