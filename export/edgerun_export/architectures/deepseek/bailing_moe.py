"""Ling 2.0 and Ring 2.0: the layers of GLM 4.5 under other names, with experts in groups.

As inclusionAI's ``modeling_bailing_moe_v2.py`` has them. Released configurations have the
``model_type`` of the first Ling, which was built otherwise.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun.values import shown
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import flag, names, natural, number
from edgerun_export.architectures.decoder.rope import partial, rope_of_part
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage
from edgerun_export.architectures.deepseek.deepseek_v3 import with_experts

_CLASS = "BailingMoeV2ForCausalLM"
_ROPE = ("rope_parameters", "rope_scaling", "partial_rotary_factor")
QKV = ("q_proj", "k_proj", "v_proj")
_STORED = {
    "self_attn.o_proj.weight": "attention.dense.weight",
    "mlp.gate.e_score_correction_bias": "mlp.gate.expert_bias",
}
# By what DeepSeek V3 calls them, the keys of config.json, and what they are unless it says them.
_KEYS = {
    "n_routed_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
    "scoring_func": "score_function",
}
_USUAL = {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5}
# Flags without an implementation, and what they are unless config.json says them.
_REFUSED = {"use_bias": True, "use_sliding_window": False, "norm_head": False}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``bailing_moe`` or ``bailing_moe_v2``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it is none of Ling 2.0, or asks for a variant without an implementation.
    """
    _refuse_others(config)
    spec = llama.describe({**config, **dict.fromkeys(_ROPE)})
    turning, head_rows = partial(rope_of_part(config, spec.head_dim, 0.5), spec.head_dim)
    is_normed = flag(config, "use_qk_norm")
    spec = replace(
        spec,
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        ropes=(turning,),
        biases=frozenset(QKV if flag(config, "use_qkv_bias") else ()),
        q_norm="attention.query_layernorm" if is_normed else None,
        k_norm="attention.key_layernorm" if is_normed else None,
        storage=Storage(
            joined={"attention.query_key_value": QKV},
            names=stored_names(spec),
            head_rows=head_rows,
        ),
    )
    first = natural(config, "first_k_dense_replace", 0, limit=spec.num_layers)
    said = {key: value for key, value in config.items() if value is not None}
    said |= {own: config.get(key) for own, key in _KEYS.items()}
    are_sparse = [layer >= first for layer in range(spec.num_layers)]
    return with_experts(spec, {**_USUAL, **said}, are_sparse)


def stored_names(spec: DecoderSpec) -> dict[str, str]:
    """By the names of tensors those that they are stored under, where these are others."""
    stored = {
        f"model.layers.{layer}.{own}": f"model.layers.{layer}.{name}"
        for layer in range(spec.num_layers)
        for own, name in _STORED.items()
    }
    return {spec.embedding_weight: "model.word_embeddings.weight", **stored}


def _refuse_others(config: Config) -> None:
    name = str(config["model_type"])
    classes = names(config, "architectures")
    if name == "bailing_moe" and _CLASS not in classes:
        raise UnsupportedError(
            f"bailing_moe checkpoints of the class {shown(', '.join(classes))} are not supported; "
            f"those of {_CLASS} (Ling 2.0, Ring 2.0) are"
        )
    for key, usual in _REFUSED.items():
        if flag(config, key, usual):
            raise UnsupportedError(f"{name} checkpoints with {key} are not supported")
    if not flag(config, "norm_topk_prob", True) or config.get("num_experts_per_tok") == 1:
        raise UnsupportedError(
            f"{name} checkpoints where scores of experts do not add up to 1 (norm_topk_prob, "
            "num_experts_per_tok of 1) are not supported"
        )


ARCHITECTURE = describe
