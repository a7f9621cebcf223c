"""What single families have in their GGUF metadata beyond what all have.

Meaning of the keys: llama.cpp's ``llama-model.cpp``, ``load_hparams``, and its converter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint.base import F32
from edgerun_export.checkpoint.kinds.base import Architecture
from edgerun_export.checkpoint.kinds.deepseek import DEEPSEEK_FAMILIES, check_sigmoids
from edgerun_export.checkpoint.kinds.dense import DENSE_FAMILIES
from edgerun_export.checkpoint.kinds.keys import Keys, short_float
from edgerun_export.checkpoint.kinds.layer_norms import LAYER_NORM_FAMILIES
from edgerun_export.checkpoint.kinds.linear import MODEL_TYPES, linear_attention
from edgerun_export.checkpoint.kinds.long_rope import long_rope
from edgerun_export.checkpoint.kinds.state_spaces import (
    falcon_h1,
    granite_factors,
    granite_hybrid,
    nemotron_h,
)

_GEMMA_2_27B_LAYERS, _GEMMA_3_27B_LAYERS = 46, 62
_GEMMA_3N_OWN_KEYS = 20  # layers that have keys of their own
_NEVER = 1e20  # divides a frequency so that no position turns anything

_Config = Mapping[str, Any]
_Factors = Mapping[str, F32]


def of_family(
    keys: Keys, kind: Architecture, config: _Config, rope_factors: _Factors
) -> dict[str, Any]:
    """Keys of the configuration that only models of this kind have.

    Raises:
        CheckpointError: a key is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    values = {name: short_float(keys.number(key, 0.0)) for key, name in kind.factors.items()}
    more = _FAMILIES.get(kind.model_type)
    return values if more is None else more(keys, {**config, **values}, rope_factors)


