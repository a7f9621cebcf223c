"""Finds a weight format by name."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.discovery import entries
from edgerun.errors import UnsupportedError
from edgerun.formats.base import PackedWeight, WeightFormat


@cache
def _formats() -> dict[str, WeightFormat]:
    return entries("edgerun.formats", "FORMAT")


def format_names() -> list[str]:
    """Names of all block-wise weight formats, which are those of their files."""
    return list(_formats())


def format_named(name: str) -> WeightFormat:
    """Returns the format called ``name``.

    Raises:
        UnsupportedError: no such format.
    """
    formats = _formats()
    if name not in formats:
        raise UnsupportedError(
            f"unknown weight format '{name}': supported are {', '.join(formats)}"
        )
    return formats[name]


def dense(weight: NDArray[Any] | PackedWeight) -> NDArray[np.float32]:
    """The float32 matrix ``[N, K]`` that a constant stands for.

    Raises:
        UnsupportedError: it is packed in an unknown format.
    """
    if isinstance(weight, PackedWeight):
        return format_named(weight.format).unpack(weight)
    return weight.astype(np.float32)
