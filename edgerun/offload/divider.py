"""The division of a layer with everything that it stands on and that comes of it, compiled.

What ``Estimates.costs``, ``Scheduler``, ``Schedule.seconds`` and ``Floors.certificate_s`` say one
after the other, in one call: a layer of a reply takes less time than Python does for these.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.experts.division import (
    ALONE,
    BOUND,
    CERTIFICATE,
    COST_WORDS,
    CPU_WEIGHT,
    DIVISION_WORDS,
    KINDS,
    MAKESPAN,
    OTHER_PRICES,
    PLANNED,
    PRICES,
    RESULT_WORDS,
    WEIGHT_SUM,
)
from edgerun.kernels.jit.service import compiled, native
from edgerun.offload.estimates import Estimates
from edgerun.offload.floors import ONE, Counts, kinds_of, listed
from edgerun.offload.schedule import NANOSECONDS, Schedule

F64: TypeAlias = NDArray[np.float64]
I64: TypeAlias = NDArray[np.int64]
NAMES = (
    *("experts", "room", "parts", "rows", "cached", "prices", "others", "costs"),
    *("order", "shares", "result"),
)
BY_KIND, OTHERS = struct.Struct(f"{PRICES}d"), struct.Struct(f"{OTHER_PRICES}d")
KINDS_OF_ONE = kinds_of(ONE)


class Prices:
    """What experts cost, and the least that they ever did, as native code reads it.

    Attributes:
        by_kind: float64 ``[KINDS, PRICES]``, nanoseconds, of the kinds that were asked for.
        others: float64 ``[OTHER_PRICES]``: of what has no rows.
    """

    def __init__(self, estimates: Estimates) -> None:
        """Takes estimates, which go on learning."""
        self.by_kind = np.zeros((KINDS, PRICES))
        self.others = np.zeros(OTHER_PRICES)
        self._estimates = estimates
        self._memory = self.by_kind.data.cast("B"), self.others.data.cast("B")

    def update(self, rows: list[int]) -> None:
        """Takes over what was learned of experts with so many rows each."""
        estimates, floors = self._estimates, self._estimates.floors
        by_kind, others = self._memory
        prices = estimates.cpu, estimates.device, floors.cpu, floors.device
        is_reply = rows.count(1) == len(rows)
        for kind in KINDS_OF_ONE if is_reply else {*kinds_of(rows)}:
            row: list[float] = []
            for price in prices:
                factor = price.factor(kind) * NANOSECONDS
                row += (price.fixed_s * factor, price.row_s * factor)
            BY_KIND.pack_into(by_kind, kind * BY_KIND.size, *row)
        each = estimates.upload, floors.upload, estimates.start, estimates.command
        ones = [price.of_one() * NANOSECONDS for price in (*each, estimates.arrival)]
        OTHERS.pack_into(others, 0, *ones)


@dataclass(eq=False)
class Division:
    """How a layer is divided, and what comes of it.

    Attributes:
        shares: parts of each active expert that the device computes.
        order: the experts that it computes, in that order.
        makespan_s: see ``Schedule``.
        bound_s: see ``Schedule``.
        weights: see ``Schedule``.
        planned_s: see ``Schedule.seconds``.
        alone_s: what the processor would take alone.
        certificate_s: see ``Floors.certificate_s``.
        costs: nanoseconds of each expert on processor, device and link, int64 ``[experts, 3]``;
            valid until the next division.
    """

    shares: list[int]
    order: list[int]
    makespan_s: float
    bound_s: float
    weights: tuple[int, ...]
    planned_s: float
    alone_s: float
    certificate_s: float
    costs: I64

    @property
    def schedule(self) -> Schedule:
        """Shares and order with the bound."""
        arrays = np.array(self.shares, np.int64), np.array(self.order, np.int64)
        return Schedule(*arrays, self.makespan_s, self.bound_s, self.weights)

    def alone(self) -> Division:
        """The same experts on the processor alone; no bound changes by that."""
        nothing, s = [0] * len(self.shares), self.alone_s
        proofs = self.bound_s, self.weights
        return Division(nothing, [], s, *proofs, s, s, self.certificate_s, self.costs)


class Divider:
    """Divides layers; its memory is made once.

    Attributes:
        memory: by the names of the kernel's arguments.
        arguments: what the kernel is called with, int64: experts, room, parts, and that memory.
    """

    def __init__(self, experts: int, prices: Prices, parts: int = 1) -> None:
        """Prepares for layers of up to ``experts`` experts, which can be cut into ``parts``."""
        self._parts = parts
        self._rows, self._cached, self._order, self._shares = np.zeros((4, experts), np.int64)
        self._costs = np.zeros((experts, COST_WORDS), np.int64)
        self._result = np.zeros(DIVISION_WORDS, np.int64)
        self._prices = prices
        arrays = [self._rows, self._cached, prices.by_kind, prices.others]
        arrays += [self._costs, self._order, self._shares, self._result]
        self.memory: dict[str, NDArray[Any]] = dict(zip(NAMES[3:], arrays, strict=True))
        addresses = [array.ctypes.data for array in arrays]
        assert compiled("expert_division").signature.names == NAMES
        self.arguments = np.array([0, 0, parts, *addresses], np.int64)
        self._address = self.arguments.ctypes.data
        self._divide = native("expert_division")

    def __call__(
        self, rows: Counts, is_cached: list[bool] | NDArray[np.bool_], room: int
    ) -> Division:
        """Divides a layer by the prices as they are now.

        Args:
            rows: of each active expert, 1 or more.
            is_cached: whether the device has it.
            room: experts that may be uploaded.
        """
        count = len(rows)
        self._prices.update(listed(rows))
        self._rows[:count], self._cached[:count] = rows, is_cached
        self.arguments[0], self.arguments[1] = count, min(max(room, 0), count)
        self._divide(self._address, 0)
        shares, words = self._shares[:count].tolist(), self._result.tolist()
        return Division(
            shares,
            [expert for expert in self._order[:count].tolist() if shares[expert]],
            words[MAKESPAN] / (self._parts * NANOSECONDS),
            words[BOUND] / (WEIGHT_SUM * NANOSECONDS),
            (*words[CPU_WEIGHT:RESULT_WORDS],),
            words[PLANNED] / NANOSECONDS,
            words[ALONE] / NANOSECONDS,
            words[CERTIFICATE] / NANOSECONDS,
            self._costs[:count],
        )
