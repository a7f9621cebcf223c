"""The mixing of a layer of linear attention: a convolution, and a matrix with a delta rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgerun.ops.base import (
    COUNT,
    F32,
    MAX_SIZE,
    SMALLEST_NORMAL,
    Attribute,
    Example,
    NBytes,
    Op,
    Sizes,
    Work,
    normal,
    rows,
    vector,
)
from edgerun.state import Batch, RecurrentState, SequenceStore
from edgerun.state.spec import RecurrentArray, attention_name

MAX_TAPS = 64
_WIDTH = "2*key_heads*key_dim+value_heads*value_dim"


@np.errstate(over="ignore", invalid="ignore")  # of damaged weights: infinite, or no number
def gated_delta(
    qkv: F32,
    decay: F32,
    write: F32,
    taps: F32,
    rate: F32,
    offset: F32,
    *,
    batch: Batch,
    cache: SequenceStore,
    layer: int,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    count: int,
    epsilon: float,
    strength: float,
) -> F32:
    """Lets every token decay, correct and read the matrix of each head, in order of positions.

    Rows of ``qkv`` are queries, keys and values of all heads, one after the other. They go through
    a convolution over the latest ``count`` tokens, added up from the left with zeros before
    position 0 (``taps`` is ``[count, width]``, flattened, the latest token's last), and SiLU.
    Queries and keys are divided by their lengths, ``sqrt(sum of squares + epsilon)``, and queries
    by ``sqrt(key_dim)``. Value head h uses key head ``h // (value_heads // key_heads)`` and keeps a
    matrix S, ``[key_dim, value_dim]``, which begins as zeros. With
    ``g = rate * softplus(decay + offset)`` and ``b = strength * sigmoid(write)``, a token does::

        S = exp(g) * S;  d = b * (v - S^T k);  S = S + k d^T;  result = S^T q

    (Gated DeltaNet; Yang, Kautz and Hatamizadeh 2024, equation 10, as Qwen3-Next has it; with a
    ``strength`` of 2 a change may turn a matrix round, Grazzi et al. 2024).
    ``result`` is ``[rows, value_heads * value_dim]``.
    """
    name, width = attention_name(layer), qkv.shape[1]
    sizes = key_heads, value_heads, key_dim, value_dim
    forget = np.exp(rate * np.logaddexp(np.float32(0), decay + offset))
    weights = np.float32(strength) * _sigmoid(write)
    results = np.empty((batch.rows, value_heads, value_dim), np.float32)
    for first, stop in batch.runs():
        slot, start = int(batch.sequences[first]), int(batch.positions[first])
        past, matrix = cache.read_block(name, slot, start, start)
        tokens = np.concatenate([past, qkv[first:stop]])
        mixed = convolved(tokens, taps.reshape(count, width))
        queries, keys, values = _heads(mixed, sizes, np.float32(epsilon))
        matrix = matrix.copy()
        for place, row in enumerate(range(first, stop)):
            q, k, v = queries[place], keys[place], values[place]
            matrix *= forget[row, :, None, None]
            change = weights[row, :, None] * (v - np.einsum("hkv,hk->hv", matrix, k))
            matrix += k[:, :, None] * change[:, None]
            results[row] = np.einsum("hkv,hk->hv", matrix, q)
        cache.write_block(name, slot, start, (tokens[len(tokens) - count + 1 :], matrix))
    return results.reshape(batch.rows, value_heads * value_dim)


def convolved(tokens: F32, taps: F32, bias: F32 | float = 0.0) -> F32:
    """SiLU of what taps make of tokens, of which ``len(taps) - 1`` come before the first result.

    Sums begin with ``bias``, ``[width]``.
    """
    count, height = len(taps), len(tokens) - len(taps) + 1
    total = np.full((height, tokens.shape[1]), bias, np.float32)
    for place in range(count):
        total += tokens[place : place + height] * taps[place]
    return total * _sigmoid(total)


def _sigmoid(x: F32) -> F32:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -80, None))), dtype=np.float32)


def _heads(mixed: F32, sizes: tuple[int, int, int, int], epsilon: np.float32) -> tuple[F32, ...]:
    """Queries, keys and values of every value head, ``[rows, value_heads, dim]``."""
    key_heads, value_heads, key_dim, value_dim = sizes
    key_width = key_heads * key_dim
    queries, keys, values = np.split(mixed, [key_width, 2 * key_width], axis=1)
    shared = []
    for each in (queries, keys):
        heads = each.reshape(-1, key_heads, key_dim)
        length = np.sqrt(np.square(heads).sum(axis=-1, keepdims=True) + epsilon)
        shared.append(np.repeat(heads / length, value_heads // key_heads, axis=1))
    scale = np.float32(key_dim**-0.5)
    return shared[0] * scale, shared[1], values.reshape(-1, value_heads, value_dim)


def matrix_arrays(
    count: int, width: int, shape: tuple[int, int, int]
) -> tuple[RecurrentArray, RecurrentArray]:
    """The latest tokens before a convolution of ``count``, and a matrix of every head."""
    return RecurrentArray("conv", (count - 1, width)), RecurrentArray("matrix", shape)


def _state(attributes: Mapping[str, Any]) -> RecurrentState:
    """The latest tokens before the convolution, and the matrix of every value head."""
    heads, key_dim, value_dim = (attributes[n] for n in ("value_heads", "key_dim", "value_dim"))
    width = 2 * attributes["key_heads"] * key_dim + heads * value_dim
    arrays = matrix_arrays(attributes["count"], width, (heads, key_dim, value_dim))
    return RecurrentState(attention_name(attributes["layer"]), arrays)


def _work(sizes: Sizes, nbytes: NBytes) -> Work:
    """Three multiply-adds for every element of a matrix: its products with key and query, a sum."""
    elements = sizes["value_heads"] * sizes["key_dim"] * sizes["value_dim"]
    width = 2 * sizes["key_heads"] * sizes["key_dim"] + sizes["value_heads"] * sizes["value_dim"]
    return Work(macs=3 * elements + sizes["count"] * width, nbytes=sum(nbytes.values()))


def _examples() -> list[Example]:
    examples = []
    shapes = [
        (1, 2, 16, 16, 4, ((0, 5),)),
        (2, 4, 16, 32, 4, ((70, 1), (0, 2), (5, 3), (3, 1))),
        (2, 2, 32, 16, 2, ((1, 9),)),
    ]
    for key_heads, value_heads, key_dim, value_dim, count, parts in shapes:
        height, width = sum(new for _, new in parts), 2 * key_heads * key_dim
        width += value_heads * value_dim
        inputs = {
            "qkv": normal((height, width), 0),
            "decay": normal((height, value_heads), 1),
            "write": 3 * normal((height, value_heads), 2),
            "taps": normal((count * width,), 3),
            "rate": -np.exp(normal((value_heads,), 4)),
            "offset": normal((value_heads,), 5),
        }
        # Softplus and sigmoid far from 0 on either side.
        inputs["decay"][0, 0], inputs["decay"][-1, -1] = 60, -60
        inputs["write"][0, 0], inputs["write"][-1, -1] = -100, 100
        attributes = {
            "layer": 0,
            "key_heads": key_heads,
            "value_heads": value_heads,
            "key_dim": key_dim,
            "value_dim": value_dim,
            "count": count,
            "epsilon": 1e-6,
            "strength": 2.0 if key_heads < value_heads else 1.0,
        }
        examples.append(Example(inputs, attributes, parts))
    return examples


OP = Op(
    inputs=(
        rows("qkv", _WIDTH, every_row=True),
        rows("decay", "value_heads", every_row=True),
        rows("write", "value_heads", every_row=True),
        vector("taps", "count*2*key_heads*key_dim+count*value_heads*value_dim"),
        vector("rate", "value_heads"),
        vector("offset", "value_heads"),
    ),
    outputs=(rows("result", "value_heads*value_dim"),),
    define=gated_delta,
    attributes={
        "layer": Attribute(int, 0, MAX_SIZE),
        "key_heads": COUNT,
        "value_heads": COUNT,
        "key_dim": COUNT,
        "value_dim": COUNT,
        "count": Attribute(int, 2, MAX_TAPS),
        "epsilon": Attribute(float, SMALLEST_NORMAL),
        "strength": Attribute(float, 0, 2),
    },
    divides=(("key_heads", "value_heads"),),
    state=_state,
    context=("batch", "cache"),
    work=_work,
    tolerance=1e-5,
    examples=_examples,
)
