"""OLMo Hybrid 7B: linear attention in three of four layers, OLMo 3's in the others (2026).

Norms are before the parts of layers of linear attention, and behind those of the others, which have
no rope where ``rope_theta`` is null. Source: transformers 5.24, ``modular_olmo_hybrid.py``;
what released models call their tensors is in its ``conversion_mapping.py``.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import olmo2
from edgerun_export.architectures.decoder.fields import flag, positive, said_of_rope
from edgerun_export.architectures.decoder.layer import GatedDelta, NormsAround, Rope
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage
from edgerun_export.architectures.linear.parts import (
    FULL,
    LINEAR,
    check_silu,
    gated_delta,
    layer_kinds,
)

_NAME = "olmo_hybrid"
_ROPE = ("rope_parameters", "rope_scaling", "rope_theta")
_THETA = 10000.0
_NORM_EPS = 1e-5  # of heads, whatever others have
_MODULES = {
    "in_proj_z.weight": "g_proj.weight",
    "in_proj_a.weight": "a_proj.weight",
    "in_proj_b.weight": "b_proj.weight",
    "out_proj.weight": "o_proj.weight",
    "norm.weight": "o_norm.weight",
    "rate": "A_log",
}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``olmo_hybrid``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    check_silu(config, _NAME)
    plain = {**dict.fromkeys(_ROPE), "max_position_embeddings": 65536, "rms_norm_eps": 1e-6}
    said = {key: value for key, value in config.items() if value is not None}
    spec = olmo2.describe({**plain, **{key: said[key] for key in said if key not in _ROPE}})
    turning = _rope(config, spec.head_dim)
    spec = spec.with_ropes([None if turning is None else 0] * spec.num_layers)
    delta = _delta(said, spec)
    kinds = _kinds(said, spec.num_layers)
    norms = NormsAround("input_layernorm", None, "post_attention_layernorm", None)
    layers = tuple(
        replace(layer, delta=delta, norms=norms) if kind == LINEAR else layer
        for layer, kind in zip(spec.layers, kinds, strict=True)
    )
    return replace(
        spec,
        architecture=_NAME,
        layers=layers,
        ropes=spec.ropes if turning is None else (turning,),
        storage=Storage(names=_names(kinds, delta), logarithms=(delta.rate,)),
    )


def _rope(config: Config, head_dim: int) -> Rope | None:
    """The rope of layers of attention; None where its base is said to be none."""
    parameters = said_of_rope(config)
    theta = parameters.get("rope_theta", config.get("rope_theta", _THETA))
    if theta is None:
        return None
    said = {**parameters, "rope_theta": theta}
    return rope({**config, "rope_parameters": said, "rope_scaling": None}, head_dim)


def _delta(config: Config, spec: DecoderSpec) -> GatedDelta:
    """Sizes of linear attention, of which those that are not said follow from others."""
    said = {"linear_num_key_heads": spec.num_heads, "linear_num_value_heads": spec.num_heads}
    said |= config
    key_heads = positive(said, "linear_num_key_heads")
    said.setdefault("linear_key_head_dim", int(0.75 * spec.hidden_size / key_heads))
    said.setdefault("linear_value_head_dim", 2 * positive(said, "linear_key_head_dim"))
    strength = 2.0 if flag(config, "linear_allow_neg_eigval", True) else 1.0
    return replace(gated_delta(said), strength=strength, norm_eps=_NORM_EPS)


def _kinds(config: Config, num_layers: int) -> list[str]:
    """What each layer has; the last one attends where no other does, unless it is said."""
    if not config.get("layer_types") and num_layers < 4:
        return [LINEAR] * (num_layers - 1) + [FULL]
    return layer_kinds({**config, "full_attention_interval": 4}, _NAME, num_layers)


def _names(kinds: list[str], delta: GatedDelta) -> dict[str, str]:
    """Names that tensors of layers of linear attention are stored under, where they are others."""
    names: dict[str, str] = {}
    for layer, kind in enumerate(kinds):
        at = f"model.layers.{layer}"
        if kind == LINEAR:
            module = f"{at}.{delta.module}"
            names |= {f"{module}.{own}": f"{module}.{stored}" for own, stored in _MODULES.items()}
    return names


ARCHITECTURE = describe
