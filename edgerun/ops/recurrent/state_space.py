"""State space duality (Mamba-2): a convolution, and matrices that decay and take tokens in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

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
    normal,
    rows,
    vector,
)
from edgerun.ops.recurrent.gated_delta import MAX_TAPS, convolved, matrix_arrays
from edgerun.state import Batch, RecurrentState, SequenceStore
from edgerun.state.spec import matrices_name

_WIDTH = "heads*head_dim+2*groups*state_dim"


@np.errstate(over="ignore", invalid="ignore")  # of damaged weights: infinite, or no number
def state_space(
    xbc: F32,
    step: F32,
    taps: F32,
    bias: F32,
    rate: F32,
    offset: F32,
    skip: F32,
    *,
    batch: Batch,
    cache: SequenceStore,
    layer: int,
    heads: int,
    groups: int,
    head_dim: int,
    state_dim: int,
    count: int,
) -> F32:
    """Lets the matrix of each head decay, take a token in and be read, in order of positions.

    Rows of ``xbc`` are inputs of all heads, then keys and then queries of all groups (``x``, ``B``
    and ``C`` of the paper). They go through a convolution over the latest ``count`` tokens, zeros
    before position 0 (``taps`` is ``[count, width]``, flattened, the latest token's last), to which
    ``bias`` is added, and SiLU. Head h uses group ``h // (heads // groups)`` and keeps a matrix S,
    ``[state_dim, head_dim]``, which begins as zeros. With ``t = softplus(step + offset)``, a token
    does::

        S = exp(rate * t) * S + B (t * x)^T;  result = S^T C + skip * x

    (Dao and Gu 2024, section 6; Mamba-2 has it so). ``result`` is ``[rows, heads * head_dim]``.
    """
    name, width = matrices_name(layer), xbc.shape[1]
    times = np.logaddexp(np.float32(0), step + offset)
    forget = np.exp(rate * times)
    results = np.empty((batch.rows, heads, head_dim), np.float32)
    for first, stop in batch.runs():
        slot, start = int(batch.sequences[first]), int(batch.positions[first])
        past, matrix = cache.read_block(name, slot, start, start)
        tokens = np.concatenate([past, xbc[first:stop]])
        mixed = convolved(tokens, taps.reshape(count, width), bias)
        x, keys, queries = np.split(
            mixed, [heads * head_dim, heads * head_dim + groups * state_dim], axis=1
        )
        x = x.reshape(-1, heads, head_dim)
        keys, queries = (
            np.repeat(each.reshape(-1, groups, state_dim), heads // groups, axis=1)
            for each in (keys, queries)
        )
        matrix = matrix.copy()
        for place, row in enumerate(range(first, stop)):
            matrix *= forget[row, :, None, None]
            taken = times[row, :, None] * x[place]
            matrix += keys[place][:, :, None] * taken[:, None]
            results[row] = np.einsum("hsd,hs->hd", matrix, queries[place])
            results[row] += skip[:, None] * x[place]
        cache.write_block(name, slot, start, (tokens[len(tokens) - count + 1 :], matrix))
    return results.reshape(batch.rows, heads * head_dim)


def _state(attributes: Mapping[str, Any]) -> RecurrentState:
    """The latest tokens before the convolution, and the matrix of every head."""
    heads, head_dim, state_dim = (attributes[n] for n in ("heads", "head_dim", "state_dim"))
    width = heads * head_dim + 2 * attributes["groups"] * state_dim
    arrays = matrix_arrays(attributes["count"], width, (heads, state_dim, head_dim))
    return RecurrentState(matrices_name(attributes["layer"]), arrays)


def _work(sizes: Sizes, nbytes: NBytes) -> Work:
    """Two multiply-adds for every element of a matrix: its product with a query, and a sum."""
    elements = sizes["heads"] * sizes["state_dim"] * sizes["head_dim"]
    width = sizes["heads"] * sizes["head_dim"] + 2 * sizes["groups"] * sizes["state_dim"]
    return Work(macs=2 * elements + sizes["count"] * width, nbytes=sum(nbytes.values()))


def _examples() -> list[Example]:
    examples = []
    shapes = [
        (2, 1, 16, 16, 4, ((0, 5),)),
        (4, 2, 32, 16, 4, ((70, 1), (0, 2), (5, 3), (3, 1))),
        (2, 2, 16, 32, 2, ((1, 9),)),
    ]
    for heads, groups, head_dim, state_dim, count, parts in shapes:
        height = sum(new for _, new in parts)
        width = heads * head_dim + 2 * groups * state_dim
        inputs = {
            "xbc": normal((height, width), 0),
            "step": normal((height, heads), 1),
            "taps": normal((count * width,), 2),
            "bias": normal((width,), 3),
            "rate": -np.exp(normal((heads,), 4)),
            "offset": normal((heads,), 5),
            "skip": normal((heads,), 6),
        }
        # Softplus far from 0 on either side.
        inputs["step"][0, 0], inputs["step"][-1, -1] = 30, -60
        attributes = {
            "layer": 0,
            "heads": heads,
            "groups": groups,
            "head_dim": head_dim,
            "state_dim": state_dim,
            "count": count,
        }
        examples.append(Example(inputs, attributes, parts))
    return examples


OP = Op(
    inputs=(
        rows("xbc", _WIDTH, every_row=True),
        rows("step", "heads", every_row=True),
        vector("taps", "count*heads*head_dim+count*2*groups*state_dim"),
        vector("bias", _WIDTH),
        vector("rate", "heads"),
        vector("offset", "heads"),
        vector("skip", "heads"),
    ),
    outputs=(rows("result", "heads*head_dim"),),
    define=state_space,
    attributes={
        "layer": Attribute(int, 0, MAX_SIZE),
        "heads": COUNT,
        "groups": COUNT,
        "head_dim": COUNT,
        "state_dim": COUNT,
        "count": Attribute(int, 2, MAX_TAPS),
    },
    divides=(("groups", "heads"),),
    state=_state,
    context=("batch", "cache"),
    work=_work,
    tolerance=1e-5,
    examples=_examples,
)
