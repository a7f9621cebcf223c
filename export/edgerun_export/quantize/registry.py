"""Finds the method that turns float weights into codes of a format."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgerun.discovery import entries
from edgerun.errors import UnsupportedError
from edgerun.formats import format_named
from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize.method import Inputs, Method

F32 = NDArray[np.float32]
USUAL = "mse"


@cache
def _methods() -> dict[str, Method]:
    return entries("edgerun_export.quantize", "METHOD")


def usual_method(format_name: str) -> str:
    """Name of the method that makes a format unless another is asked for."""
    usual = (name for name, each in _methods().items() if format_name in each.usual_for)
    return next(usual, USUAL)


def method_for(format_name: str, name: str | None = None) -> Method:
    """Returns a method, or the usual one of a format.

    Raises:
        UnsupportedError: it cannot make that format.
    """
    name = name or usual_method(format_name)
    method = _methods()[name]
    if method.formats and format_name not in method.formats:
        raise UnsupportedError(
            f"the method {name} makes {', '.join(method.formats)}, and not {format_name}"
        )
    layout = block_layout(format_name)
    if layout.has_zeros and not method.makes_zeros:
        raise UnsupportedError(f"the method {name} makes no zero points, which {format_name} has")
    if layout.has_offsets and not method.makes_offsets:
        raise UnsupportedError(f"the method {name} makes no offsets, which {format_name} has")
    return method


def quantise_rows(
    rows: F32,
    format_name: str,
    block: int,
    method: str | None = None,
    inputs: Inputs | None = None,
) -> PackedWeight:
    """Quantises float32 ``[n, K]`` to a block-wise format; K need not be a multiple of ``block``.

    Args:
        rows: the weights.
        format_name: a format.
        block: weights that share a scale.
        method: name of a method; None for the usual one.
        inputs: what is known of the matrix's inputs, if the method needs it.

    Raises:
        UnsupportedError: no such format, or none that the method makes.
    """
    layout = block_layout(format_name)
    return method_for(format_name, method).fit(rows, layout, block, inputs)


def block_layout(format_name: str) -> BlockFormat:
    """Returns the bit layout of a format.

    Raises:
        UnsupportedError: no such format.
    """
    layout = format_named(format_name)
    assert isinstance(layout, BlockFormat), "all registered formats are block formats"
    return layout
