"""How attention is cut into pieces of work, and the memory that goes with it.

A *unit* is some rows of the batch and a range of pages that they all see. Rows of a long prompt
are taken in stacks, each with all its pages. Any other row has its context cut into blocks of
``BLOCK_PAGES`` pages; every block is a unit, so that all threads can work on one token (after
Lean Attention, Sanovar et al. 2024), and rows whose page tables name the same pages in a block
share the unit, so that a common prefix is read once (Hydragen, Juravsky et al. 2024). A row with
several blocks leaves a partial result of each, which ``attention_combine`` merges in the order of
the blocks, as a unit of several blocks does by itself. So neither the number of threads nor the
rest of the batch changes what a row gets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.jit.registry import compiled, native

PAGE_TOKENS = 64  # as in state/paged.py
BLOCK_PAGES = 8
CODECS = ("fp32", "fp16", "int8")  # how keys and values may be stored
# What kernels read of a page pool: arrays of its codec, 0 for those that it has not, and its table.
CACHE = "key_data value_data key_scales value_scales page_table pages kv_heads page_heads"
# Partial results; rows beyond are not cut. The system commits what is used.
CAPACITY = 2048

# A unit: first row, rows, first page, end of its pages, number of its block in the context.
UNIT_ROW, UNIT_ROWS, UNIT_PAGE, UNIT_END, UNIT_BLOCK, UNIT_INTS = 0, 1, 2, 3, 4, 8
# What is known of a row: where its partial results begin, its first block, and how many it has.
ROW_SLOT, ROW_BLOCK, ROW_BLOCKS, ROW_INTS = 0, 1, 2, 4
# Numbers of units of one row, of units of several rows, and of rows whose results are combined.
SINGLE, STACKED, SPLIT, COUNTS = range(4)


@dataclass(slots=True)
class AttentionUnits:
    """Units of one batch after the other, for layers of equal window.

    Attributes:
        max_rows: most rows of a batch.
        stack: most rows of a unit.
        window: positions that a row sees; 0 for all.
        partial_floats: float32 of a row's partial result over all heads.
        fields: the batch and the numbers of units as addresses: ``rows``, ``positions``,
            ``sequences``, ``counts``.
        arguments: of ``attention_plan``; ``page_table`` and ``pages`` are filled in by the caller.
    """

    max_rows: int
    stack: int
    window: int
    partial_floats: int
    fields: dict[str, int]
    arguments: NDArray[np.int64] = field(init=False)
    names: tuple[str, ...] = field(init=False)
    single: NDArray[np.int32] = field(init=False)
    stacked: NDArray[np.int32] = field(init=False)
    rows: NDArray[np.int32] = field(init=False)
    partials: NDArray[np.float32] = field(init=False)
    _plan: Callable[[int, int], None] = field(init=False)
    _address: int = field(init=False)

    def __post_init__(self) -> None:
        most = CAPACITY + self.max_rows
        self.single = np.zeros((most, UNIT_INTS), np.int32)
        self.stacked = np.zeros((most if self.max_rows > 1 else 0, UNIT_INTS), np.int32)
        self.rows = np.zeros((self.max_rows, ROW_INTS), np.int32)
        self.partials = np.zeros((CAPACITY, self.partial_floats), np.float32)
        given = {
            "page_table": 0,
            "pages": 0,
            "window": self.window,
            "stack": self.stack,
            "capacity": CAPACITY,
            "single": self.single.ctypes.data,
            "stacked": self.stacked.ctypes.data,
            "row_blocks": self.rows.ctypes.data,
        }
        self.names = compiled("attention_plan", block=BLOCK_PAGES).fields
        fields = given | self.fields
        self.arguments = np.array([fields[name] for name in self.names], np.int64)
        self._address = self.arguments.ctypes.data
        self._plan = native("attention_plan", block=BLOCK_PAGES)

    def plan(self) -> None:
        """Cuts the batch that the fields point to; writes the numbers of units."""
        self._plan(self._address, 0)
