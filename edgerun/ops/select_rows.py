"""The rows whose logits are wanted."""

from __future__ import annotations

from edgerun.ops.base import F32, Example, Op, normal, rows
from edgerun.state import Batch


def select_rows(x: F32, *, batch: Batch) -> F32:
    """``x[batch.logit_rows]``."""
    return x[batch.logit_rows]


def _examples() -> list[Example]:
    return [Example({"x": normal((6, width), 1)}, parts=((0, 3), (9, 3))) for width in (7, 64)]


OP = Op(
    inputs=(rows("x", "width", every_row=True),),
    outputs=(rows("out", "width"),),
    define=select_rows,
    selects=True,
    context=("batch",),
    model_sizes={"hidden_size": "width"},
    examples=_examples,
)
