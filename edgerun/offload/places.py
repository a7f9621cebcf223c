"""Rows of a batch with the experts that they go to, and the sum of the results.

A place is a row and one of its experts. Each is computed once, by whoever has its expert, and the
sum goes in the order of experts, as ``ops/experts.py`` defines it: so the result does not depend
by a bit on who computed what.

A token has few experts, with which plain Python is done before NumPy begins: what is counted by
experts is in lists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.isa import selected_isa
from edgerun.kernels.jit.service import compiled, native
from edgerun.kernels.run.parts import COUNT, NOWHERE, PART_WORDS, UNIT

F32: TypeAlias = NDArray[np.float32]
I32: TypeAlias = NDArray[np.int32]
I64: TypeAlias = NDArray[np.int64]
LARGEST = float(np.finfo(np.float32).max)
MOST_UNITS = 256  # whose one-hot rows are kept: 256 KiB
__all__ = ["F32", "I64", "NOWHERE", "Places", "Sorter", "one_hot"]


@dataclass(eq=False)
class Places:
    """The places of a batch, by expert and then by row.

    Attributes:
        active: experts that have rows, ascending.
        counts: rows of each.
        weights: what the result of each place is multiplied with, float32 ``[places]``.
        of_row: places of each row in the order of experts, int32 ``[rows, top_k]``, or ``NOWHERE``.
    """

    active: list[int]
    counts: list[int]
    weights: F32
    of_row: I32
    _adder: _Adder

    @classmethod
    def of(cls, routes: F32, top_k: int) -> Places:
        """Sorts a batch; see ``Sorter``."""
        rows, experts = routes.shape
        return Sorter(rows, experts, top_k)(routes)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.weights)

    @cached_property
    def rows(self) -> I64:
        """Row of each place, ``[places]``."""
        rows = np.zeros(len(self), np.int64)
        if len(self.of_row) > 1:
            are = self.of_row != NOWHERE
            rows[self.of_row[are]] = np.nonzero(are)[0]
        return rows

    @cached_property
    def experts(self) -> I64:
        """Expert of each place, ``[places]``."""
        active = np.array(self.active, np.int64)
        return active if len(self) == len(active) else np.repeat(active, self.counts)

    def select(self, experts: Collection[int]) -> I64:
        """The places of some active experts, ascending."""
        active, experts = self.active, {*experts}
        if len(self) == len(active):
            return np.array([n for n, expert in enumerate(active) if expert in experts], np.int64)
        chosen = np.array([expert in experts for expert in active], np.bool_)
        return np.flatnonzero(np.repeat(chosen, self.counts))

    def counts_of(self, experts: Collection[int]) -> list[int]:
        """Rows of each of some active experts, ascending."""
        pairs, experts = zip(self.active, self.counts, strict=True), {*experts}
        return [count for expert, count in pairs if expert in experts]

    def scores(self) -> tuple[float, ...]:
        """The largest weight of each active expert, without sign; 0 of what is no number."""
        if len(self) == len(self.active):
            return tuple([min(max(0.0, abs(each)), LARGEST) for each in self.weights.tolist()])
        sizes = np.minimum(np.fmax(np.abs(self.weights), 0.0), LARGEST)
        starts = [0, *accumulate(self.counts[:-1])]
        return tuple(np.maximum.reduceat(sizes, starts).tolist())

    def sum(self, results: F32) -> F32:
        """Adds up results of the places, float32 ``[places, width]``, by the kernel of the op."""
        return self._adder(len(self.of_row), np.ascontiguousarray(results))


class Sorter:
    """Sorts batches by the processor's own kernel; its memory is made once."""

    def __init__(self, rows: int, experts: int, top_k: int) -> None:
        """Prepares for batches of up to ``rows`` rows.

        Args:
            rows: the most.
            experts: of the layer.
            top_k: experts that a row goes to at most; the first ones count.
        """
        self._rows = np.zeros(1, np.int64)
        self._parts = np.zeros(1 + experts * PART_WORDS, np.int64)
        self._weights = np.zeros(rows * top_k, np.float32)
        self._of_row = np.zeros((rows, top_k), np.int32)
        memory: dict[str, NDArray[Any]] = {
            "rows": self._rows,
            "parts": self._parts,
            "first": np.zeros(experts, np.int64),
            "weights": self._weights,
            "places": self._of_row,
        }
        self._keep = memory
        fields = {name: array.ctypes.data for name, array in memory.items()}
        fields |= {"routes": 0, "stride": 0, "experts": experts, "top_k": top_k}
        names = compiled("expert_plan").signature.names
        self._arguments = np.array([fields[name] for name in names], np.int64)
        self._routes_at, self._stride_at = names.index("routes"), names.index("stride")
        self._address = self._arguments.ctypes.data
        self._sort = native("expert_plan")
        self._adder = _Adder(self._rows, self._of_row, self._weights)

    def __call__(self, routes: F32) -> Places:
        """Sorts a batch; what it returns is valid until the next call.

        Args:
            routes: of each row, ``[rows, experts]``, 0 for experts that it does not go to.
        """
        if routes.strides[1] != routes.itemsize:
            routes = np.ascontiguousarray(routes)
        self._rows[0] = len(routes)
        self._arguments[self._routes_at] = routes.ctypes.data
        self._arguments[self._stride_at] = routes.strides[0] // routes.itemsize
        self._sort(self._address, 0)
        words = self._parts[1 : 1 + int(self._parts[0]) * PART_WORDS].tolist()
        counts = words[COUNT::PART_WORDS]
        weights, of_row = self._weights[: sum(counts)], self._of_row[: len(routes)]
        return Places(words[UNIT::PART_WORDS], counts, weights, of_row, self._adder)


class _Adder:
    """Adds up by the kernel of the op, in the order of experts."""

    def __init__(self, rows: I64, of_row: I32, weights: F32) -> None:
        """Takes where the number of rows, places and weights of batches will lie."""
        names, self._add = _sum_kernel()
        memory: dict[str, NDArray[Any]] = {"rows": rows, "places": of_row, "weights": weights}
        fields = {name: array.ctypes.data for name, array in memory.items()}
        fields["top_k"] = of_row.shape[1]
        self._arguments = np.array([fields.get(name, 0) for name in names], np.int64)
        self._address = self._arguments.ctypes.data
        self._results_at, self._out_at = names.index("results"), names.index("out")
        strides = "results_stride", "out_stride", "width"
        self._strides_at = [names.index(name) for name in strides]
        self._width = 0

    def __call__(self, rows: int, results: F32) -> F32:
        arguments, width = self._arguments, results.shape[1]
        if width != self._width:
            arguments[self._strides_at] = self._width = width
        out = np.empty((rows, width), np.float32)
        arguments[self._results_at] = results.ctypes.data
        arguments[self._out_at] = out.ctypes.data
        for row in range(rows):
            self._add(self._address, row)
        return out


@cache
def _sum_kernel() -> tuple[tuple[str, ...], Callable[[int, int], None]]:
    """The arguments of the processor's own kernel for the sum, and the kernel."""
    lanes = selected_isa().float_lanes
    return compiled("expert_sum", lanes=lanes).signature.names, native("expert_sum", lanes=lanes)


def one_hot(units: I64, count: int) -> F32:
    """Routes of rows that go to one expert each, with weight 1."""
    if count <= MOST_UNITS:
        return _identity(count)[units]
    routes = np.zeros((len(units), count), np.float32)
    routes[np.arange(len(units)), units] = 1
    return routes


@cache
def _identity(count: int) -> F32:
    return np.eye(count, dtype=np.float32)
