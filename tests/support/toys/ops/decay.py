"""A sum of all rows so far, in which each row counts less with every row after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgerun.ops.base import COUNT, F32, MAX_SIZE, Attribute, Example, Op, normal, rows
from edgerun.state import Batch, RecurrentState, SequenceStore
from edgerun.state.spec import RecurrentArray


def decay(
    x: F32, *, batch: Batch, cache: SequenceStore, layer: int, width: int, rate: float
) -> F32:
    """Sums ``sum[t] = rate * sum[t - 1] + x[t]`` of every sequence, ``[rows, width]``."""
    out = np.empty_like(x)
    for slot in dict.fromkeys(batch.sequences.tolist()):
        mine = np.flatnonzero(batch.sequences == slot).tolist()
        start = int(batch.positions[mine[0]])
        (total,) = cache.read_block(_name(layer), slot, start, start)
        for row in mine:
            total = np.float32(rate) * total + x[row]
            out[row] = total
        cache.write_block(_name(layer), slot, start, (total,))
    return out


def _name(layer: int) -> str:
    return f"past_decay.{layer}"


def _state(attributes: Mapping[str, Any]) -> RecurrentState:
    array = RecurrentArray("sum", (attributes["width"],))
    return RecurrentState(_name(attributes["layer"]), (array,))


def _examples() -> list[Example]:
    attributes = {"layer": 0, "width": 8, "rate": 0.5}
    return [Example({"x": normal((4, 8), 0)}, attributes, ((0, 3), (0, 1)))]


OP = Op(
    inputs=(rows("x", "width", every_row=True),),
    outputs=(rows("out", "width"),),
    define=decay,
    attributes={
        "layer": Attribute(int, 0, MAX_SIZE),
        "width": COUNT,
        "rate": Attribute(float, 0, 1),
    },
    state=_state,
    context=("batch", "cache"),
    examples=_examples,
)
