"""Cosines and sines of positions, computed as far as a sequence has come.

A model may be made for 100,000 positions and more. The whole table would take a tenth of a second
and tens of megabytes at each start; most runs see the beginning of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PIECE = 2048  # positions computed at a time


def rotary_table(
    inv_freq: NDArray[np.float32], start: int, stop: int, factor: float
) -> NDArray[np.float32]:
    """Cosines, then sines, of some positions: float32 ``[stop - start, 2 * len(inv_freq)]``."""
    positions = np.arange(start, stop).astype(np.float32)
    angles = positions[:, None] * inv_freq.astype(np.float32)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * np.float32(factor)


class Table:
    """One table.

    Attributes:
        values: float32 ``[context, 2 * len(inv_freq)]``, zero where nothing was computed yet.
    """

    def __init__(self, inv_freq: NDArray[np.float32], factor: float, context: int) -> None:
        """Reserves room for a context; the system commits it when it is filled."""
        self._inv_freq, self._factor = inv_freq, factor
        self._filled = 0
        self.values = np.zeros((context, 2 * len(inv_freq)), np.float32)

    def reach(self, position: int) -> None:
        """Makes sure that a position, and all before it, are there."""
        while self._filled <= position < len(self.values):
            stop = min(len(self.values), self._filled + PIECE)
            self.values[self._filled : stop] = rotary_table(
                self._inv_freq, self._filled, stop, self._factor
            )
            self._filled = stop


class RotaryTables:
    """Tables for the context of whichever cache is bound; equal ones are shared."""

    def __init__(self) -> None:
        """Has none yet."""
        self._tables: dict[tuple[str, float, int], Table] = {}

    def address(self, name: str, inv_freq: NDArray[np.float32], factor: float, context: int) -> int:
        """Address of the table for a context length."""
        key = (name, factor, context)
        if key not in self._tables:
            self._tables[key] = Table(inv_freq, factor, context)
        return int(self._tables[key].values.ctypes.data)

    def reach(self, positions: NDArray[np.int32]) -> None:
        """Makes sure that all tables hold the positions of a batch, int32 ``[rows]``."""
        last = int(positions[0] if len(positions) == 1 else positions.max(initial=0))
        for table in self._tables.values():
            table.reach(last)
