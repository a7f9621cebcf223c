"""GGUF metadata to Hugging Face ``config.json``.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, "LLM"; their meaning per
architecture is llama.cpp's ``llama-arch.cpp`` and ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures.decoder.missing import reason
from edgerun_export.checkpoint.base import F32
from edgerun_export.checkpoint.gguf_architectures import (
    ARCHITECTURES,
    GEMMA_4_EXPERTS,
    MIXTRAL,
)
from edgerun_export.checkpoint.gguf_families import of_family
from edgerun_export.checkpoint.kinds.base import SIGMOID, Architecture
from edgerun_export.checkpoint.kinds.deepseek import SIGMOIDS
from edgerun_export.checkpoint.kinds.keys import Keys, short_float
from edgerun_export.checkpoint.kinds.long_rope import LONG_FACTORS, SHORT_FACTORS
from edgerun_export.checkpoint.kinds.state_spaces import GRANITE_4_EXPERTS

# (GGUF key after the architecture's prefix, configuration key, default; None = required)
_SIZES: tuple[tuple[str, str, int | None], ...] = (
    ("block_count", "num_hidden_layers", None),
    ("embedding_length", "hidden_size", None),
    ("feed_forward_length", "intermediate_size", None),
    ("attention.head_count", "num_attention_heads", None),
    ("context_length", "max_position_embeddings", None),
)
# Keys that change what a model computes and have no implementation; with values that do nothing.
_WITHOUT_EFFECT: dict[str, tuple[float, ...]] = {
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "attention.scale": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.temperature_scale": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "expert_weights_scale": (0.0, 1.0),
    "expert_gating_func": (0.0, 1.0),
    "expert_shared_count": (0.0,),
    "expert_group_count": (0.0, 1.0),
    "leading_dense_block_count": (0.0,),
    "interleave_moe_layer_step": (0.0, 1.0),
    "rope.scaling.yarn_ext_factor": (-1.0, 1.0),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}
_TOKEN_IDS = (
    ("bos_token_id", "bos_token_id"),
    ("eos_token_id", "eos_token_id"),
    ("padding_token_id", "pad_token_id"),
)


def architecture(metadata: Mapping[str, Any]) -> Architecture:
    """Look up ``general.architecture``.

    Raises:
        CheckpointError: it is missing.
        UnsupportedError: it has no row in ``ARCHITECTURES``.
    """
    name = metadata.get("general.architecture")
    if name is None:
        raise CheckpointError("the GGUF file does not say its architecture (general.architecture)")
    architecture = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if name == "llama" and Keys(metadata, "llama").number("expert_count", 0) > 0:
        return MIXTRAL
    if name == "gemma4" and Keys(metadata, name).number("expert_count", 0) > 0:
        return GEMMA_4_EXPERTS
    if name == "granitehybrid" and Keys(metadata, name).number("expert_count", 0) > 0:
        return GRANITE_4_EXPERTS
    if name == "deepseek2" and Keys(metadata, name).number("expert_gating_func", 0) == SIGMOID:
        return SIGMOIDS
    if architecture is None:
        raise UnsupportedError(
            f"GGUF architecture '{str(name)[:60]}' is not supported{reason(name)}; supported: "
            + ", ".join(ARCHITECTURES)
        )
    return architecture


def make_config(
    metadata: Mapping[str, Any], vocab_size: int, tied: bool, rope_factors: Mapping[str, F32]
) -> dict[str, Any]:
    """Write the Hugging Face configuration that the metadata describes.

    Args:
        metadata: of the GGUF file.
        vocab_size: rows of the token embedding.
        tied: whether the file has no output matrix of its own.
        rope_factors: divisors of rotary frequencies by the name of their tensor, those of
            ``rope_freqs.weight``, ``[head_dim/2]``, among them if present.

    Raises:
        CheckpointError: a key is missing or out of range.
        UnsupportedError: the model has experts of an unknown kind, per-layer sizes or an unknown
            rotary scaling.
    """
    kind = architecture(metadata)
    keys = Keys(metadata, metadata["general.architecture"])
    _refuse_other_computations(keys, kind)
    config: dict[str, Any] = {"architectures": [kind.class_name], "model_type": kind.model_type}
    config.update({name: _size(keys, kind, key, default) for key, name, default in _SIZES})
    heads = config["num_attention_heads"]
    config["num_key_value_heads"] = _kv_heads(keys, kind, config)
    config["head_dim"], turned = _head_dim(keys, kind, config["hidden_size"], heads)
    if turned != config["head_dim"]:
        if not kind.partial:
            raise UnsupportedError(
                f"heads of {config['head_dim']} with {turned} rotated are not supported in "
                f"{kind.model_type}; all must be"
            )
        config["partial_rotary_factor"] = turned / config["head_dim"]
    epsilon = "attention.layer_norm_epsilon" if kind.epsilon else "attention.layer_norm_rms_epsilon"
    config[kind.epsilon or "rms_norm_eps"] = short_float(keys.positive(epsilon))
    config["rope_theta"] = short_float(keys.positive("rope.freq_base", 10000.0))
    _refuse_lost_ropes(keys, kind, rope_factors)
    scaling = _rope_scaling(keys, config, rope_factors.get("rope_freqs.weight"))
    config["rope_scaling"] = scaling and scaling | dict(kind.rope)
    if kind.windows:
        config["sliding_window"] = keys.size("attention.sliding_window")
    config["vocab_size"] = vocab_size
    config["tie_word_embeddings"] = tied
    for key, name in _TOKEN_IDS:
        value = metadata.get(f"tokenizer.ggml.{key}")
        if type(value) is int:
            config[name] = value
    config |= _experts(keys, kind) | dict(kind.extra)
    return config | of_family(keys, kind, config, rope_factors)


def _size(keys: Keys, kind: Architecture, key: str, default: int | None) -> int:
    """A size, of the first layer where layers may differ, or of experts where it is of those."""
    if key not in kind.by_layer:
        if key == "feed_forward_length" and kind.experts and not keys.has(key):
            key = kind.experts.width_key[1]
        return keys.size(key, default)
    return keys.by_layer(key, keys.size("block_count"))[0]


def _kv_heads(keys: Keys, kind: Architecture, config: Mapping[str, Any]) -> int:
    """Key heads of the layers that attend, which must have the same number."""
    if "attention.head_count_kv" in kind.by_layer:
        return _size(keys, kind, "attention.head_count_kv", None)
    if not kind.convolutions:
        return keys.size("attention.head_count_kv", config["num_attention_heads"])
    counts = {*keys.by_layer("attention.head_count_kv", config["num_hidden_layers"])} - {0}
    if len(counts) != 1:
        raise UnsupportedError(
            f"GGUF files of {kind.model_type} whose layers have {sorted(counts) or 'no'} key heads "
            "are not supported; those that attend must have the same number"
        )
    return counts.pop()


def _experts(keys: Keys, kind: Architecture) -> dict[str, Any]:
    """What the configuration says of experts, if there are any."""
    experts = kind.experts
    if experts is None:
        if keys.number("expert_count", 0) > 0:
            raise UnsupportedError(
                f"GGUF files of {kind.model_type} with experts are not supported"
            )
        return {}
    normalises = keys.text("expert_weights_norm", str(experts.normalises))
    if normalises != str(experts.normalises):
        raise UnsupportedError(
            f"metadata 'expert_weights_norm' is {normalises}, which {kind.model_type} is not "
            "supported with; leaving it out would change the model"
        )
    width = "shared_expert_intermediate_size", "expert_shared_feed_forward_length"
    shared = {width[0]: keys.size(width[1])} if experts.has_shared else {}
    return shared | {
        experts.count_key: keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        experts.width_key[0]: keys.size(experts.width_key[1]),
        "norm_topk_prob": experts.normalises,
    }


def _refuse_other_computations(keys: Keys, kind: Architecture) -> None:
    # Of layers with a window, where it is not that of all layers.
    own_theta = {"rope.freq_base_swa": (keys.number("rope.freq_base", 10000.0),)}
    for key, neutral in (_WITHOUT_EFFECT | own_theta).items():
        if (
            key not in {*kind.factors, *kind.own_keys}
            and keys.has(key)
            and keys.number(key) not in neutral
        ):
            raise UnsupportedError(
                f"metadata '{key}' is {keys.number(key):g}, which this architecture is not "
                "supported with; leaving it out would change the model"
            )
    if keys.text("attention.causal", "True") != "True":
        raise UnsupportedError(
            f"metadata 'attention.causal' is {keys.text('attention.causal', '')[:20]}; expected "
            "True, since models whose tokens attend to later ones are not supported"
        )


def _refuse_lost_ropes(keys: Keys, kind: Architecture, rope_factors: Mapping[str, F32]) -> None:
    """Refuses what llama.cpp would apply to the rotary embedding and nothing here would."""
    scaling = keys.text("rope.scaling.type", "linear")
    divisors = [name for name in (SHORT_FACTORS, LONG_FACTORS) if name in rope_factors]
    if not kind.long_rope and (divisors or scaling == "longrope"):
        what = f"tensor '{divisors[0]}'" if divisors else "rotary scaling 'longrope'"
        raise UnsupportedError(
            f"{what} is not supported in {kind.model_type}; leaving it out would change the model: "
            "export the safetensors checkpoint instead"
        )
    key = "rope.scaling.attn_factor"
    # YaRN and divisors for long texts have a place for it in the configuration.
    if scaling != "yarn" and not divisors and keys.number(key, 1.0) != 1.0:
        raise UnsupportedError(
            f"metadata '{key}' is {keys.number(key):g} without YaRN or divisors for long texts; "
            "expected 1, since leaving it out would change the model"
        )


def _head_dim(keys: Keys, kind: Architecture, hidden_size: int, heads: int) -> tuple[int, int]:
    """Elements of a head, and how many of them are turned; where heads are made, those alone."""
    if kind.is_latent:
        return (keys.size("rope.dimension_count"),) * 2
    if not keys.has("attention.key_length") and hidden_size % heads:
        raise CheckpointError(f"hidden size {hidden_size} is not a multiple of {heads} heads")
    head_dim = keys.size("attention.key_length", hidden_size // heads or 1)
    rotated = keys.size("rope.dimension_count", head_dim)
    values = keys.size("attention.value_length", head_dim)
    if rotated > head_dim or head_dim % 2 or rotated % 2 or values != head_dim:
        raise UnsupportedError(
            f"heads of {head_dim} with {rotated} rotated and values of {values} are not "
            "supported; both must be even, no more rotated than there are, and values as long as "
            "keys"
        )
    return head_dim, rotated


def _rope_scaling(
    keys: Keys, config: Mapping[str, Any], factors: F32 | None
) -> dict[str, Any] | None:
    # A factor without a type means linear: llama.cpp, llama-model.cpp, load_hparams.
    kind = keys.text("rope.scaling.type", "linear")
    make = _SCALINGS.get(kind)
    if make is None:
        raise UnsupportedError(
            f"rotary scaling '{kind[:40]}' is not supported; supported: {', '.join(_SCALINGS)}"
        )
    scaling = make(keys, config)
    if factors is None:
        return scaling
    if scaling is not None:
        raise UnsupportedError(
            f"rotary scaling '{kind}' on top of the factors in 'rope_freqs.weight' is not supported"
        )
    return _from_factors(factors, config)


def _linear(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any] | None:
    # Older files have the second key; 0 stands for no scaling.
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0)) or 1.0
    if factor < 0:
        raise CheckpointError(f"the rotary scaling factor is {factor}; expected more than 0")
    return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}


def _yarn(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    factor = keys.positive("rope.scaling.factor")
    scaling: dict[str, Any] = {"rope_type": "yarn", "factor": factor}
    original = "rope.scaling.original_context_length"
    if keys.has(original):  # or it is the context
        scaling["original_max_position_embeddings"] = keys.size(original)
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if keys.has(f"rope.scaling.{key}"):
            scaling[name] = keys.positive(f"rope.scaling.{key}")
    attention = keys.positive("rope.scaling.attn_factor", 1.0)
    if attention != 1.0:
        # llama.cpp multiplies its own factor on top of YaRN's; Hugging Face has one number.
        scaling["attention_factor"] = attention * (1 + 0.1 * math.log(factor))
    return scaling


_SCALINGS: dict[str, Callable[[Keys, Mapping[str, Any]], dict[str, Any] | None]] = {
    "none": lambda keys, config: None,
    "linear": _linear,
    "longrope": lambda keys, config: None,  # whose divisors are tensors
    "yarn": _yarn,
}

# What Llama 3.1 to 3.3 were trained with; the converter stores only the resulting divisors.
_LLAMA3_ORIGINAL, _LLAMA3_LOW, _LLAMA3_HIGH = 8192, 1.0, 4.0


def llama3_factors(config: Mapping[str, Any], factor: float) -> F32:
    """Divisors of the rotary frequencies under Llama 3's scaling.

    Source: Llama 3.1's reference ``apply_scaling``; transformers ``_compute_llama3_parameters``.

    Returns:
        float32 ``[head_dim/2]``: 1 for short wavelengths, ``factor`` for long ones.
    """
    half = config["head_dim"] // 2
    frequencies = config["rope_theta"] ** -(np.arange(half) / half)
    turns = _LLAMA3_ORIGINAL * frequencies / (2 * np.pi)
    smooth = np.clip((turns - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW), 0, 1)
    divisors: F32 = (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    return divisors


def _from_factors(factors: F32, config: Mapping[str, Any]) -> dict[str, Any]:
    """Name the scaling that stored divisors came from, or pass them on as they are.

    Divisors that fit no known rule are written as ``longrope`` with equal short and long lists and
    attention factor 1, which any Hugging Face implementation applies as plain divisors.
    """
    if factors.shape != (config["head_dim"] // 2,) or factors.min() <= 0:
        raise CheckpointError(
            f"tensor 'rope_freqs.weight' has shape {list(factors.shape)}; expected "
            f"{config['head_dim'] // 2} positive factors"
        )
    factor = float(factors.max())
    original = min(_LLAMA3_ORIGINAL, config["max_position_embeddings"])
    if np.allclose(llama3_factors(config, factor), factors, rtol=1e-4):
        return {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": _LLAMA3_LOW,
            "high_freq_factor": _LLAMA3_HIGH,
            "original_max_position_embeddings": _LLAMA3_ORIGINAL,
        }
    listed = [float(value) for value in factors]
    return {
        "rope_type": "longrope",
        "factor": 1.0,
        "attention_factor": 1.0,
        "short_factor": listed,
        "long_factor": listed,
        "original_max_position_embeddings": original,
    }
