"""State spaces in plain NumPy, one token after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgerun.activations.registry import ACTIVATIONS
from edgerun_export.architectures.decoder.state_space import StateSpace
from edgerun_export.verify.numpy_delta import convolve
from edgerun_export.verify.numpy_ops import norm

F32 = NDArray[np.float32]


def mixed(space: StateSpace, xbc: F32, step: F32, vector: Callable[[str], F32]) -> F32:
    """What queries read of the matrices of their heads (Dao and Gu 2024, section 6).

    Args:
        space: sizes.
        xbc: inputs, keys and queries before the convolution, ``[tokens, width]``.
        step: what tokens say of their time, ``[tokens, heads]``.
        vector: reads a tensor at a path below the layer.

    Returns:
        ``[tokens, inner]``.
    """
    taps = vector(space.weight).reshape(-1, space.taps)
    active = ACTIVATIONS["silu"].define(convolve(xbc, taps) + vector(space.bias))
    x, keys, queries = np.split(active, [space.inner, space.inner + space.keys], axis=1)
    x = x.reshape(-1, space.heads, space.head_dim)
    keys, queries = (
        np.repeat(each.reshape(len(x), space.groups, -1), space.heads // space.groups, axis=1)
        for each in (keys, queries)
    )
    time = np.logaddexp(np.float32(0), step + vector(space.offset))
    left = np.exp(vector(space.rate) * time)
    results = x * vector(space.skip)[:, None]
    matrices = np.zeros(space.shape, np.float32)
    for token in range(len(x)):
        taken = x[token] * time[token, :, None]
        matrices = matrices * left[token, :, None, None] + keys[token][:, :, None] * taken[:, None]
        results[token] += (queries[token][:, None] @ matrices)[:, 0]
    return results.reshape(len(x), -1)


def opened(space: StateSpace, gate: F32, value: F32, vector: Callable[[str], F32]) -> F32:
    """The result behind gate and norm, ``[tokens, inner]``."""
    if space.norm == "before":
        value = _normed(space, value, vector)
    value = ACTIVATIONS["silu"].product(gate, value)
    return _normed(space, value, vector) if space.norm == "behind" else value


def _normed(space: StateSpace, value: F32, vector: Callable[[str], F32]) -> F32:
    (path,) = space.norms
    groups = value.reshape(len(value), space.groups, -1)
    ones = np.ones(groups.shape[-1], np.float32)
    return norm(groups, ones, space.norm_eps).reshape(value.shape) * vector(f"{path}.weight")
