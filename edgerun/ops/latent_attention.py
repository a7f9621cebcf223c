"""Causal attention of many heads to one narrow row for each token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.ops.base import (
    COUNT,
    F32,
    MAX_SIZE,
    Attribute,
    Example,
    NBytes,
    Op,
    Sizes,
    Work,
    matrix,
    normal,
    rows,
    rows_of,
)
from edgerun.state import Batch, SequenceStore
from edgerun.state.spec import AttentionState, attention_name


def latent_attention(
    q: F32,
    latent: F32,
    turned: F32,
    absorb: F32,
    expand: F32,
    *,
    batch: Batch,
    cache: SequenceStore,
    layer: int,
    num_heads: int,
    key_dim: int,
    plain: int,
    scale: float,
) -> F32:
    """Attends to latent rows as if keys and values of every head had been made of them.

    A head's key is ``absorb @ latent`` in the ``plain`` elements that positions do not turn, the
    last ones of each half, and what ``turned`` has in the others; its value is ``expand.T @
    latent``. So ``latent`` and those others of ``turned``, ``key_dim`` elements, are what the
    cache keeps of a token, and queries and results are multiplied instead (DeepSeek V2 2024,
    section 2.1.2).

    Queries are there as positions have turned them. ``absorb`` is ``[num_heads * plain, latent]``,
    ``expand`` ``[num_heads * latent, value]``, both in any precision. Behind the values of a head
    come zeros, up to the width of a query.
    """
    width, size = turned.shape[1], latent.shape[1]
    is_plain = np.arange(width) % (width // 2) >= (width - plain) // 2
    keys = np.concatenate([latent, turned[:, ~is_plain]], axis=-1)
    name = attention_name(layer)
    for row in range(batch.rows):
        block = keys[row : row + 1, None]
        sequence, position = int(batch.sequences[row]), int(batch.positions[row])
        cache.write_block(name, sequence, position, (block, block))
    heads = q.reshape(len(q), num_heads, width)
    absorbed = _products(heads[:, :, is_plain], absorb)
    queries = np.concatenate([absorbed, heads[:, :, ~is_plain]], axis=-1)
    mixed = np.empty((len(q), num_heads, size), np.float32)
    for place, row in enumerate(rows_of(q, batch)):
        sequence, position = int(batch.sequences[row]), int(batch.positions[row])
        seen = cache.read_block(name, sequence, 0, position + 1)[0][:, 0]
        scores = queries[place] @ seen.T * np.float32(scale)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed[place] = weights @ seen[:, :size]
    values = _products(mixed, expand)
    out = np.zeros((len(q), num_heads, width), np.float32)
    out[:, :, : values.shape[-1]] = values
    return out.reshape(q.shape)


def _products(heads: F32, matrices: NDArray[Any]) -> F32:
    """Each head of ``[rows, heads, inputs]`` times its matrix of ``[heads * inputs, outputs]``."""
    of_heads = matrices.astype(np.float32).reshape(*heads.shape[1:], -1)
    return np.einsum("rhi,hio->rho", heads, of_heads)  # type: ignore[no-any-return]


def _state(attributes: Mapping[str, Any]) -> AttentionState:
    return AttentionState(
        name=attention_name(attributes["layer"]),
        kv_heads=1,
        key_dim=attributes["key_dim"],
        value_dim=attributes["key_dim"],
        values_are_keys=True,
    )


def _work(sizes: Sizes, nbytes: NBytes) -> Work:
    heads, per_head = sizes["num_heads"], sizes["plain"] + sizes["value"]
    return Work(
        macs=heads * sizes["latent"] * per_head,
        cached_macs=2 * heads * sizes["key_dim"],
        nbytes=nbytes["absorb"] + nbytes["expand"],
        row_elements=heads * sizes["key_dim"],
    )


def _examples() -> list[Example]:
    examples = []
    shapes = [
        (4, 24, 32, 16, 16, ((0, 5),)),
        (3, 16, 16, 8, 12, ((70, 1), (5, 1))),
        (16, 192, 512, 128, 128, ((60, 9),)),
    ]
    for heads, width, latent, plain, value, parts in shapes:
        height = sum(new for _, new in parts)
        inputs = {
            "q": normal((height, heads * width), 1),
            "latent": normal((height, latent), 2),
            "turned": normal((height, width), 3),
            "absorb": normal((heads * plain, latent), 4) / np.float32(plain**0.5),
            "expand": normal((heads * latent, value), 5) / np.float32(latent**0.5),
        }
        key_dim = latent + width - plain
        attributes = {"layer": 0, "num_heads": heads, "key_dim": key_dim, "plain": plain}
        attributes |= {"scale": key_dim**-0.5}
        examples.append(Example(inputs, attributes, parts))
        asked = {**inputs, "q": inputs["q"][: len(parts)]}
        examples.append(Example(asked, attributes, parts, selected=("q",)))
    return examples


OP = Op(
    inputs=(
        rows("q", "num_heads*width"),
        rows("latent", "latent", every_row=True),
        rows("turned", "width", every_row=True),
        matrix("absorb", "num_heads*plain", "latent"),
        matrix("expand", "num_heads*latent", "value"),
    ),
    outputs=(rows("out", "num_heads*width"),),
    define=latent_attention,
    attributes={
        "layer": Attribute(int, 0, MAX_SIZE),
        "num_heads": COUNT,
        "key_dim": COUNT,
        "plain": COUNT,
        "scale": Attribute(float),
    },
    at_most=(("value", "width"),),
    state=_state,
    context=("batch", "cache"),
    model_sizes={"num_heads": "num_heads"},
    work=_work,
    tolerance=3e-6,
    examples=_examples,
)
