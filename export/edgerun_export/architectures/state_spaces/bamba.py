"""Bamba: state spaces in most layers, attention with partial rope in the others (Bamba 9B)."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import CheckpointError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import number
from edgerun_export.architectures.decoder.rope import partial, rope_of_part
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage
from edgerun_export.architectures.state_spaces.parts import (
    check_attention,
    expanded,
    renamed,
    state_space,
    with_state_spaces,
)

_NAME = "bamba"
_TURNED = 0.5  # of a head, whatever config.json says
_ROPE = ("rope_parameters", "rope_scaling", "partial_rotary_factor")
# BambaConfig's, where what is reused has others.
_USUAL = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 262144,
    "intermediate_size": 14336,
}
_EPS = 1e-5
_NAMES = {f"mlp.{each}": f"feed_forward.{each}" for each in ("gate_proj", "up_proj", "down_proj")}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``bamba``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    config = {**_USUAL, **{key: value for key, value in config.items() if value is not None}}
    norm_eps = number(config, "rms_norm_eps", _EPS)
    plain = llama.describe({**config, **dict.fromkeys(_ROPE), "rms_norm_eps": norm_eps})
    silent = {**config, "partial_rotary_factor": None}
    turning, head_rows = partial(rope_of_part(silent, plain.head_dim, _TURNED), plain.head_dim)
    attends = _attending(config, plain.num_layers)
    check_attention(attends, _NAME)
    names = {plain.final_norm_weight: "model.final_layernorm.weight"}
    spec = replace(
        plain,
        architecture=_NAME,
        ropes=(turning,),
        feed_forward_norm="pre_ff_layernorm",
        storage=Storage(head_rows=head_rows, names=names | renamed(plain, _NAMES)),
    )
    space = state_space(config, _NAME, expanded(config, spec.hidden_size), norm_eps)
    return with_state_spaces(spec, [None if each else space for each in attends])


def _attending(config: Config, num_layers: int) -> list[bool]:
    indices = config.get("attn_layer_indices", [])
    if not isinstance(indices, list) or not all(
        type(each) is int and 0 <= each < num_layers for each in indices
    ):
        raise CheckpointError(
            f"config.json: 'attn_layer_indices' is {str(indices)[:60]} and must be a list of "
            f"layers' numbers, 0 to {num_layers - 1}"
        )
    return [layer in indices for layer in range(num_layers)]


ARCHITECTURE = describe
