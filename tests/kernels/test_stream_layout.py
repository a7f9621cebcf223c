"""The stream layout: nothing is written beyond a matrix, and threads share its panels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.formats.base import PackedWeight, pack_bits, pack_zero_points
from edgerun.kernels.isa import selected_isa
from edgerun.kernels.layouts.stream import Arena, to_stream
from edgerun.kernels.run.shares import OF, TAKEN, chunk_panels, count_chunks


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


def all_chunks(panels: int, step: int, threads: int) -> list[tuple[int, int]]:
    """First panel and end of every chunk."""
    count = count_chunks(panels, step, threads)
    return [chunk_panels(chunk, panels, step, threads) for chunk in range(count)]


@given(st.integers(1, 3000), st.integers(1, 40), st.integers(0, 64))
def test_every_panel_is_in_one_chunk(panels: int, step: int, threads: int) -> None:
    ranges = all_chunks(panels, step, threads)
    assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == panels
    sizes = [end - begin for begin, end in ranges]
    assert sizes == sorted(sizes, reverse=True)
    assert all(size % step == 0 for size in sizes[:-1])
    if threads == 0:
        assert set(sizes[:-1]) <= {step}


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_no_thread_takes_all_of_its_share_at_once(threads: int) -> None:
    ranges, panels = all_chunks(1024, 4, threads), 1024
    for index, (begin, end) in enumerate(ranges):
        left = panels - ranges[index // threads * threads][0]
        assert end - begin <= max(4, left * TAKEN // (OF * threads))
    assert ranges[0][1] > 1024 // threads // 2
    assert ranges[-1][1] - ranges[-1][0] <= 4
