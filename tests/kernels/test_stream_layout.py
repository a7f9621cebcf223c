"""The stream layout: nothing is written beyond a matrix, whatever its blocks are."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.formats.base import PackedWeight, pack_bits, pack_zero_points
from edgerun.kernels.isa import selected_isa
from edgerun.kernels.layouts.stream import Arena, to_stream


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("k", "block"), [(16, 256), (64, 128), (72, 256), (128, 128), (640, 64)])
@pytest.mark.parametrize("scales", ["row", "blocks", "halves", "halves and zero points"])
def test_nothing_is_written_behind_a_matrix(bits: int, k: int, block: int, scales: str) -> None:
    """Blocks may be longer than rows: then the file stores more codes than K has weights."""
    n, blocks = 33, -(-k // block)
    codes = np.random.default_rng(k).integers(1, 1 << bits, (n, blocks, block), np.uint8)
    ones = np.ones((n, blocks), np.float32)
    points = np.ones((n, blocks), np.uint8)
    zeros = pack_zero_points(points, bits) if "zero" in scales else None
    packed = PackedWeight(f"int{bits}", (n, k), block, pack_bits(codes, bits), ones, zeros)
    arena, lanes = Arena(piece=1 << 20), selected_isa().vector_bytes
    kinds = {"row_scale": scales == "row", "halves": "halves" in scales}
    weight = to_stream(packed, lanes, arena=arena, **kinds)
    behind = arena.zeros((1 << 16,))
    assert weight.codes.any()
    assert not behind.any()
