"""Has batches cut into units of attention, and holds the memory that goes with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.attention.units import (
    BLOCK_PAGES,
    CAPACITY,
    ROW_INTS,
    TURNED_INTS,
    UNIT_INTS,
)
from edgerun.kernels.jit.service import compiled, native


@dataclass(slots=True)
class AttentionUnits:
    """Units of one batch after the other, for layers of equal window.

    Attributes:
        max_rows: most rows of a batch.
        stack: most rows of a unit.
        window: positions that a row sees; 0 for all.
        partial_floats: float32 of a row's partial result over all heads.
        kv_heads: chunks of a unit.
        threads: that share the chunks.
        fields: the batch and the numbers of units as addresses: ``rows``, ``positions``,
            ``sequences``, ``counts``.
        room: pages that may be turned for several units.
        arguments: of ``attention_plan``; ``page_table`` and ``pages`` are filled in by the caller.
    """

    max_rows: int
    stack: int
    window: int
    partial_floats: int
    kv_heads: int
    threads: int
    fields: dict[str, int]
    room: int = 0
    arguments: NDArray[np.int64] = field(init=False)
    names: tuple[str, ...] = field(init=False)
    single: NDArray[np.int32] = field(init=False)
    stacked: NDArray[np.int32] = field(init=False)
    turned: NDArray[np.int32] = field(init=False)
    rows: NDArray[np.int32] = field(init=False)
    partials: NDArray[np.float32] = field(init=False)
    _plan: Callable[[int, int], None] = field(init=False)
    _address: int = field(init=False)

    def __post_init__(self) -> None:
        most = CAPACITY + self.max_rows
        self.single = np.zeros((most, UNIT_INTS), np.int32)
        self.stacked = np.zeros((most if self.max_rows > 1 else 0, UNIT_INTS), np.int32)
        self.turned = np.zeros((self.room, TURNED_INTS), np.int32)
        self.rows = np.zeros((self.max_rows, ROW_INTS), np.int32)
        self.partials = np.zeros((CAPACITY, self.partial_floats), np.float32)
        constant = {
            "page_table": 0,
            "pages": 0,
            "window": self.window,
            "stack": self.stack,
            "threads": self.threads,
            "kv_heads": self.kv_heads,
            "capacity": CAPACITY,
            "single": self.single.ctypes.data,
            "stacked": self.stacked.ctypes.data,
            "room": self.room,
            "turned_pages": self.turned.ctypes.data,
            "row_blocks": self.rows.ctypes.data,
        }
        self.names = compiled("attention_plan", block=BLOCK_PAGES).signature.names
        fields = constant | self.fields
        self.arguments = np.array([fields[name] for name in self.names], np.int64)
        self._address = self.arguments.ctypes.data
        self._plan = native("attention_plan", block=BLOCK_PAGES)

    def plan(self) -> None:
        """Cuts the batch that the fields point to; writes the numbers of units."""
        self._plan(self._address, 0)
