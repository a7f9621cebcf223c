"""Finds a weight format by name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import UnsupportedError
from edgerun.formats import int2, int4, int8, ternary
from edgerun.formats.base import PackedWeight, WeightFormat

_FORMATS: dict[str, WeightFormat] = {
    module.FORMAT.name: module.FORMAT for module in (ternary, int2, int4, int8)
}


def format_names() -> list[str]:
    """Names of all block-wise weight formats."""
    return list(_FORMATS)


def format_named(name: str) -> WeightFormat:
    """Returns the format called ``name``.

    Raises:
        UnsupportedError: no such format.
    """
    if name not in _FORMATS:
        raise UnsupportedError(
            f"unknown weight format '{name}': supported are {', '.join(_FORMATS)}"
        )
    return _FORMATS[name]


def dense(weight: NDArray[Any] | PackedWeight) -> NDArray[np.float32]:
    """The float32 matrix ``[N, K]`` that a constant stands for.

    Raises:
        UnsupportedError: it is packed in an unknown format.
    """
    if isinstance(weight, PackedWeight):
        return format_named(weight.format).unpack(weight)
    return weight.astype(np.float32)