def _granite(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    if keys.text("rope.scaling.finetuned", "True") != "True":
        raise UnsupportedError(
            f"GGUF files of {config['model_type']} without rotary embedding are not supported"
        )
    return granite_factors(config)


def _olmo2(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    if keys.number("attention.sliding_window", 0.0) > 0:
        raise UnsupportedError(
            "GGUF files of olmo2 with a sliding window (OLMo 3) are not supported"
        )
    return {}


def _phi3(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    window = int(keys.number("attention.sliding_window", 0.0))
    own = {"sliding_window": window if window > 0 else None}
    return {**own, **long_rope(keys, config, rope_factors)}


def _ministral3(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    parameters = dict(config["rope_scaling"] or {"rope_type": "default"})
    parameters |= {
        "rope_theta": config["rope_theta"],
        "llama_4_scaling_beta": config["llama_4_scaling_beta"],
    }
    if config["mscale"]:  # of which the converter writes one for both
        parameters |= {"mscale": config["mscale"], "mscale_all_dim": config["mscale"]}
    return {"rope_parameters": parameters, "rope_scaling": None}


def _gemma2(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    """What llama.cpp takes for granted stands for keys that are not there."""
    return {
        "query_pre_attn_scalar": _gemma_scalar(config, _GEMMA_2_27B_LAYERS),
        "sliding_window": keys.size("attention.sliding_window", 4096),
        "layer_types": keys.layer_types(2, config["num_hidden_layers"]),
        "attn_logit_softcapping": config["attn_logit_softcapping"] or 50.0,
        "final_logit_softcapping": config["final_logit_softcapping"] or 30.0,
    }


def _gemma3(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    return {
        "query_pre_attn_scalar": _gemma_scalar(config, _GEMMA_3_27B_LAYERS),
        "sliding_window_pattern": keys.size("attention.sliding_window_pattern", 6),
        "rope_local_base_freq": _local_theta(keys),
    }


def _local_theta(keys: Keys) -> float:
    """The base of the rope of layers with a window, in Gemma 3 and later."""
    return short_float(keys.positive("rope.freq_base_swa", 10000.0))


def _gemma_scalar(config: _Config, layers_of_27b: int) -> int:
    """What scores are divided by the root of, which files do not say."""
    if config["num_hidden_layers"] == layers_of_27b:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return int(config["head_dim"])


def _gemma3n(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    """What llama.cpp takes for granted stands for keys that are not there."""
    layers = config["num_hidden_layers"]
    values: dict[str, Any] = {
        "intermediate_size": keys.by_layer("feed_forward_length", layers),
        "num_kv_shared_layers": keys.count(
            "attention.shared_kv_layers", max(layers - _GEMMA_3N_OWN_KEYS, 0)
        ),
        "hidden_size_per_layer_input": keys.size("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": config["vocab_size"],
        "altup_active_idx": keys.count("altup.active_idx", 0),
        "altup_num_inputs": keys.size("altup.num_inputs", 4),
        "final_logit_softcapping": config["final_logit_softcapping"] or 30.0,
        "rope_local_base_freq": _local_theta(keys),
    }
    pattern, cut = "attention.sliding_window_pattern", "activation_sparsity_scale"
    if keys.has(pattern):
        slides = keys.flags(pattern, layers)
        kinds = ["sliding_attention" if slide else "full_attention" for slide in slides]
        values["layer_types"] = kinds
    if keys.has(cut):  # deviations from the mean, below which nothing is left
        shares = [NormalDist().cdf(each) for each in keys.numbers(cut, layers)]
        values["activation_sparsity_pattern"] = shares
    return values


def _gemma4(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    """Sizes are those of layers without a window, and `swa` keys say those of the others."""
    layers, head_dim = config["num_hidden_layers"], config["head_dim"]
    slides = keys.flags("attention.sliding_window_pattern", layers)
    shared = keys.count("attention.shared_kv_layers", 0)
    own = keys.size("attention.key_length_swa", head_dim)
    others = {
        "attention.value_length_swa": own,
        "rope.dimension_count": head_dim,
        "rope.dimension_count_swa": own,
    }
    for key, expected in others.items():
        if keys.size(key, expected) != expected:
            raise UnsupportedError(
                f"metadata 'gemma4.{key}' is {keys.size(key)} for heads of {expected} elements; "
                "expected the same"
            )
    heads = keys.by_layer("attention.head_count_kv", layers)
    sizes = {
        str(layer): {"head_dim": own if slide else head_dim, "num_key_value_heads": heads[layer]}
        for layer, slide in enumerate(slides)
    }
    width = keys.count("embedding_length_per_layer_input", 0)
    experts = {"enable_moe_block": True, "top_k_experts": config.get("num_experts_per_tok")}
    return {
        **(experts if config.get("num_experts") else {}),
        "head_dim": own,
        "per_layer_config": sizes,
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": _has_wide_ends(keys, config, shared),
        "hidden_size_per_layer_input": width,
        "vocab_size_per_layer_input": config["vocab_size"],
        "final_logit_softcapping": config["final_logit_softcapping"] or None,
        "rope_scaling": None,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": config["rope_theta"],
                "partial_rotary_factor": _turned_part(rope_factors, head_dim),
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": _local_theta(keys),
            },
        },
    }


def _has_wide_ends(keys: Keys, config: _Config, shared: int) -> bool:
    """Whether the layers that share keys and values are twice as wide as the others."""
    key, layers, width = (
        "feed_forward_length",
        config["num_hidden_layers"],
        config["intermediate_size"],
    )
    widths = keys.by_layer(key, layers)
    if {*widths} == {width}:
        return False
    if widths != [width] * (layers - shared) + [2 * width] * shared:
        raise UnsupportedError(
            f"metadata 'gemma4.{key}' is {str(widths)[:60]}; supported are layers of one width, of "
            f"which the last {shared} that share keys and values may have twice that"
        )
    return True


def _turned_part(rope_factors: _Factors, head_dim: int) -> float:
    """The part of heads that positions turn: pairs whose frequencies are divided by 1."""
    name = "rope_freqs.weight"
    if name not in rope_factors:
        raise CheckpointError(f"the GGUF file has no '{name}', which gemma4 needs")
    divisors = rope_factors[name].reshape(-1)
    turned = int((divisors == 1).sum())
    # A 1 that is not among the first is one of those behind them.
    if not turned or (divisors[turned:] < _NEVER).any():
        raise UnsupportedError(
            f"tensor '{name}' of gemma4 is supported with divisors of 1 first and of {_NEVER:g} or "
            "more behind them"
        )
    return 2 * turned / head_dim


def _lfm2(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    if keys.number("attention.sliding_window", 0.0) > 0:
        raise UnsupportedError(
            f"GGUF files of {config['model_type']} with a sliding window are not supported; "
            "expected 'attention.sliding_window' to be 0 or absent"
        )
    heads = keys.by_layer("attention.head_count_kv", config["num_hidden_layers"])
    return {
        "layer_types": ["full_attention" if count else "conv" for count in heads],
        "conv_L_cache": keys.size("shortconv.l_cache"),
        "norm_eps": config["rms_norm_eps"],
    }


def _lfm2_moe(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    check_sigmoids(keys.number("expert_gating_func"), config)
    dense = keys.count("leading_dense_block_count")
    return {**_lfm2(keys, config, rope_factors), "num_dense_layers": dense}


def _gpt_oss(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    return {"layer_types": keys.layer_types(2, config["num_hidden_layers"])}


def _ernie4_5_moe(keys: Keys, config: _Config, rope_factors: _Factors) -> dict[str, Any]:
    shared = "expert_shared_count"
    return {
        "moe_k": config["num_experts_per_tok"],
        "moe_layer_start_index": keys.count("leading_dense_block_count"),
        "moe_layer_interval": keys.size("interleave_moe_layer_step", 1),
        "moe_num_shared_experts": keys.count(shared) if keys.has(shared) else 0,
    }


_FAMILIES: Mapping[str, Callable[[Keys, _Config, _Factors], dict[str, Any]]] = {
    "granite": _granite,
    "granitemoe": _granite,
    "granitemoehybrid": granite_hybrid,
    "falcon_h1": falcon_h1,
    "nemotron_h": nemotron_h,
    "olmo2": _olmo2,
    "phi3": _phi3,
    "ministral3": _ministral3,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2_moe,
    "ernie4_5_moe": _ernie4_5_moe,
    "gpt_oss": _gpt_oss,
    **DEEPSEEK_FAMILIES,
    **DENSE_FAMILIES,
    **LAYER_NORM_FAMILIES,
    **dict.fromkeys(MODEL_TYPES, linear_attention),
}
