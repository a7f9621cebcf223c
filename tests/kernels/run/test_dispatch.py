"""Where the rows of parts begin among whole tiles."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.kernels.run.dispatch import first_of_tiles


@pytest.mark.parametrize("tokens", [1, 4, 6, 8])
def test_rows_of_parts_in_tiles_lie_apart_and_within_what_is_said(tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    for _ in range(200):
        counts = rng.integers(0, 3 * tokens + 1, rng.integers(1, 9)) * rng.integers(0, 2)
        starts, rows = np.cumsum(counts) - counts, int(counts.sum())
        free = 0
        for unit in np.flatnonzero(counts).tolist():
            first = first_of_tiles.py_func(int(starts[unit]), unit, tokens)
            assert first % tokens == 0
            assert first >= free
            free = first + -(-int(counts[unit]) // tokens) * tokens
        assert free <= rows + len(counts) * tokens
