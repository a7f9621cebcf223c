"""The stream layout: nothing is written beyond a matrix, whatever its blocks are."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.formats.base import PackedWeight, pack_bits
from edgerun.kernels.isa import selected_isa
from edgerun.kernels.layouts.stream import Arena, to_stream


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("k", "block"), [(16, 256), (64, 128), (72, 256), (128, 128), (640, 64)])
@pytest.mark.parametrize("row_scale", [True, False])
def test_nothing_is_written_behind_a_matrix(bits: int, k: int, block: int, row_scale: bool) -> None:
    """Blocks may be longer than rows: then the file stores more codes than K has weights."""
    n, blocks = 33, -(-k // block)
    codes = np.random.default_rng(k).integers(1, 1 << bits, (n, blocks, block), np.uint8)
    scales = np.ones((n, blocks), np.float32)
    packed = PackedWeight(f"int{bits}", (n, k), block, pack_bits(codes, bits), scales)
    arena = Arena(piece=1 << 20)
    weight = to_stream(packed, selected_isa().vector_bytes, row_scale=row_scale, arena=arena)
    behind = arena.zeros((1 << 16,))
    assert weight.codes.any()
    assert not behind.any()
