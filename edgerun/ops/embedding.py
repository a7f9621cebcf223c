"""Rows of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.formats import dense, format_named
from edgerun.formats.base import PackedWeight
from edgerun.ops.base import (
    F32,
    IDS,
    Example,
    Kind,
    NBytes,
    Op,
    Operand,
    Sizes,
    Work,
    matrix,
    normal,
    rows,
)


def embedding(ids: NDArray[np.int32], table: NDArray[Any] | PackedWeight) -> F32:
    """Rows ``ids`` of the table ``[vocab, width]``."""
    if not isinstance(table, PackedWeight):
        return table[ids].astype(np.float32)
    looked_up = PackedWeight(
        table.format,
        (len(ids), table.shape[1]),
        table.block,
        table.codes[ids],
        table.scales[ids],
        None if table.zeros is None else table.zeros[ids],
        None if table.offsets is None else table.offsets[:, ids],
    )
    return dense(looked_up)


def _work(sizes: Sizes, nbytes: NBytes) -> Work:
    return Work(row_nbytes=nbytes["table"] // sizes["vocab"])


def _examples() -> list[Example]:
    ids, table = np.array([8, 0, 3], np.int32), normal((9, 64), 1)
    packed = [("ternary", 32), ("int2", 16), ("int4", 32), ("int8", 64)]
    tables = [table, *(format_named(name).pack(table, block) for name, block in packed)]
    return [Example({"ids": ids, "table": table}) for table in tables]


OP = Op(
    inputs=(Operand(IDS, Kind.BATCH), matrix("table", "vocab", "width")),
    outputs=(rows("out", "width"),),
    define=embedding,
    model_sizes={"vocab_size": "vocab"},
    work=_work,
    examples=_examples,
)
