"""A decoder in plain NumPy, written to be read: what exported bundles are verified against.

It shares no code with the graph or the quantisers, and handles one sequence without a cache.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgerun.activations.registry import ACTIVATIONS
from edgerun_export.architectures import DecoderSpec

F32 = NDArray[np.float32]
_HEAD_ROWS = 8192


class Weights(Protocol):
    """Where the forward pass finds its tensors, by Hugging Face name, as float32."""

    def vector(self, name: str) -> F32:
        """A bias or the weight of a norm, ``[n]``."""
        ...

    def matrix(self, name: str) -> F32:
        """A projection, ``[out_features, in_features]``."""
        ...

    def head_name(self) -> str:
        """Name of the head's tensor, which may be the embedding's."""
        ...

    def rows(self, name: str, rows: slice) -> F32:
        """Some rows of the embedding or the head."""
        ...


def forward(spec: DecoderSpec, weights: Weights, ids: NDArray[np.int64]) -> F32:
    """Returns the logits after every token, float32 ``[tokens, vocab]``.

    Args:
        spec: the decoder.
        weights: its tensors.
        ids: token ids ``[tokens]``.
    """
    hidden = np.concatenate(
        [weights.rows(spec.embedding_weight, slice(i, i + 1)) for i in map(int, ids)]
    )
    for layer in range(spec.num_layers):
        hidden = _layer(spec, weights, layer, hidden)
    hidden = _norm(hidden, weights.vector(spec.final_norm_weight), spec.norm_eps)
    starts = range(0, spec.vocab_size, _HEAD_ROWS)
    parts = [slice(at, min(at + _HEAD_ROWS, spec.vocab_size)) for at in starts]
    head = weights.head_name()
    return np.concatenate([hidden @ weights.rows(head, part).T for part in parts], axis=1)


def _layer(spec: DecoderSpec, weights: Weights, layer: int, hidden: F32) -> F32:
    prefix = f"model.layers.{layer}"

    def linear(value: F32, name: str) -> F32:
        projection = spec.projections()[name]
        result = value @ weights.matrix(f"{prefix}.{projection.path}.weight").T
        if projection.bias:
            result = result + weights.vector(f"{prefix}.{projection.path}.bias")
        return result

    def norm(value: F32, path: str | None) -> F32:
        if path is None:
            return value
        return _norm(value, weights.vector(f"{prefix}.{path}.weight"), spec.norm_eps)

    def rounded(value: F32) -> F32:
        return value if spec.ternary is None else _round_rows(value)

    def heads(value: F32, path: str | None) -> F32:
        return norm(value.reshape(len(value), -1, spec.head_dim), path).transpose(1, 0, 2)

    inner = rounded(norm(hidden, spec.input_norm))
    query = _rotate(spec, heads(linear(inner, "q_proj"), spec.q_norm))
    key = _rotate(spec, heads(linear(inner, "k_proj"), spec.k_norm))
    value = heads(linear(inner, "v_proj"), None)
    mixed = norm(_attend(spec, layer, query, key, value), spec.attention_sub_norm)
    hidden = hidden + linear(rounded(mixed), "o_proj")

    inner = rounded(norm(hidden, spec.post_attention_norm))
    gate, up = linear(inner, "gate_proj"), linear(inner, "up_proj")
    inner = rounded(norm(ACTIVATIONS[spec.activation].define(gate) * up, spec.mlp_sub_norm))
    return hidden + linear(inner, "down_proj")


def _norm(value: F32, weight: F32, epsilon: float) -> F32:
    mean = np.mean(value * value, axis=-1, keepdims=True, dtype=np.float32)
    length: F32 = np.sqrt(mean + np.float32(epsilon))
    return value / length * weight


def _round_rows(value: F32) -> F32:
    largest: F32 = np.maximum(np.abs(value).max(axis=-1, keepdims=True), np.float32(1e-5))
    scale = np.float32(127) / largest
    integers: F32 = np.rint(value * scale)
    clipped: F32 = np.clip(integers, np.float32(-128), np.float32(127))
    return clipped / scale


def _rotate(spec: DecoderSpec, heads: F32) -> F32:
    positions = np.arange(heads.shape[1], dtype=np.float32)
    angles = positions[:, None] * spec.rope.inv_freq[None, :]
    factor = np.float32(spec.rope.attention_factor)
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _attend(spec: DecoderSpec, layer: int, query: F32, key: F32, value: F32) -> F32:
    """Attention of ``[heads, tokens, head_dim]``; returns ``[tokens, heads * head_dim]``."""
    tokens = query.shape[1]
    distance = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]
    visible = (distance >= 0) & (distance < (spec.windows[layer] or tokens))
    shared = spec.num_heads // spec.num_kv_heads
    key, value = key.repeat(shared, axis=0), value.repeat(shared, axis=0)
    scores = query @ key.transpose(0, 2, 1) * np.float32(spec.attention_scale)
    scores = np.where(visible, scores, np.float32(-np.inf))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: F32 = weights @ value
    return mixed.transpose(1, 0, 2).reshape(tokens, -1)
