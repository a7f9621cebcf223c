"""Several residual streams in NumPy, as columns of one array, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.streams import AltUp, PerLayerInputs
from edgerun_export.verify.numpy_ops import norm
from edgerun_export.verify.parts import Weights

F32 = NDArray[np.float32]
Read = Callable[[str], F32]  # a square matrix by its name


def begin_streams(altup: AltUp, read: Read, hidden: F32) -> F32:
    """All streams ``[tokens, streams * hidden]`` of what tokens are embedded as."""
    others = [_matched(hidden @ read(name).T, hidden, altup.floor) for name in altup.begins]
    return np.concatenate([hidden, *others], axis=1)


def end_streams(altup: AltUp, read: Read, streams: F32) -> F32:
    """What the last norm reads, ``[tokens, hidden]``."""
    first, *others = np.split(streams, altup.count, axis=1)
    parts = [
        _matched(stream @ read(name).T, first, altup.floor)
        for name, stream in zip(altup.ends, others, strict=True)
    ]
    mean: F32 = np.mean([first, *parts], axis=0, dtype=np.float32)
    return mean


def predict_streams(altup: AltUp, streams: F32, coefs: F32) -> F32:
    """The streams before a layer, each changed by a sum of all."""
    parts = streams.reshape(len(streams), altup.count, -1)
    matrices = coefs.reshape(len(streams), altup.count, altup.count)
    sums: F32 = np.matmul(matrices, parts).reshape(streams.shape)
    return streams + sums


def correct_streams(altup: AltUp, streams: F32, activated: F32, coefs: F32) -> F32:
    """The streams behind a layer that made ``activated`` of the first."""
    parts = streams.reshape(len(streams), altup.count, -1)
    change = activated - parts[:, 0]
    parts = parts + (coefs + np.float32(1))[:, :, None] * change[:, None]
    return np.asarray(parts.reshape(streams.shape))


def _matched(value: F32, like: F32, floor: float) -> F32:
    """Rows with the root mean square of those of another; their own counts as a least one."""
    squares: F32 = np.mean(value * value, axis=-1, keepdims=True, dtype=np.float32)
    expected: F32 = np.sqrt(np.mean(like * like, axis=-1, keepdims=True, dtype=np.float32))
    length: F32 = np.sqrt(np.maximum(squares, np.float32(floor)))
    return value * expected / length


def rows_of(weights: Weights, name: str, ids: NDArray[np.int64]) -> F32:
    """Rows of a table, ``[tokens, width]``."""
    return np.concatenate([weights.rows(name, slice(i, i + 1)) for i in map(int, ids)])


def layer_inputs(
    spec: DecoderSpec,
    inputs: PerLayerInputs,
    weights: Weights,
    hidden: F32,
    ids: NDArray[np.int64],
) -> F32:
    """The inputs of all layers, ``[tokens, layers * width]``."""
    height = spec.num_layers * inputs.width
    products = hidden @ weights.rows(inputs.projection, slice(0, height)).T
    parts = products.reshape(len(ids), spec.num_layers, inputs.width)
    normed = norm(parts, weights.vector(f"{inputs.norm}.weight"), inputs.norm_eps)
    return normed.reshape(len(ids), -1) + rows_of(weights, inputs.table, ids)
