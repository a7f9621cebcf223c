"""Poolside's Laguna: gated attention whose heads differ in number from layer to layer (2026).

Windows have a rope of their own, and in other layers a part of each head is turned. Every head has
a gate, the softplus of one more projection.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun.values import shown
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import (
    check_off,
    check_width,
    experts_chosen,
    number,
    positive,
    section,
    sparse_layers,
    typed_windows,
)
from edgerun_export.architectures.decoder.layer import Dense, Experts, SharedExpert
from edgerun_export.architectures.decoder.rope import partial, rope_of_part
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import stored_modules

_FULL, _SLIDING = "full_attention", "sliding_attention"
_CAP = "moe_router_logit_softcapping"
# LagunaConfig's, where what is reused has others or none.
_USUAL = {
    "head_dim": 128,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "rope_parameters": {
        _FULL: {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
        _SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    },
}
_HEADS = "num_attention_heads_per_layer"


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``laguna``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    said = _USUAL | {key: value for key, value in config.items() if value is not None}
    check_off(said, "laguna", ("moe_apply_router_weight_on_input",))
    spec = llama.describe({**said, "rope_parameters": None, "rope_scaling": None})
    count = spec.num_layers
    window = positive(said, "sliding_window", 512)
    windows = typed_windows({**config, **said}, window, [False] * count)
    spec = _with_heads(_with_ropes(spec.with_windows(windows), said), said)
    dense, experts = Dense(positive(said, "intermediate_size")), _experts(said)
    are_sparse = sparse_layers(said, [layer > 0 for layer in range(count)])
    return replace(
        spec.with_feed_forward([experts if is_sparse else dense for is_sparse in are_sparse]),
        architecture="laguna",
        biases=declared_biases(said, ("attention_bias",)),
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        gates_attention=True,
        attention_gate="softplus",
    )


def _with_ropes(spec: DecoderSpec, config: Config) -> DecoderSpec:
    """The same decoder with a rope for each type of layer, of which some turn a part of a head."""
    by_type = section(config, "rope_parameters")
    kinds = [_SLIDING if layer.window else _FULL for layer in spec.layers]
    used = [kind for kind in (_FULL, _SLIDING) if kind in kinds]
    turned = {}
    for kind in used:
        own = section(by_type, kind)
        if own.get("rope_theta") is None:
            raise CheckpointError(
                f"config.json: 'rope_parameters' has no object '{kind}' with a rope_theta, and "
                "there are layers of this type; expected one"
            )
        silent = {**config, "rope_parameters": own, "rope_scaling": None}
        rope = rope_of_part({**silent, "partial_rotary_factor": None}, spec.head_dim, 1.0)
        turned[kind] = partial(rope, spec.head_dim)
    rows = {layer: turned[kind][1] for layer, kind in enumerate(kinds)}
    own_rows = {layer: order for layer, order in rows.items() if order is not None}
    return replace(
        spec.with_ropes([used.index(kind) for kind in kinds]),
        ropes=tuple(turned[kind][0] for kind in used),
        storage=replace(spec.storage, own_head_rows=own_rows),
    )


def _with_heads(spec: DecoderSpec, config: Config) -> DecoderSpec:
    """The same decoder with as many query heads in each layer as it has, and with their gates."""
    counts: Any = config.get(_HEADS, [spec.num_heads] * spec.num_layers)
    if (
        not isinstance(counts, list)
        or len(counts) != spec.num_layers
        or any(type(each) is not int or each < 1 or each % spec.num_kv_heads for each in counts)
    ):
        raise CheckpointError(
            f"config.json: '{_HEADS}' must be {spec.num_layers} multiples of num_key_value_heads "
            f"{spec.num_kv_heads}, not {str(counts)[:60]}"
        )
    check_width(f"{max(counts)} heads of {spec.head_dim}", max(counts) * spec.head_dim)
    pairs = zip(spec.layers, counts, strict=True)
    modules = {"self_attn.attention_gate": "self_attn.g_proj"}
    names = stored_modules(spec.num_layers, modules)
    return replace(
        spec,
        layers=tuple(replace(layer, num_heads=heads) for layer, heads in pairs),
        gates_by_head=_is_by_head(config),
        storage=replace(spec.storage, names=names),
    )


def _is_by_head(config: Config) -> bool:
    gating: object = config.get("gating", True)
    if gating is not True and gating not in ("per-head", "per-element"):
        raise UnsupportedError(
            f"laguna checkpoints with a gating of {shown(gating)} are not supported; those with "
            "true, 'per-head' or 'per-element' are"
        )
    return gating != "per-element"


def _experts(config: Config) -> Experts:
    count, top_k = experts_chosen(config, "num_experts")
    return Experts(
        count=count,
        top_k=top_k,
        width=positive(config, "moe_intermediate_size"),
        normalise=True,
        scoring="sigmoid",
        softcap=number(config, _CAP) if config.get(_CAP) else None,  # 0 means none
        selection_bias="mlp.experts.e_score_correction_bias",
        scale=number(config, "moe_routed_scaling_factor", 1.0),
        shared=SharedExpert(
            positive(config, "shared_expert_intermediate_size", 512), "mlp.shared_expert", gate=""
        ),
    )


ARCHITECTURE = describe
