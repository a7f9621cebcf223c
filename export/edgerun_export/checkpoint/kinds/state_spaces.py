"""Models with state spaces, as GGUF files have them.

Source: llama.cpp's ``conversion/granite.py``, ``nemotron.py``, ``falcon_h1.py`` and ``mamba.py``,
and its ``llama-model.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint.base import F32
from edgerun_export.checkpoint.kinds.base import STATE_SPACES, Architecture, Experts
from edgerun_export.checkpoint.kinds.keys import Keys

_GRANITE, _NEMOTRON, _FALCON = "granitemoehybrid", "nemotron_h", "falcon_h1"
MODEL_TYPES = (_GRANITE, _NEMOTRON, _FALCON)
RATES = tuple(f".{module}.rate" for module in STATE_SPACES)  # whose logarithm is A_log
# Of a network of Granite, what Hugging Face has in one tensor.
APART = (".shared_mlp.gate_proj.weight", ".shared_mlp.up_proj.weight")
JOINED = ".shared_mlp.input_linear.weight"
GRANITE_FACTORS = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}


def _of_module(module: str) -> dict[str, str]:
    names = {
        "ssm_in": "in_proj",
        "ssm_conv1d": "conv1d",
        "ssm_dt": "dt_bias",
        "ssm_a": "rate",
        "ssm_d": "D",
        "ssm_norm": "norm",
        "ssm_out": "out_proj",
    }
    return {name: f"{module}.{own}" for name, own in names.items()}


_MAMBA, _MIXER = (_of_module(module) for module in STATE_SPACES)
_GRANITE_4 = Architecture(
    _GRANITE,
    "GraniteMoeHybridForCausalLM",
    True,
    {"hidden_act": "silu", "num_local_experts": 0},
    tensors={
        **_MAMBA,
        "ffn_gate": "shared_mlp.gate_proj",
        "ffn_up": "shared_mlp.up_proj",
        "ffn_down": "shared_mlp.output_linear",
    },
    factors=GRANITE_FACTORS,
    convolutions=True,
)
GRANITE_4_EXPERTS = replace(
    _GRANITE_4,
    extra={"hidden_act": "silu"},
    experts=Experts(
        "block_sparse_moe",
        count_key="num_local_experts",
        width_key=("intermediate_size", "expert_feed_forward_length"),
        router="router.layer",
    ),
    tensors={
        **_MAMBA,
        "ffn_gate_shexp": "shared_mlp.gate_proj",
        "ffn_up_shexp": "shared_mlp.up_proj",
        "ffn_down_shexp": "shared_mlp.output_linear",
    },
)
# All layers have one part, which is called mixer, and a norm before it.
_NEMOTRON_H = Architecture(
    _NEMOTRON,
    "NemotronHForCausalLM",
    True,
    {"mlp_hidden_act": "relu2", "mamba_hidden_act": "silu"},
    tensors={
        **_MIXER,
        "attn_norm": "norm",
        "attn_q": "mixer.q_proj",
        "attn_k": "mixer.k_proj",
        "attn_v": "mixer.v_proj",
        "attn_output": "mixer.o_proj",
        "ffn_up": "mixer.up_proj",
        "ffn_down": "mixer.down_proj",
        "ffn_up_shexp": "mixer.shared_experts.up_proj",
        "ffn_down_shexp": "mixer.shared_experts.down_proj",
        "exp_probs_b": "mixer.gate.e_score_correction_bias",
    },
    partial=True,  # whatever files say of rope, which there is none of
    convolutions=True,
    final_norm="backbone.norm_f",
    renamed={
        "model.embed_tokens.": "backbone.embeddings.",
        "model.layers.": "backbone.layers.",
    },
    by_layer=("feed_forward_length",),
)
_NEMOTRON_H_EXPERTS = replace(
    _NEMOTRON_H,
    experts=Experts(
        "mixer",
        count_key="n_routed_experts",
        width_key=("moe_intermediate_size", "expert_feed_forward_length"),
    ),
    factors={"expert_weights_scale": "routed_scaling_factor"},
    own_keys=("expert_shared_count",),
)
# Whose factors are in the weights.
_FALCON_H1 = Architecture(
    _FALCON,
    "FalconH1ForCausalLM",
    False,
    {"hidden_act": "silu", "mamba_rms_norm": False},
    tensors={
        **{name: own for name, own in _MAMBA.items() if name != "ssm_norm"},
        "ffn_norm": "pre_ff_layernorm",
        "ffn_gate": "feed_forward.gate_proj",
        "ffn_up": "feed_forward.up_proj",
        "ffn_down": "feed_forward.down_proj",
    },
    final_norm="model.final_layernorm",
)
ARCHITECTURES = {
    "granitehybrid": _GRANITE_4,
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H_EXPERTS,
    "falcon-h1": _FALCON_H1,
}


def granite_factors(config: Mapping[str, Any]) -> dict[str, float]:
    """Granite's factors, of which 0 stands for none."""
    neutral = {
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": config["head_dim"] ** -0.5,
        "logits_scaling": 1.0,
    }
    return {name: config[name] or value for name, value in neutral.items()}


