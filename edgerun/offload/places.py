"""Rows of a batch with the experts that they go to, and the sum of the results.

A place is a row and one of its experts. Each is computed once, by whoever has its expert, and the
sum goes in the order of experts, as ``ops/experts.py`` defines it: so the result does not depend
by a bit on who computed what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.isa import selected_isa
from edgerun.kernels.jit.service import compiled, native

F32: TypeAlias = NDArray[np.float32]
I64: TypeAlias = NDArray[np.int64]
NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Places:
    """The places of a batch, by expert and then by row.

    Attributes:
        rows: row of each place, ``[places]``.
        experts: expert of each place.
        weights: what its result is multiplied with, float32.
        active: experts that have rows, ascending.
        counts: rows of each of these.
        of_row: places of each row in the order of experts, ``[rows, top_k]``, or ``NOWHERE``.
    """

    rows: I64
    experts: I64
    weights: F32
    active: I64
    counts: I64
    of_row: I64

    @classmethod
    def of(cls, routes: F32, top_k: int) -> Places:
        """Sorts a batch.

        Args:
            routes: of each row, ``[rows, experts]``, 0 for experts that it does not go to.
            top_k: experts that a row goes to at most; the first ones count.
        """
        chosen = routes != 0
        ranks = np.cumsum(chosen, axis=1)
        chosen &= ranks <= top_k
        experts, rows = np.nonzero(chosen.T)
        counts = np.count_nonzero(chosen, axis=0)
        active = np.flatnonzero(counts)
        of_row = np.full((len(routes), top_k), NOWHERE, np.int64)
        of_row[rows, ranks[rows, experts] - 1] = np.arange(len(rows))
        return cls(rows, experts, routes[rows, experts], active, counts[active], of_row)

    def select(self, experts: I64) -> I64:
        """The places of some active experts, ascending."""
        return np.flatnonzero(self._are(self.experts, experts))

    def counts_of(self, experts: I64) -> I64:
        """Rows of each of some active experts, which are ascending."""
        return self.counts[self._are(self.active, experts)]

    def others(self, experts: I64) -> I64:
        """The active experts but for some of them."""
        return self.active[~self._are(self.active, experts)]

    def sum(self, results: F32) -> F32:
        """Adds up results of the places, float32 ``[places, width]``, by the kernel of the op."""
        (rows, top_k), width = self.of_row.shape, results.shape[1]
        out = np.empty((rows, width), np.float32)
        places, weights = self.of_row.astype(np.int32), np.ascontiguousarray(self.weights)
        results = np.ascontiguousarray(results)
        count = np.array([rows])
        memory = (array.ctypes.data for array in (count, places, weights, results, out))
        fields = dict(zip(("rows", "places", "weights", "results", "out"), memory, strict=True))
        fields |= {"top_k": top_k, "results_stride": width, "out_stride": width, "width": width}
        names, add = _adder()
        arguments = np.array([fields[name] for name in names], np.int64)
        address = arguments.ctypes.data
        for row in range(rows):
            add(address, row)
        return out

    def _are(self, of: I64, experts: I64) -> NDArray[np.bool_]:
        """Which of some active experts are among others, which are active, too."""
        marks = np.zeros(self.active[-1] + 1 if len(self.active) else 0, np.bool_)
        marks[experts] = True
        are: NDArray[np.bool_] = marks[of]
        return are


@cache
def _adder() -> tuple[tuple[str, ...], Callable[[int, int], None]]:
    """The arguments of the processor's own kernel for the sum, and the kernel."""
    lanes = selected_isa().float_lanes
    return compiled("expert_sum", lanes=lanes).signature.names, native("expert_sum", lanes=lanes)


def one_hot(units: I64, count: int) -> F32:
    """Routes of rows that go to one expert each, with weight 1."""
    routes = np.zeros((len(units), count), np.float32)
    routes[np.arange(len(units)), units] = 1
    return routes
