"""The division of a layer with everything that it stands on and that comes of it, compiled.

What ``Estimates.costs``, ``Scheduler``, ``Schedule.seconds`` and ``Floors.certificate_s`` say one
after the other, in one call: a layer of a reply takes less time than Python does for these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.experts.division import (
    ALONE,
    CERTIFICATE,
    COST_WORDS,
    DIVISION_WORDS,
    KINDS,
    OTHER_PRICES,
    PLANNED,
    PRICES,
    RESULT_WORDS,
    WEIGHT_SUM,
)
from edgerun.kernels.jit.service import compiled, native
from edgerun.offload.estimates import Estimates
from edgerun.offload.floors import ONE
from edgerun.offload.schedule import NANOSECONDS, Schedule

F64: TypeAlias = NDArray[np.float64]
I64: TypeAlias = NDArray[np.int64]
NAMES = (
    *("experts", "room", "parts", "rows", "cached", "prices", "others", "costs"),
    *("order", "shares", "result"),
)


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

    def update(self, rows: Sequence[int]) -> None:
        """Takes over what was learned of experts with so many rows each."""
        estimates, floors = self._estimates, self._estimates.floors
        prices = estimates.cpu, estimates.device, floors.cpu, floors.device
        for kind in {(count - 1).bit_length() for count in rows}:
            row: list[float] = []
            for price in prices:
                factor = price.factor(kind) * NANOSECONDS
                row += (price.fixed_s * factor, price.row_s * factor)
            self.by_kind[kind] = row
        least_s = floors.upload.seconds(ONE)[0]
        others = estimates.upload.of_one(), least_s, *estimates.starts
        self.others[:] = [each * NANOSECONDS for each in others]


@dataclass(frozen=True, slots=True)
class Division:
    """A schedule and what comes of it.

    Attributes:
        schedule: of the active experts.
        costs: nanoseconds of each on processor, device and link, int64 ``[experts, 3]``.
        planned_s: see ``Schedule.seconds``.
        alone_s: what the processor would take alone.
        certificate_s: see ``Floors.certificate_s``.
    """

    schedule: Schedule
    costs: I64
    planned_s: float
    alone_s: float
    certificate_s: float

    def alone(self) -> Division:
        """The same experts on the processor alone."""
        schedule = self.schedule.alone(self.alone_s)
        return replace(self, schedule=schedule, planned_s=self.alone_s)


class Divider:
    """Divides layers; its memory is made once."""

    def __init__(self, experts: int, prices: Prices, parts: int = 1) -> None:
        """Prepares for layers of up to ``experts`` experts, which can be cut into ``parts``."""
        self._parts = parts
        self._rows, self._cached, self._order, self._shares = np.zeros((4, experts), np.int64)
        self._costs = np.zeros((experts, COST_WORDS), np.int64)
        self._result = np.zeros(DIVISION_WORDS, np.int64)
        self._prices = prices
        arrays = [self._rows, self._cached, prices.by_kind, prices.others]
        arrays += [self._costs, self._order, self._shares, self._result]
        addresses = [array.ctypes.data for array in arrays]
        assert compiled("expert_division").signature.names == NAMES
        self._arguments = np.array([0, 0, parts, *addresses], np.int64)
        self._address = self._arguments.ctypes.data
        self._divide = native("expert_division")

    def __call__(self, rows: I64, is_cached: NDArray[np.bool_], room: int) -> Division:
        """Divides a layer by the prices as they are now.

        Args:
            rows: of each active expert, 1 or more.
            is_cached: whether the device has it.
            room: experts that may be uploaded.
        """
        count = len(rows)
        self._prices.update(rows.tolist())
        self._rows[:count], self._cached[:count] = rows, is_cached
        self._arguments[0], self._arguments[1] = count, min(max(room, 0), count)
        self._divide(self._address, 0)
        shares, order = self._shares[:count].copy(), self._order[:count]
        makespan_ns, bound_ns, *weights = self._result[:RESULT_WORDS].tolist()
        planned_ns, alone_ns, certificate_ns = self._result[PLANNED : CERTIFICATE + 1].tolist()
        schedule = Schedule(
            shares,
            order[shares[order] > 0],
            makespan_ns / (self._parts * NANOSECONDS),
            bound_ns / (WEIGHT_SUM * NANOSECONDS),
            tuple(weights),
        )
        seconds = (each / NANOSECONDS for each in (planned_ns, alone_ns, certificate_ns))
        return Division(schedule, self._costs[:count].copy(), *seconds)


assert ALONE == PLANNED + 1 == CERTIFICATE - 1
