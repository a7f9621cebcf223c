"""What all of these decoders have in common: kinds of layers, gates, norms, how rows are stored."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import check_width, flag, names, natural, positive
from edgerun_export.architectures.decoder.layer import Experts, GatedDelta, SharedExpert
from edgerun_export.architectures.decoder.rope import partial, rope_of_part
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import (
    MTP_LEFT_OUT,
    PickedRows,
    Storage,
    picked_in_turns,
)
from edgerun_export.architectures.qwen_vl.mrope import of_text

_ROPE = ("rope_parameters", "rope_scaling", "partial_rotary_factor")
LINEAR, FULL = "linear_attention", "full_attention"
_MAX_TAPS, _MAX_HEADS, _MAX_DIM = 64, 4096, 4096  # more than any model has
# Defaults of transformers' Qwen3NextConfig, Qwen3_5TextConfig and Qwen3_5MoeTextConfig alike.
_HEAD_DIM, _TURNED, _CONTEXT, _INTERVAL = 256, 0.25, 32768, 4
_TAPS, _KEY_HEADS, _VALUE_HEADS, _DIM = 4, 16, 32, 128


def hybrid(config: Config, name: str) -> DecoderSpec:
    """Describes a decoder of linear attention and gated attention.

    Args:
        config: keys of config.json, with ``intermediate_size``.
        name: the model_type.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    _check(config, name)
    head_dim = positive(config, "head_dim", _HEAD_DIM)
    plain = {
        **config,
        **dict.fromkeys(_ROPE),
        "head_dim": head_dim,
        "max_position_embeddings": positive(config, "max_position_embeddings", _CONTEXT),
    }
    spec = llama.describe(plain)
    turning, head_rows = partial(rope_of_part(of_text(config), head_dim, _TURNED), head_dim)
    delta, kinds = gated_delta(config), layer_kinds(config, name, spec.num_layers)
    layers = tuple(
        replace(layer, delta=delta if kind == LINEAR else None)
        for layer, kind in zip(spec.layers, kinds, strict=True)
    )
    rates = {
        f"model.layers.{number}.{delta.rate}": f"model.layers.{number}.{delta.module}.A_log"
        for number, kind in enumerate(kinds)
        if kind == LINEAR
    }
    # As GGUF files say it, which have such layers behind the others.
    count = natural(config, "num_nextn_predict_layers", 0, limit=spec.num_layers)
    predicting = range(spec.num_layers, spec.num_layers + count)
    return replace(
        spec,
        architecture=name,
        layers=layers,
        ropes=(turning,),
        biases=frozenset(),
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        gates_attention=True,
        notes=(MTP_LEFT_OUT,) if count else (),
        storage=Storage(
            picked=_with_gates(spec.num_heads, head_dim),
            names=rates,
            norm_offset=1.0,
            plain_norms=(delta.norm,),
            logarithms=(delta.rate,),
            head_rows=head_rows,
            unused=("mtp.", *(f"model.layers.{layer}." for layer in predicting)),
            said_of_unused={"mtp.": MTP_LEFT_OUT},
        ),
    )


def shared_expert(part: Experts, width: int) -> Experts:
    """The same experts with one more, which all tokens go through by a gate."""
    return replace(part, shared=SharedExpert(width))


def _check(config: Config, name: str) -> None:
    if flag(config, "attention_bias"):
        raise UnsupportedError(f"{name} checkpoints with biases in attention are not supported")
    check_silu(config, name)


def check_silu(config: Config, name: str) -> None:
    """Refuses another activation than the one that convolutions go through.

    Raises:
        UnsupportedError: there is another.
    """
    activation = config.get("hidden_act")
    if activation not in (None, "silu", "swish"):
        raise UnsupportedError(
            f"{name} checkpoints with hidden_act '{activation}' are not supported: their "
            "convolutions go through it, too; those with silu are"
        )


def _with_gates(heads: int, head_dim: int) -> dict[str, PickedRows]:
    """Of each head the rows of its query, and then those of its gate."""
    parts = (("q_proj", head_dim), ("attention_gate", head_dim))
    return picked_in_turns("self_attn.q_proj", heads, parts)


def gated_delta(config: Config) -> GatedDelta:
    """Sizes of linear attention.

    Raises:
        CheckpointError: one is out of range, or does not fit the others.
        UnsupportedError: its convolution reads no earlier token.
    """
    key_heads = positive(config, "linear_num_key_heads", _KEY_HEADS, limit=_MAX_HEADS)
    value_heads = positive(config, "linear_num_value_heads", _VALUE_HEADS, limit=_MAX_HEADS)
    if value_heads % key_heads:
        raise CheckpointError(
            f"config.json: linear_num_value_heads {value_heads} is not a multiple of "
            f"linear_num_key_heads {key_heads}"
        )
    taps = positive(config, "linear_conv_kernel_dim", _TAPS, limit=_MAX_TAPS)
    if taps == 1:
        raise UnsupportedError(
            "checkpoints with a linear_conv_kernel_dim of 1, whose convolutions read no earlier "
            "token, are not supported; those with 2 and more are"
        )
    delta = GatedDelta(
        key_heads,
        value_heads,
        positive(config, "linear_key_head_dim", _DIM, limit=_MAX_DIM),
        positive(config, "linear_value_head_dim", _DIM, limit=_MAX_DIM),
        taps,
    )
    check_width("queries, keys and values of linear attention", delta.width)
    return delta


def layer_kinds(config: Config, name: str, num_layers: int) -> list[str]:
    """What each layer has.

    Raises:
        CheckpointError: other layers are named than there are.
        UnsupportedError: a type has no implementation, or no layer attends.
    """
    kinds = names(config, "layer_types")
    if not kinds:
        interval = positive(config, "full_attention_interval", _INTERVAL)
        kinds = [LINEAR if (each + 1) % interval else FULL for each in range(num_layers)]
    if others := sorted({*kinds} - {LINEAR, FULL}):
        raise UnsupportedError(
            f"{name} checkpoints with layers of '{others[0]}' are not supported; those with "
            f"{LINEAR} and {FULL} are"
        )
    if len(kinds) != num_layers:
        raise CheckpointError(
            f"config.json: layer_types names {len(kinds)} layers, the model has {num_layers}"
        )
    if FULL not in kinds:
        raise UnsupportedError(f"{name} checkpoints without a layer of attention are not supported")
    return kinds
