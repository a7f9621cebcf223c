"""Finds the method that turns float weights into codes of a format."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgerun.discovery import entries
from edgerun.formats import format_named
from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize.method import Method

F32 = NDArray[np.float32]
USUAL = "rtn"


@cache
def _methods() -> dict[str, Method]:
    return entries("edgerun_export.quantize", "METHOD")


def quantise_rows(
    rows: F32, format_name: str, block: int, method: str | None = None
) -> PackedWeight:
    """Quantises float32 ``[n, K]`` to a block-wise format; K need not be a multiple of ``block``.

    Args:
        rows: the weights.
        format_name: a format.
        block: weights that share a scale.
        method: name of a method; None for the usual one.

    Raises:
        UnsupportedError: no such format.
    """
    usual = (name for name, each in _methods().items() if format_name in each.usual_for)
    chosen = _methods()[method or next(usual, USUAL)]
    return chosen.quantise(rows, block_layout(format_name), block)


def block_layout(format_name: str) -> BlockFormat:
    """Returns the bit layout of a format.

    Raises:
        UnsupportedError: no such format.
    """
    layout = format_named(format_name)
    assert isinstance(layout, BlockFormat), "all registered formats are block formats"
    return layout
