"""Convolutions and linear attention in plain NumPy, one token after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun_export.architectures.decoder.layer import GatedDelta

F32 = NDArray[np.float32]


def convolve(values: F32, taps: F32) -> F32:
    """What taps ``[width, count]`` make of the latest ``[tokens, width]`` of each element."""
    count, tokens = taps.shape[1], len(values)
    seen = np.pad(values, ((count - 1, 0), (0, 0)))
    mixed: F32 = sum(
        (seen[tap : tap + tokens] * taps[:, tap] for tap in range(count)), np.zeros_like(values)
    )
    return mixed


def sigmoid(x: F32) -> F32:
    """By the hyperbolic tangent, which does not overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)), np.float32)


def linear_attention(
    delta: GatedDelta, qkv: F32, decay: F32, write: F32, rate: F32, offset: F32
) -> F32:
    """What queries read of the matrices of their heads (Yang et al. 2024, equation 10).

    Args:
        delta: sizes.
        qkv: queries, keys and values behind the convolution, ``[tokens, width]``.
        decay: what tokens say of the decay, ``[tokens, value_heads]``.
        write: what they say of the strength of a change, likewise.
        rate: of the decay, ``[value_heads]``.
        offset: what is added to ``decay``.

    Returns:
        ``[tokens, value_heads, value_dim]``.
    """
    keys = delta.key_heads * delta.key_dim
    query, key = (
        _lengthless(qkv[:, begin : begin + keys].reshape(-1, delta.key_heads, delta.key_dim))
        for begin in (0, keys)
    )
    query = query / np.float32(delta.key_dim**0.5)
    value = qkv[:, 2 * keys :].reshape(-1, delta.value_heads, delta.value_dim)
    left = np.exp(rate * np.logaddexp(np.float32(0), decay + offset))[:, :, None, None]
    strength = delta.strength * sigmoid(write)[:, :, None, None]
    shared = delta.value_heads // delta.key_heads
    query, key = (np.repeat(each, shared, axis=1)[:, :, None] for each in (query, key))
    results, value = np.empty_like(value), value[:, :, None]
    matrices = np.zeros((delta.value_heads, delta.key_dim, delta.value_dim), np.float32)
    for token in range(len(qkv)):
        matrices *= left[token]
        change = (value[token] - key[token] @ matrices) * strength[token]
        matrices += key[token].transpose(0, 2, 1) * change
        results[token] = (query[token] @ matrices)[:, 0]
    return results


def _lengthless(heads: F32) -> F32:
    squares = np.sum(heads * heads, axis=-1, keepdims=True)
    return np.asarray(heads / np.sqrt(squares + np.float32(GatedDelta.epsilon)), np.float32)
