"""Tables of cosines and sines that grow with the positions asked for."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.backends.cpu.rotary_tables import PIECE, RotaryTables, Table

FREQUENCIES = (1 / 10000 ** (np.arange(8) / 8)).astype(np.float32)


def reference(positions: int, factor: float) -> np.ndarray:  # type: ignore[type-arg]
    angles = np.arange(positions, dtype=np.float32)[:, None] * FREQUENCIES
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * np.float32(factor)


@pytest.mark.parametrize("context", [1, 5, PIECE, PIECE + 1, 3 * PIECE - 1])
def test_the_whole_table_has_the_bits_of_one_computed_at_once(context: int) -> None:
    table = Table(FREQUENCIES, 1.25, context)
    for position in (0, context // 2, context - 1):
        table.reach(position)
    assert table.values.tobytes() == reference(context, 1.25).tobytes()


def test_only_what_is_needed_is_computed() -> None:
    table = Table(FREQUENCIES, 1.0, 4 * PIECE)
    table.reach(PIECE)
    assert table.values[2 * PIECE - 1].any()
    assert not table.values[2 * PIECE :].any()
    table.reach(10 * PIECE)  # outside of the context: nothing to do, as for the kernel
    assert not table.values[2 * PIECE :].any()


def test_tables_follow_the_last_position_of_a_batch() -> None:
    tables = RotaryTables()
    address = tables.address("inv_freq", FREQUENCIES, 1.0, 3 * PIECE)
    assert address == tables.address("inv_freq", FREQUENCIES, 1.0, 3 * PIECE)
    assert address != tables.address("inv_freq", FREQUENCIES, 2.0, 3 * PIECE)
    (values, _) = (table.values for table in tables._tables.values())
    for positions, rows in (([], 0), ([0], PIECE), ([PIECE, 7], 2 * PIECE), ([5], 2 * PIECE)):
        tables.reach(np.array(positions, np.int32))
        expected = reference(rows, 1.0) if rows else np.zeros((0, 16), np.float32)
        if rows:
            assert values[:rows].tobytes() == expected.tobytes()
        assert not values[max(rows, PIECE) :].any()
