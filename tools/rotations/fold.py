"""Rotations and scales, folded into weights such that the model computes the same.

All is written with operators that arrays of NumPy and tensors of torch share, and needs no torch.
OSTQuant (Hu et al. 2025, section 4.2) has these pairs, and one more of queries and keys, which
moves only what a cache of keys stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.storage import HEAD_WEIGHT

Array = Any  # of NumPy or torch
PAIRS = ("attention", "values", "mlp", "up")


@dataclass(frozen=True, slots=True)
class LayerPairs:
    """What is folded into a layer.

    Attributes:
        turn: rotation of the values of every head, ``[head_dim, head_dim]``.
        scales: positive, by their place: inputs of attention and of the feed-forward part
            ``[hidden_size]``, values ``[num_kv_heads, head_dim]``, inputs of down_proj
            ``[intermediate_size]``.
    """

    turn: Array
    scales: Mapping[str, Array]


def fold_layer(
    spec: DecoderSpec, weights: Mapping[str, Array], rotation: Array, pairs: LayerPairs
) -> dict[str, Array]:
    """A layer's weights by short names, with all folded in.

    Args:
        spec: the decoder, a plain Llama.
        weights: the source's, projections ``[N, K]`` and both norms.
        rotation: of the residual stream, ``[hidden_size, hidden_size]``.
        pairs: the layer's own.
    """
    attention, values, mlp, up = (pairs.scales[name] for name in PAIRS)
    first, second = weights["input_layernorm"], weights["post_attention_layernorm"]
    read = {name: ((weights[name] * first) @ rotation) / attention for name in _READERS}
    gates = {name: ((weights[name] * second) @ rotation) / mlp for name in ("gate_proj", "up_proj")}
    size, group = spec.head_dim, spec.num_heads // spec.num_kv_heads
    hidden = spec.hidden_size
    turned = pairs.turn.T @ read["v_proj"].reshape(spec.num_kv_heads, size, hidden)
    heads = weights["o_proj"].reshape(hidden, spec.num_kv_heads, group, size) @ pairs.turn
    back = (heads * values[None, :, None, :]).reshape(hidden, spec.num_heads * size)
    return {
        "input_layernorm": attention,
        "post_attention_layernorm": mlp,
        "q_proj": read["q_proj"],
        "k_proj": read["k_proj"],
        "v_proj": (turned / values[..., None]).reshape(spec.num_kv_heads * size, hidden),
        "o_proj": rotation.T @ back,
        "gate_proj": gates["gate_proj"],
        "up_proj": gates["up_proj"] / up[:, None],
        "down_proj": rotation.T @ (weights["down_proj"] * up),
    }


_READERS = ("q_proj", "k_proj", "v_proj")


def fold_ends(
    spec: DecoderSpec, embedding: Array, head: Array, final_norm: Array, rotation: Array
) -> dict[str, Array]:
    """Embedding, head and last norm by their names; the head is one of its own."""
    return {
        spec.embedding_weight: embedding @ rotation,
        HEAD_WEIGHT: (head * final_norm) @ rotation,
        spec.final_norm_weight: 0 * final_norm + 1,
    }
