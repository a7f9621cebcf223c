"""Which method makes which weight format."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgerun.formats import format_named
from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize import rtn, ternary

F32 = NDArray[np.float32]
_Method = Callable[[F32, BlockFormat, int], PackedWeight]

_METHODS: dict[str, _Method] = {
    "ternary": ternary.fit,
    "int2": rtn.quantise,
    "int4": rtn.quantise,
    "int8": rtn.quantise,
}


def quantise_rows(rows: F32, format_name: str, block: int) -> PackedWeight:
    """Quantises float32 ``[n, K]`` to a block-wise format; K need not be a multiple of ``block``.

    Raises:
        UnsupportedError: no such format.
    """
    return _METHODS[format_name](rows, block_layout(format_name), block)


def block_layout(format_name: str) -> BlockFormat:
    """Returns the bit layout of a format.

    Raises:
        UnsupportedError: no such format.
    """
    layout = format_named(format_name)
    assert isinstance(layout, BlockFormat), "all registered formats are block formats"
    return layout
