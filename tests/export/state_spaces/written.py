"""Golden checkpoints with state spaces, written as GGUF files as llama.cpp's converter does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.support.gguf_model import source_of, type_of, write_gguf

Tensors = dict[str, np.ndarray]
Alteration = Callable[[Tensors], object]
ARCHITECTURES = {
    "granitemoehybrid-mamba": "granitehybrid",
    "granitemoehybrid-experts": "granitehybrid",
    "nemotron_h": "nemotron_h",
    "nemotron_h-experts": "nemotron_h_moe",
    "falcon_h1": "falcon-h1",
}


def nothing(own: Tensors) -> None:
    """Alters nothing."""


def of_space(part: str, value: np.ndarray, groups: int) -> tuple[str, np.ndarray]:
    """What the file calls a tensor of a state space, and what it has."""
    forms = {
        "in_proj.weight": ("ssm_in.weight", value),
        "conv1d.weight": ("ssm_conv1d.weight", value.squeeze()),
        "conv1d.bias": ("ssm_conv1d.bias", value),
        "dt_bias": ("ssm_dt.bias", value),
        "A_log": ("ssm_a", -np.exp(value.reshape(-1, 1)) if value.ndim == 1 else value),
        "D": ("ssm_d", value.reshape(-1, 1)),
        "norm.weight": ("ssm_norm.weight", value.reshape(groups, -1)),
        "out_proj.weight": ("ssm_out.weight", value),
    }
    return forms[part]


def granite(config: dict[str, Any], tensors: Tensors) -> tuple[Tensors, Tensors, dict[str, Any]]:
    """Tensors that are called as elsewhere, those that are not, and metadata."""
    shared = "_shexp" if config["num_local_experts"] else ""
    others: Tensors = {}
    own: Tensors = {}
    for key, value in tensors.items():
        _, _, part = key.partition(".mamba.")
        at = f"blk.{key.split('.')[2]}" if ".layers." in key else ""
        if part:
            name, stored = of_space(part, value, config["mamba_n_groups"])
            own[f"{at}.{name}"] = stored
        elif key.endswith("shared_mlp.input_linear.weight"):
            for name, rows in zip(("gate", "up"), np.split(value, 2), strict=True):
                own[f"{at}.ffn_{name}{shared}.weight"] = rows
        elif key.endswith("shared_mlp.output_linear.weight"):
            own[f"{at}.ffn_down{shared}.weight"] = value
        else:
            others[key.replace("router.layer", "gate")] = value
    inner = config["mamba_expand"] * config["hidden_size"]
    return (
        others,
        own,
        {
            **ssm(config, inner),
            "expert_shared_feed_forward_length": config["shared_intermediate_size"],
            "rope.scaling.finetuned": False,
            "attention.scale": config["attention_multiplier"],
            "residual_scale": config["residual_multiplier"],
            "embedding_scale": config["embedding_multiplier"],
            "logit_scale": config["logits_scaling"],
        },
    )


def ssm(config: dict[str, Any], inner: int) -> dict[str, Any]:
    """What is said of state spaces by keys that begin with mamba."""
    return {
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"],
        "ssm.time_step_rank": config["mamba_n_heads"],
        "ssm.inner_size": inner,
    }


NEMOTRON_NAMES = {
    "backbone.embeddings.weight": "token_embd.weight",
    "backbone.norm_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    **{f"{each}_proj.weight": f"attn_{each}.weight" for each in ("q", "k", "v")},
    "o_proj.weight": "attn_output.weight",
    **{f"{each}_proj.weight": f"ffn_{each}.weight" for each in ("up", "down")},
    "gate.weight": "ffn_gate_inp.weight",
    "gate.e_score_correction_bias": "exp_probs_b.bias",
    "shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "shared_experts.down_proj.weight": "ffn_down_shexp.weight",
}


def experts_of(config: dict[str, Any]) -> dict[str, Any]:
    """What is said of experts."""
    return {
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_group_count": config["n_group"],
    }


def nemotron(config: dict[str, Any], tensors: Tensors) -> tuple[Tensors, Tensors, dict[str, Any]]:
    """The same; all is called otherwise here."""
    kinds = config["layers_block_type"]
    own: Tensors = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for key, value in tensors.items():
        if ".layers." not in key:
            own[NEMOTRON_NAMES[key]] = value
            continue
        _, _, layer, part = key.split(".", 3)
        part = part.removeprefix("mixer.")
        at = f"blk.{layer}"
        if part == "norm.weight" and ".mixer." not in key:
            own[f"{at}.attn_norm.weight"] = value
        elif kinds[int(layer)] == "linear_attention":
            name, stored = of_space(part, value, config["n_groups"])
            own[f"{at}.{name}"] = stored
        elif part.startswith("experts."):
            _, number, name, _ = part.split(".")
            stack = f"{at}.ffn_{name.removesuffix('_proj')}_exps.weight"
            stacks.setdefault(stack, {})[int(number)] = value
        elif part in ("q_proj.weight", "k_proj.weight"):  # rows in pairs, though nothing is turned
            shape = (-1, 2, config["head_dim"] // 2, value.shape[1])
            own[f"{at}.{NEMOTRON_NAMES[part]}"] = (
                value.reshape(shape).swapaxes(1, 2).reshape(value.shape)
            )
        else:
            own[f"{at}.{NEMOTRON_NAMES[part]}"] = value
    own |= {name: np.stack([each[e] for e in sorted(each)]) for name, each in stacks.items()}
    width = config["moe_intermediate_size" if "moe" in kinds else "intermediate_size"]
    return (
        {},
        own,
        {
            **(experts_of(config) if "moe" in kinds else {}),
            "ssm.conv_kernel": config["conv_kernel"],
            "ssm.state_size": config["ssm_state_size"],
            "ssm.group_count": config["n_groups"],
            "ssm.time_step_rank": config["mamba_num_heads"],
            "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
            "rope.scaling.finetuned": False,
            "rope.dimension_count": config["hidden_size"] // config["num_attention_heads"],
            "feed_forward_length": [width if kind in ("mlp", "moe") else 0 for kind in kinds],
            "attention.head_count_kv": [
                config["num_key_value_heads"] if kind == "full_attention" else 0 for kind in kinds
            ],
            "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
            "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        },
    )


def falcon(config: dict[str, Any], tensors: Tensors) -> tuple[Tensors, Tensors, dict[str, Any]]:
    """The same; factors go into the weights, and a norm has no suffix (llama.cpp reads it so)."""
    attention = config["attention_in_multiplier"]
    gate, down = config["mlp_multipliers"]
    inner, keys = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    factors = {
        "down_proj": down,
        "gate_proj": gate,
        "k_proj": config["key_multiplier"] * attention,
        "q_proj": attention,
        "v_proj": attention,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    sizes = [inner, inner, keys, keys, config["mamba_n_heads"]]
    rows = np.repeat(config["ssm_multipliers"], sizes) * config["ssm_in_multiplier"]
    others: Tensors = {}
    own: Tensors = {}
    for key, value in tensors.items():
        module = key.split(".")[-2]
        value = value * np.float32(factors.get(module, 1))
        if module == "in_proj":
            value = value * rows[:, None].astype(np.float32)
        _, _, part = key.partition(".mamba.")
        if part:
            name, stored = of_space(part, value, config["mamba_n_groups"])
            own[f"blk.{key.split('.')[2]}.{name}"] = stored
        elif ".pre_ff_layernorm." in key:
            own[f"blk.{key.split('.')[2]}.ffn_norm"] = value
        else:
            others[key.replace("feed_forward", "mlp").replace("final_layernorm", "norm")] = value
    return others, own, ssm(config, inner)


def written(
    path: Path,
    name: str,
    kinds: Mapping[str, str] | None = None,
    alter: Alteration = nothing,
    **changes: Any,
) -> Path:
    """Writes a golden checkpoint; ``kinds`` are types of what is called otherwise here."""
    config, tensors = source_of(name)
    family = {"granitemoehybrid": granite, "nemotron_h": nemotron, "falcon_h1": falcon}
    others, own, metadata = family[config["model_type"]](config, tensors)
    alter(own)
    architecture = ARCHITECTURES[name]

    def extra(writer: Any) -> None:
        for key, value in {**metadata, **changes}.items():
            writer.kv_data[0].pop(f"{architecture}.{key}", None)
            if value is not None:
                full, kind = f"{architecture}.{key}", type_of(value)
                if isinstance(value, list):
                    writer.add_array(full, value)
                else:
                    writer.add_key_value(full, value, kind)
        for key, value in own.items():
            kind = next((kind for part, kind in (kinds or {}).items() if part in key), "F32")
            raw = gguf.GGMLQuantizationType[kind]
            stored = gguf.quants.quantize(np.ascontiguousarray(value), raw)
            writer.add_tensor(key, stored, raw_dtype=raw)

    return write_gguf(path, architecture, config, others, extra=extra)
