"""Architectures as GGUF files name them, and what those files leave to the name.

Source: llama.cpp's ``llama-arch.cpp``, ``llama-model.cpp`` and ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.checkpoint.kinds.base import (
    NORMS_AFTER,
    SCORE_BIAS,
    SHARED_GATE,
    SHORT_CONV,
    Architecture,
    Experts,
)
from edgerun_export.checkpoint.kinds.deepseek import DEEPSEEK_KINDS
from edgerun_export.checkpoint.kinds.dense import DENSE_KINDS
from edgerun_export.checkpoint.kinds.layer_norms import LAYER_NORM_KINDS
from edgerun_export.checkpoint.kinds.linear import LINEAR_ATTENTION
from edgerun_export.checkpoint.kinds.state_spaces import ARCHITECTURES as STATE_SPACES
from edgerun_export.checkpoint.kinds.state_spaces import GRANITE_FACTORS

_GEMMA_INPUTS = {
    **NORMS_AFTER,
    "ffn_norm": "pre_feedforward_layernorm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_LFM2 = {
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "shortconv.conv": SHORT_CONV,
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", True, {"hidden_act": "silu"}),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", False, {"hidden_act": "silu"}),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", False, {"hidden_act": "silu"}),
    # Upstream's graph uses SiLU (the 1bitLLM reproductions), bitnet.cpp's b1.58 squared ReLU.
    "bitnet": Architecture("bitnet", "BitNetForCausalLM", False, {"hidden_act": "silu"}),
    "bitnet-b1.58": Architecture("bitnet", "BitNetForCausalLM", False, {"hidden_act": "relu2"}),
    # As the first files of BitNet b1.58 2B4T called it.
    "bitnet-25": Architecture("bitnet", "BitNetForCausalLM", False, {"hidden_act": "relu2"}),
    # Every fourth layer has no rope, which is the configuration's default.
    "smollm3": Architecture("smollm3", "SmolLM3ForCausalLM", True, {"hidden_act": "silu"}),
    "olmo2": Architecture(
        "olmo2", "Olmo2ForCausalLM", False, {"hidden_act": "silu"}, tensors=NORMS_AFTER
    ),
    # Granite 4 without experts and Mamba layers is written as Granite 3 is.
    "granite": Architecture(
        "granite",
        "GraniteForCausalLM",
        True,
        {"hidden_act": "silu"},
        factors=GRANITE_FACTORS,
    ),
    "granitemoe": Architecture(
        "granitemoe",
        "GraniteMoeForCausalLM",
        True,
        {"hidden_act": "silu"},
        Experts("block_sparse_moe", count_key="num_local_experts", router="router.layer"),
        factors=GRANITE_FACTORS,
    ),
    "phi3": Architecture(
        "phi3",
        "Phi3ForCausalLM",
        False,
        {"hidden_act": "silu"},
        tensors={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        long_rope=True,
        partial=True,
    ),
    "mistral3": Architecture(
        "ministral3",
        "Ministral3ForCausalLM",
        True,
        {"hidden_act": "silu"},
        factors={
            "attention.temperature_scale": "llama_4_scaling_beta",
            "rope.scaling.yarn_log_multiplier": "mscale",
        },
    ),
    "gemma": Architecture(
        "gemma",
        "GemmaForCausalLM",
        False,
        {"hidden_act": "gelu_pytorch_tanh"},
        norm_offset=1.0,
    ),
    "gemma2": Architecture(
        "gemma2",
        "Gemma2ForCausalLM",
        False,
        {"hidden_activation": "gelu_pytorch_tanh"},
        tensors={**NORMS_AFTER, "ffn_norm": "pre_feedforward_layernorm"},
        factors={key: key for key in ("attn_logit_softcapping", "final_logit_softcapping")},
        norm_offset=1.0,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        False,
        {"hidden_activation": "gelu_pytorch_tanh"},
        tensors={**NORMS_AFTER, "ffn_norm": "pre_feedforward_layernorm"},
        windows=True,
        own_keys=("rope.freq_base_swa",),
        norm_offset=1.0,
    ),
    "gemma3n": Architecture(
        "gemma3n_text",
        "Gemma3nForCausalLM",
        False,
        {"hidden_activation": "gelu_pytorch_tanh"},
        tensors={
            **_GEMMA_INPUTS,
            "altup_router": "altup.modality_router",
            "altup_router_norm": "altup.router_norm",
            "altup_predict_coef": "altup.prediction_coefs",
            "altup_correct_coef": "altup.correction_coefs",
            "altup_correct_scale": "altup.correct_output_scale",
            "laurel_l": "laurel.linear_left",
            "laurel_r": "laurel.linear_right",
            "laurel_post_norm": "laurel.post_laurel_norm",
        },
        windows=True,
        factors={"final_logit_softcapping": "final_logit_softcapping"},
        rows={
            "laurel_rank": "blk.0.laurel_l.weight",
            "vocab_size_per_layer_input": "per_layer_token_embd.weight",
        },
        own_keys=("rope.freq_base_swa",),
        by_layer=("feed_forward_length",),
    ),
    "gemma4": Architecture(
        "gemma4_text",
        "Gemma4ForCausalLM",
        False,
        {"hidden_activation": "gelu_pytorch_tanh"},
        tensors={**_GEMMA_INPUTS, "layer_output_scale": "layer_scalar"},
        windows=True,
        factors={"final_logit_softcapping": "final_logit_softcapping"},
        lacking={"attention_k_eq_v": ("attn_k.weight", "attn_v.weight")},
        own_keys=("rope.freq_base_swa",),
        by_layer=("feed_forward_length", "attention.head_count_kv"),
    ),
    # The width of the feed-forward part is written as it is.
    "lfm2": Architecture(
        "lfm2",
        "Lfm2ForCausalLM",
        False,
        {"block_auto_adjust_ff_dim": False, "conv_bias": False},
        tensors=_LFM2,
        convolutions=True,
        final_norm="model.embedding_norm",
    ),
    "lfm2moe": Architecture(
        "lfm2_moe",
        "Lfm2MoeForCausalLM",
        False,
        {"conv_bias": False},
        Experts(
            "feed_forward",
            ("w1", "w3", "w2"),
            width_key=("moe_intermediate_size", "expert_feed_forward_length"),
        ),
        {**_LFM2, "exp_probs_b": "feed_forward.expert_bias"},
        own_keys=("leading_dense_block_count", "expert_gating_func"),
        convolutions=True,
        final_norm="model.embedding_norm",
    ),
    "olmoe": Architecture(
        "olmoe", "OlmoeForCausalLM", False, {"hidden_act": "silu"}, Experts(normalises=False)
    ),
    "qwen2moe": Architecture(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        False,
        {"hidden_act": "silu"},
        Experts(
            width_key=("moe_intermediate_size", "expert_feed_forward_length"),
            normalises=False,
            has_shared=True,
        ),
        {
            "ffn_gate_inp_shexp": SHARED_GATE,
            "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
            "ffn_up_shexp": "mlp.shared_expert.up_proj",
            "ffn_down_shexp": "mlp.shared_expert.down_proj",
        },
    ),
    "qwen3moe": Architecture(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        False,
        {"hidden_act": "silu"},
        Experts(width_key=("moe_intermediate_size", "expert_feed_forward_length")),
    ),
    # All that it leaves out is the last layer with experts, which is the last of all.
    "ernie4_5-moe": Architecture(
        "ernie4_5_moe",
        "Ernie4_5_MoeForCausalLM",
        False,
        {"hidden_act": "silu", "use_bias": False},
        Experts(
            count_key="moe_num_experts",
            width_key=("moe_intermediate_size", "expert_feed_forward_length"),
        ),
        {
            "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
            "ffn_up_shexp": "mlp.shared_experts.up_proj",
            "ffn_down_shexp": "mlp.shared_experts.down_proj",
            "exp_probs_b": SCORE_BIAS,
        },
        own_keys=("leading_dense_block_count", "interleave_moe_layer_step", "expert_shared_count"),
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
    **DEEPSEEK_KINDS,
    **DENSE_KINDS,
    **LAYER_NORM_KINDS,
    **LINEAR_ATTENTION,
    **STATE_SPACES,
}
# What are others' layers in such files: InternLM2 with its projections apart, and text models of
# those that see pictures, whose other parts are files of their own.
_LIKE = {"internlm2": "llama", "qwen2vl": "qwen2", "qwen3vl": "qwen3", "qwen3vlmoe": "qwen3moe"}
ARCHITECTURES |= {name: ARCHITECTURES[other] for name, other in _LIKE.items()}
# Gemma 4 with experts beside the dense network, which llama.cpp calls gemma4, too.
GEMMA_4_EXPERTS = replace(
    ARCHITECTURES["gemma4"],
    experts=Experts(
        "",
        width_key=("moe_intermediate_size", "expert_feed_forward_length"),
        router="router.proj",
        are_scaled=True,
    ),
    tensors={
        **ARCHITECTURES["gemma4"].tensors,
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
    },
)
# What llama.cpp calls llama, too.
MIXTRAL = Architecture(
    "mixtral",
    "MixtralForCausalLM",
    True,
    {"hidden_act": "silu"},
    Experts("block_sparse_moe", ("w1", "w3", "w2"), "num_local_experts"),
)
