"""The least that experts were ever seen to take, and the time that a layer cannot fall below by it.

Estimates are averages, so a bound that is added up from them is one of averages, too: whoever is
luckier than that ends before it. A **certificate** is the same sum of the least costs that were
ever seen. A layer ends after the processor, the device and the link have done what is theirs, so
after any weighted mean of these three, and no schedule has a smaller one (``schedule.py``). So it
ends before its certificate only if one of the three took less for its share of the layer than its
leasts add up to: then these are lowered, and by the new ones no call before has ended too early.

Experts are timed together. What those with different numbers of rows took is divided among them as
was assumed of them, so that a least may at first be too high for one kind and too low for another.
That is why the calls which end before their certificate are counted (``Tally.early``), by the
certificate that they had when they began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.experts.division import KINDS, WEIGHT_SUM

if TYPE_CHECKING:
    from edgerun.offload.estimates import Estimate

T = TypeVar("T")
F64: TypeAlias = NDArray[np.float64]
I64: TypeAlias = NDArray[np.int64]
Counts: TypeAlias = list[int] | I64  # rows of experts
ONE = [1]


def listed(numbers: list[T] | NDArray[Any]) -> list[T]:
    """Numbers as Python takes them soonest."""
    return numbers if isinstance(numbers, list) else numbers.tolist()


def kinds_of(rows: Counts) -> list[int]:
    """Numbers of rows that kernels take alike: up to 1, 2, 4, 8, ..., of each expert."""
    return [(count - 1).bit_length() for count in listed(rows)]


@dataclass(slots=True)
class Busy:
    """Seconds for which processor, device and link worked for a layer."""

    cpu_s: float = 0.0
    device_s: float = 0.0
    upload_s: float = 0.0


@dataclass(slots=True)
class Floor:
    """The least seconds of an expert's work with some rows: a factor of what is assumed of it.

    What was never seen may take no time at all.

    Attributes:
        fixed_s: assumed, of the weights.
        row_s: assumed, of a row.
    """

    fixed_s: float
    row_s: float = 0.0
    _factors: list[float] = field(default_factory=lambda: [0.0] * KINDS)

    @classmethod
    def of(cls, estimate: Estimate) -> Floor:
        """Of what an estimate begins with."""
        return cls(estimate.fixed_s, estimate.row_s)

    def factor(self, kind: int) -> float:
        """By which what is assumed is multiplied, of a kind of numbers of rows."""
        return self._factors[kind]

    def of_one(self) -> float:
        """Seconds of what has no rows, or one."""
        return (self.fixed_s + self.row_s) * self._factors[0]

    def seconds(self, rows: Counts) -> list[float]:
        """Of experts with so many rows each."""
        pairs = zip(listed(rows), kinds_of(rows), strict=True)
        return [self._assumed(count) * self._factors[kind] for count, kind in pairs]

    def observe(self, rows: Counts, shares: list[float] | F64, seconds: float) -> bool:
        """Learns that parts of experts took so long together; whether that is less than ever.

        Args:
            rows: of each expert.
            shares: of each, that was computed, 0 to 1.
            seconds: of all of them.
        """
        parts = self._parts(listed(rows), listed(shares)) if seconds > 0 else {}
        assumed_s = sum(parts.values())
        if not assumed_s > 0:
            return False
        factors = self._factors
        new = [kind for kind in parts if not factors[kind]]
        for kind in new:
            factors[kind] = seconds / assumed_s
        least_s = sum([part_s * factors[kind] for kind, part_s in parts.items()])
        if seconds < least_s:
            for kind in parts:
                factors[kind] *= seconds / least_s
        return seconds < least_s or bool(new)

    def _parts(self, rows: list[int], shares: list[float]) -> dict[int, float]:
        """What is assumed of parts of experts, by kind, of those that were computed."""
        if rows.count(1) == len(rows):  # as in replies
            assumed_s = self._assumed(1) * sum(shares)
            return {0: assumed_s} if assumed_s else {}
        parts: dict[int, float] = {}
        for count, kind, share in zip(rows, kinds_of(rows), shares, strict=True):
            if share:
                parts[kind] = parts.get(kind, 0.0) + self._assumed(count) * share
        return parts

    def _assumed(self, rows: int) -> float:
        return self.fixed_s + self.row_s * rows


@dataclass(slots=True)
class Floors:
    """Of an expert on the processor, on the device, and on its way there.

    A token has few experts, of which Python adds up the costs sooner than NumPy begins to.
    """

    cpu: Floor
    device: Floor
    upload: Floor

    def certificate_s(
        self, rows: Counts, is_cached: list[bool] | NDArray[np.bool_], weights: Sequence[int]
    ) -> float:
        """Seconds before which a layer does not end, unless something takes less than ever.

        Args:
            rows: of each active expert.
            is_cached: whether the device has it.
            weights: of processor, device and link, their sum is ``WEIGHT_SUM``; whatever they are,
                it is a bound (``Schedule.weights``).
        """
        upload_s = self.upload.of_one()
        experts = zip(
            self.cpu.seconds(rows), self.device.seconds(rows), listed(is_cached), strict=True
        )
        leasts = (
            min(weights[0] * here_s, weights[1] * there_s + weights[2] * upload_s * (not cached))
            for here_s, there_s, cached in experts
        )
        return sum(leasts) / WEIGHT_SUM

    def observe_upload(self, seconds: float, experts: int = 1) -> bool:
        """Learns that experts were uploaded in so long together; whether that is less than ever."""
        return self.upload.observe(ONE, [float(experts)], seconds)

    def observe(
        self,
        rows: Counts,
        shares: list[float] | F64,
        is_cached: list[bool] | NDArray[np.bool_],
        busy: Busy,
    ) -> bool:
        """Learns what a layer took; whether anything took less than ever.

        Args:
            rows: of each active expert.
            shares: of each, that the device computed, 0 to 1.
            is_cached: whether the device had it.
            busy: what that took.
        """
        counts, there = listed(rows), listed(shares)
        least = [
            self.cpu.observe(counts, [1 - share for share in there], busy.cpu_s),
            self.device.observe(counts, there, busy.device_s),
        ]
        if busy.upload_s:
            pairs = zip(there, listed(is_cached), strict=True)
            uploaded = sum(share > 0 and not is_there for share, is_there in pairs)
            least.append(self.observe_upload(busy.upload_s, uploaded))
        return any(least)
