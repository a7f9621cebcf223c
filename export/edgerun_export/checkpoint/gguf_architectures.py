"""Architectures as GGUF files name them, and what those files leave to the name.

Source: llama.cpp's ``llama-arch.cpp``, ``llama-model.cpp`` and ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Experts:
    """How a model with experts is described to Hugging Face.

    Attributes:
        module: path of a layer's experts.
        names: of an expert's gate, up and down projection.
        router: what the router is called.
        count_key: configuration key of their number.
        width_key: configuration key of their width, and the one of GGUF.
        normalises: whether the scores of those that are chosen add up to 1.
    """

    module: str = "mlp"
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    count_key: str = "num_experts"
    width_key: tuple[str, str] = ("intermediate_size", "feed_forward_length")
    normalises: bool = True
    router: str = "gate"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One value of ``general.architecture``.

    Attributes:
        model_type: Hugging Face ``model_type``.
        class_name: entry of ``architectures``.
        pairs_interleaved: whether llama.cpp's converter interleaves the rows of Q and K.
        extra: configuration that GGUF leaves to the architecture.
        experts: what its layers have; None for those of dense models.
        tensors: names in a layer that other architectures do not have, without their suffix, and
            Hugging Face's.
        rope: parameters of YaRN that GGUF leaves to the architecture.
        windows: whether some layers have a sliding window.
    """

    model_type: str
    class_name: str
    pairs_interleaved: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    experts: Experts | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)
    rope: Mapping[str, Any] = field(default_factory=dict)
    windows: bool = False


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", True, {"hidden_act": "silu"}),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", False, {"hidden_act": "silu"}),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", False, {"hidden_act": "silu"}),
    # Upstream's graph uses SiLU (the 1bitLLM reproductions), bitnet.cpp's b1.58 squared ReLU.
    "bitnet": Architecture("bitnet", "BitNetForCausalLM", False, {"hidden_act": "silu"}),
    "bitnet-b1.58": Architecture("bitnet", "BitNetForCausalLM", False, {"hidden_act": "relu2"}),
    "olmoe": Architecture(
        "olmoe", "OlmoeForCausalLM", False, {"hidden_act": "silu"}, Experts(normalises=False)
    ),
    "qwen3moe": Architecture(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        False,
        {"hidden_act": "silu"},
        Experts(width_key=("moe_intermediate_size", "expert_feed_forward_length")),
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        "GptOssForCausalLM",
        False,
        {"hidden_act": "silu", "attention_bias": True},
        Experts(
            count_key="num_local_experts",
            width_key=("intermediate_size", "expert_feed_forward_length"),
            router="router",
        ),
        {"attn_sinks": "self_attn.sinks", "post_attention_norm": "post_attention_layernorm"},
        {"truncate": False},
        windows=True,
    ),
}
# What llama.cpp calls llama, too.
MIXTRAL = Architecture(
    "mixtral",
    "MixtralForCausalLM",
    True,
    {"hidden_act": "silu"},
    Experts("block_sparse_moe", ("w1", "w3", "w2"), "num_local_experts"),
)
