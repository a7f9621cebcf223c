"""Activations in tile order, by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.layouts.starts import starts_of, zeros_when_unpacked
from edgerun.kernels.layouts.tile_order import TileOrder, vector_order


def in_tile_order(x: NDArray[np.int8], order: TileOrder) -> NDArray[np.int8]:
    """Activations ``[rows, K]``; rows are filled up to as many as lie side by side."""
    rows, k = x.shape
    padded = np.pad(x, [(0, -rows % order.tokens), (0, 0)])
    tiles = padded.reshape(-1, order.pair, order.side, k // order.depth, order.depth)
    return np.ascontiguousarray(tiles.transpose(0, 3, 1, 2, 4))


def turned(numbers: NDArray[Any], tokens: int) -> NDArray[Any]:
    """What each block of a row has, ``[rows, blocks]``, turned for each ``tokens`` rows."""
    padded = np.pad(numbers, [(0, -len(numbers) % tokens), (0, 0)])
    return np.ascontiguousarray(padded.reshape(-1, tokens, padded.shape[1]).transpose(0, 2, 1))


def ordered(fields: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """Fields of activations as a ``gemm`` kernel of some constants takes them."""
    if not params.get("packed"):
        return fields
    tokens, bits, isa = params["tokens"], params["bits"], params["isa"]
    start, factor = starts_of(bits, isa, zeros_when_unpacked(bits, isa, params["zeros"]))
    sums = (start + factor * fields["x_sum"]).astype(np.int32)
    x = in_tile_order(fields["x"], vector_order(tokens))
    numbers = {"x_scale": turned(fields["x_scale"], tokens), "x_sum": turned(sums, tokens)}
    return fields | {"x": x, **numbers}
