"""The definition of every op in NumPy: what all kernels and back-ends are tested against.

Clarity decides here, not speed. Shapes as in ``graph/ops.py``: values are float32
``[rows, width]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.formats import format_named
from edgerun.formats.base import PackedWeight
from edgerun.state import Batch, KVCache

F32 = NDArray[np.float32]
INT8_MAX = np.float32(127)
MIN_ABSMAX = np.float32(1e-5)  # BitNet b1.58 clamps the row maximum here


def dense(weight: NDArray[Any] | PackedWeight) -> F32:
    """The float32 matrix that a constant stands for."""
    if isinstance(weight, PackedWeight):
        return format_named(weight.format).unpack(weight)
    return weight.astype(np.float32)


def embedding(ids: NDArray[np.int32], table: NDArray[Any] | PackedWeight) -> F32:
    """Rows ``ids`` of the table ``[vocab, width]``."""
    if not isinstance(table, PackedWeight):
        return table[ids].astype(np.float32)
    rows = PackedWeight(
        table.format,
        (len(ids), table.shape[1]),
        table.block,
        table.codes[ids],
        table.scales[ids],
        None if table.zeros is None else table.zeros[ids],
    )
    return dense(rows)


def rms_norm(x: F32, weight: F32, *, epsilon: float) -> F32:
    """``x / sqrt(mean(x**2) + epsilon) * weight`` over groups of ``len(weight)`` elements.

    Source: Zhang and Sennrich 2019, equation 4.
    """
    groups = x.reshape(len(x), x.shape[1] // len(weight), len(weight))
    mean: F32 = np.mean(groups * groups, axis=-1, keepdims=True, dtype=np.float32)
    root: F32 = np.sqrt(mean + np.float32(epsilon))
    normal = groups / root * weight
    return normal.reshape(x.shape)


def quantize_row(x: F32) -> tuple[NDArray[np.int8], F32]:
    """int8 codes and one scale a row: ``scale = max(absmax, 1e-5) / 127``, nearest even.

    Source: Ma et al. 2024 (BitNet b1.58), as transformers implements it.
    """
    factor = INT8_MAX / np.maximum(np.abs(x).max(axis=-1, keepdims=True), MIN_ABSMAX)
    codes = np.clip(np.rint(x * factor), -128, 127).astype(np.int8)
    return codes, (1 / factor[:, 0]).astype(np.float32)


def quantize_block(x: F32, block: int) -> tuple[NDArray[np.int8], F32]:
    """int8 codes and one scale per block of K: ``scale = absmax / 127``, nearest even."""
    rows, k = x.shape
    padded = np.zeros((rows, -(-k // block) * block), np.float32)
    padded[:, :k] = x
    blocks = padded.reshape(rows, padded.shape[1] // block, block)
    scales = np.abs(blocks).max(axis=-1) / INT8_MAX
    inverse = np.where(scales > 0, 1 / np.where(scales > 0, scales, 1), 0)
    codes = np.rint(blocks * inverse[..., None].astype(np.float32)).astype(np.int8)
    return codes.reshape(padded.shape)[:, :k], scales.astype(np.float32)


def rounded_activations(x: F32, activations: str, block: int) -> F32:
    """The activations as a linear layer sees them."""
    if activations == "int8_row":
        codes, scale = quantize_row(x)
        return codes * scale[:, None]
    if activations == "int8_block":
        codes, scales = quantize_block(x, block)
        return codes * np.repeat(scales, block, axis=1)[:, : x.shape[1]]
    return x


def linear(
    x: F32,
    weight: NDArray[Any] | PackedWeight,
    bias: F32 | None = None,
    residual: F32 | None = None,
    *,
    activations: str = "float",
) -> F32:
    """``round(x) @ weight.T + bias + residual`` with ``weight`` ``[N, K]``."""
    block = weight.block if isinstance(weight, PackedWeight) else 1
    out = rounded_activations(x, activations, block) @ dense(weight).T
    if bias is not None:
        out = out + bias
    if residual is not None:
        out = out + residual
    return out.astype(np.float32)


def rotary(
    x: F32, positions: NDArray[np.int32], inv_freq: F32, *, head_dim: int, factor: float
) -> F32:
    """Rotates pairs ``(i, i + head_dim / 2)`` of every head by ``position * inv_freq[i]``.

    Source: Su et al. 2021, section 3.2.2, in the half-split order of Hugging Face.
    """
    angles = positions[:, None, None].astype(np.float32) * inv_freq.astype(np.float32)
    cos, sin = np.cos(angles) * np.float32(factor), np.sin(angles) * np.float32(factor)
    heads = x.reshape(len(x), -1, head_dim)
    first, second = heads[..., : head_dim // 2], heads[..., head_dim // 2 :]
    turned = [first * cos - second * sin, second * cos + first * sin]
    return np.concatenate(turned, axis=-1).reshape(x.shape).astype(np.float32)


def attention(
    q: F32,
    k: F32,
    v: F32,
    *,
    batch: Batch,
    cache: KVCache,
    layer: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    scale: float,
    window: int,
) -> F32:
    """Writes keys and values into the cache, then attends causally to what it holds.

    A row at position p sees positions ``max(0, p - window + 1) .. p`` of its sequence (all up to
    p when ``window`` is 0), read back from the cache in its storage type. Query heads share
    key/value heads in consecutive groups (Ainslie et al. 2023).
    """
    keys, values = (part.reshape(-1, num_kv_heads, head_dim) for part in (k, v))
    for row in range(batch.rows):
        sequence, position = int(batch.sequences[row]), int(batch.positions[row])
        cache.write(layer, sequence, position, keys[row : row + 1], values[row : row + 1])
    out = np.empty((len(q), num_heads, head_dim), np.float32)
    for row, heads in enumerate(q.reshape(-1, num_kv_heads, num_heads // num_kv_heads, head_dim)):
        position = int(batch.positions[row])
        first = max(0, position - window + 1) if window else 0
        past_k, past_v = cache.read(layer, int(batch.sequences[row]), position + 1)
        scores = np.einsum("hgd,thd->hgt", heads, past_k[first:]) * np.float32(scale)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[row] = np.einsum("hgt,thd->hgd", weights, past_v[first:]).reshape(num_heads, head_dim)
    return out.reshape(len(q), -1)


def silu(x: F32) -> F32:
    """``x * sigmoid(x)`` (Elfwing et al. 2018)."""
    return np.asarray(x / (1 + np.exp(-np.clip(x, -80, None))), dtype=np.float32)


def relu2(x: F32) -> F32:
    """``max(x, 0) ** 2`` (So et al. 2021)."""
    positive = np.maximum(x, np.float32(0))
    return positive * positive


ACTIVATIONS: dict[str, Callable[[F32], F32]] = {"silu": silu, "relu2": relu2}


def gate(gate: F32, up: F32, *, activation: str) -> F32:
    """``activation(gate) * up``."""
    return ACTIVATIONS[activation](gate) * up


def add(a: F32, b: F32) -> F32:
    """``a + b``."""
    return a + b


def select_rows(x: F32, *, batch: Batch) -> F32:
    """The rows whose logits are wanted."""
    return x[batch.logit_rows]


_CONTEXT: dict[str, tuple[str, ...]] = {"attention": ("batch", "cache"), "select_rows": ("batch",)}
_OPS: dict[str, Callable[..., F32]] = {
    "embedding": embedding,
    "rms_norm": rms_norm,
    "linear": linear,
    "rotary": rotary,
    "attention": attention,
    "gate": gate,
    "add": add,
    "select_rows": select_rows,
}


def evaluate(
    op: str, inputs: list[Any], attrs: Mapping[str, Any], batch: Batch, cache: KVCache
) -> F32:
    """Runs one op of the schema by its definition.

    Args:
        op: name in the schema.
        inputs: arrays and packed weights, None for an absent optional one.
        attrs: attributes of the node.
        batch: the rows that run.
        cache: read and written by attention.
    """
    around = {"batch": batch, "cache": cache}
    context = {name: around[name] for name in _CONTEXT.get(op, ())}
    return _OPS[op](*inputs, **attrs, **context)
