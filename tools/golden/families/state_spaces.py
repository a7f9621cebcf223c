"""Those of them that have state spaces."""

from __future__ import annotations

from typing import Any

from tools.golden.base import FACTORS, Golden

_NEMOTRON: dict[str, Any] = {
    "intermediate_size": 96,
    "head_dim": 32,
    "mamba_num_heads": 4,
    "mamba_head_dim": 24,
    "n_groups": 2,
    "ssm_state_size": 16,
    "tie_word_embeddings": False,
    "time_step_min": 1e-30,  # transformers keeps times above it in prompts, not in replies
}
_FALCON: dict[str, Any] = {
    "intermediate_size": 96,
    "mamba_d_ssm": 96,
    "mamba_n_heads": 4,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "lm_head_multiplier": 0.7,
    "embedding_multiplier": 1.6,
    "mlp_multipliers": [0.9, 0.4],
    "key_multiplier": 0.8,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.6,
    "ssm_multipliers": [0.7, 1.3, 0.9, 1.1, 0.6],
    "ssm_in_multiplier": 1.4,
    "ssm_out_multiplier": 0.5,
}
_BACKBONE = {"model.": "backbone."}
STATE_SPACES = {
    "granitemoehybrid-mamba": Golden(
        "GraniteMoeHybrid",
        {
            **FACTORS,
            "shared_intermediate_size": 96,
            "num_local_experts": 0,
            "num_hidden_layers": 3,
            "layer_types": ["mamba", "attention", "mamba"],
            "mamba_n_heads": 8,
            "mamba_n_groups": 2,
            "mamba_d_state": 32,
        },
        reply=64,
    ),
    "granitemoehybrid-experts": Golden(
        "GraniteMoeHybrid",
        {
            **FACTORS,
            "intermediate_size": 40,  # no multiple of a block
            "shared_intermediate_size": 96,
            "num_local_experts": 5,
            "layer_types": ["mamba", "attention"],
            "mamba_n_heads": 4,
            "mamba_d_state": 16,
            "mamba_d_conv": 3,
        },
        reply=64,
        stacked=True,
        names={
            "experts.gate_up_proj": "input_linear.weight",
            "experts.down_proj": "output_linear.weight",
            "router.weight": "router.layer.weight",
        },
    ),
    "bamba": Golden(
        "Bamba",
        {
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "attn_layer_indices": [1],
            "mamba_n_heads": 4,
            "mamba_n_groups": 2,
            "mamba_d_state": 16,
            "attention_bias": True,
        },
        reply=64,
    ),
    "nemotron_h": Golden(
        "NemotronH",
        {
            **_NEMOTRON,
            "layers_block_type": ["linear_attention", "mlp", "linear_attention"]
            + ["full_attention", "mlp"],
        },
        reply=64,
        names=_BACKBONE,
    ),
    "nemotron_h-experts": Golden(
        "NemotronH",
        {
            **_NEMOTRON,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "n_routed_experts": 5,
            "moe_intermediate_size": 40,  # no multiple of a block
            "moe_shared_expert_intermediate_size": 64,
            "routed_scaling_factor": 2.5,
            "n_groups": 1,
        },
        reply=64,
        names=_BACKBONE,
    ),
    "falcon_h1": Golden("FalconH1", {**_FALCON, "tie_word_embeddings": False}, reply=64),
    "falcon_h1-norm": Golden(
        "FalconH1", {**_FALCON, "mamba_rms_norm": True, "mamba_d_ssm": None}, reply=64
    ),
}
