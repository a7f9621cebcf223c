"""Rotary position embedding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.ops.base import (
    COUNT,
    F32,
    POSITIONS,
    Attribute,
    Example,
    Kind,
    Op,
    Operand,
    normal,
    rows,
    rows_of,
)
from edgerun.state import Batch

# Angles are position times frequency: what float32 cannot hold there becomes NaN. Real models
# begin at 1 radian a token.
MAX_FREQUENCY = float(1 << 16)


def rotary(
    x: F32,
    positions: NDArray[np.int32],
    inv_freq: F32,
    *,
    batch: Batch,
    head_dim: int,
    factor: float,
) -> F32:
    """Rotates pairs ``(i, i + head_dim / 2)`` of every head by ``position * inv_freq[i]``.

    Source: Su et al. 2021, section 3.2.2, in the half-split order of Hugging Face.
    """
    turns = positions[rows_of(x, batch)].astype(np.float32)
    angles = turns[:, None, None] * inv_freq.astype(np.float32)
    cos, sin = np.cos(angles) * np.float32(factor), np.sin(angles) * np.float32(factor)
    heads = x.reshape(len(x), x.shape[1] // head_dim, head_dim)
    first, second = heads[..., : head_dim // 2], heads[..., head_dim // 2 :]
    turned = [first * cos - second * sin, second * cos + first * sin]
    return np.concatenate(turned, axis=-1).reshape(x.shape).astype(np.float32)


def _examples() -> list[Example]:
    examples = []
    for head_dim, heads, parts in [
        (8, 3, ((0, 5),)),
        (64, 2, ((11, 1),)),
        (20, 1, ((3, 2), (0, 1))),
    ]:
        height, half = sum(new for _, new in parts), head_dim // 2
        frequencies = (10000.0 ** -(np.arange(half) / half)).astype(np.float32)
        x = normal((height, heads * head_dim), 1)
        attributes = {"head_dim": head_dim, "factor": 1.5}
        inputs = {"x": x, "inv_freq": frequencies}
        examples.append(Example(inputs, attributes, parts))
        inputs = {"x": x[-len(parts) :], "inv_freq": frequencies}
        examples.append(Example(inputs, attributes, parts, selected=("x",)))
    return examples


OP = Op(
    inputs=(
        rows("x", "width"),
        Operand(POSITIONS, Kind.BATCH),
        Operand("inv_freq", Kind.VECTOR, ("half",), limit=MAX_FREQUENCY),
    ),
    outputs=(rows("out", "width"),),
    define=rotary,
    attributes={"head_dim": COUNT, "factor": Attribute(float)},
    equal=(("head_dim", "2*half"),),
    divides=(("head_dim", "width"),),
    context=("batch",),
    tolerance=1e-6,
    examples=_examples,
)