def granite_hybrid(
    keys: Keys, config: Mapping[str, Any], rope_factors: Mapping[str, F32]
) -> dict[str, Any]:
    """Sizes of state spaces, which layers have one, and Granite's factors.

    Raises:
        CheckpointError: a key is missing or out of range.
        UnsupportedError: the file is one of Bamba.
    """
    if keys.text("rope.scaling.finetuned", "False") != "False":
        raise UnsupportedError(
            "GGUF files of granitehybrid with rotary embedding (Bamba) are not supported; export "
            "the safetensors checkpoint instead"
        )
    inner, heads = _inner(keys)
    if inner % config["hidden_size"]:
        raise CheckpointError(
            f"{inner} elements of state spaces are not a multiple of a hidden size of "
            f"{config['hidden_size']}"
        )
    layers = config["num_hidden_layers"]
    counts = keys.by_layer("attention.head_count_kv", layers)
    width = keys.size("feed_forward_length", config["intermediate_size"])
    return {
        **granite_factors(config),
        "layer_types": ["attention" if count else "mamba" for count in counts],
        "position_embedding_type": None,
        "shared_intermediate_size": keys.size("expert_shared_feed_forward_length", width),
        **_sizes(keys, inner, heads),
        "mamba_expand": inner // config["hidden_size"],
    }


def nemotron_h(
    keys: Keys, config: Mapping[str, Any], rope_factors: Mapping[str, F32]
) -> dict[str, Any]:
    """Sizes of state spaces, and what each layer has.

    Raises:
        CheckpointError: a key is missing or out of range, or a layer has two parts.
        UnsupportedError: experts read narrower rows than the residual stream's.
    """
    if keys.has("moe_latent_size"):
        raise UnsupportedError(
            "GGUF files of nemotron_h_moe with a moe_latent_size, whose experts read narrower "
            "rows, are not supported"
        )
    every = config["num_hidden_layers"]
    predicting = keys.count("nextn_predict_layers", 0)  # behind the others, and counted among them
    layers = every - predicting
    heads = keys.by_layer("attention.head_count_kv", every)[:layers]
    widths = keys.by_layer("feed_forward_length", every)[:layers]
    has_experts = "n_routed_experts" in config
    kinds = []
    for layer, (count, width) in enumerate(zip(heads, widths, strict=True)):
        if count and width:
            raise CheckpointError(f"layer {layer} has both attention and a network; expected one")
        network = "moe" if has_experts else "mlp"
        kinds.append("attention" if count else network if width else "mamba")
    experts = {}
    if has_experts:
        experts = {
            "n_shared_experts": keys.count("expert_shared_count"),
            "moe_shared_expert_intermediate_size": keys.size("expert_shared_feed_forward_length"),
            "routed_scaling_factor": config["routed_scaling_factor"] or 1.0,
        }
    inner, count = _inner(keys)
    return {
        **experts,
        "layers_block_type": kinds,
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": predicting,
        "intermediate_size": max([*widths, 1]),
        "layer_norm_epsilon": config["rms_norm_eps"],
        "mamba_num_heads": count,
        "mamba_head_dim": inner // count,
        "n_groups": keys.size("ssm.group_count"),
        "ssm_state_size": keys.size("ssm.state_size"),
        "conv_kernel": keys.size("ssm.conv_kernel"),
        "rope_scaling": None,
    }


def falcon_h1(
    keys: Keys, config: Mapping[str, Any], rope_factors: Mapping[str, F32]
) -> dict[str, Any]:
    """Sizes of state spaces.

    Raises:
        CheckpointError: a key is missing or out of range.
    """
    inner, heads = _inner(keys)
    return {"mamba_d_ssm": inner, **_sizes(keys, inner, heads)}


def _inner(keys: Keys) -> tuple[int, int]:
    """Elements of the inputs of all heads, and how many heads these are."""
    heads, inner = keys.size("ssm.time_step_rank"), keys.size("ssm.inner_size")
    if inner % heads:
        raise CheckpointError(
            f"{inner} elements of state spaces are not a multiple of {heads} heads"
        )
    return inner, heads


def _sizes(keys: Keys, inner: int, heads: int) -> dict[str, Any]:
    return {
        "mamba_n_heads": heads,
        "mamba_n_groups": keys.size("ssm.group_count"),
        "mamba_d_head": inner // heads,
        "mamba_d_state": keys.size("ssm.state_size"),
        "mamba_d_conv": keys.size("ssm.conv_kernel"),
    }
