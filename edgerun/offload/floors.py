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
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.experts.division import KINDS, WEIGHT_SUM

if TYPE_CHECKING:
    from edgerun.offload.estimates import Estimate

F64: TypeAlias = NDArray[np.float64]
I64: TypeAlias = NDArray[np.int64]
ONE = np.ones(1, np.int64)


def kinds_of(rows: I64) -> list[int]:
    """Numbers of rows that kernels take alike: up to 1, 2, 4, 8, ..., of each expert."""
    return [(count - 1).bit_length() for count in rows.tolist()]


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

    def seconds(self, rows: I64) -> list[float]:
        """Of experts with so many rows each."""
        pairs = zip(rows.tolist(), kinds_of(rows), strict=True)
        return [self._assumed(count) * self._factors[kind] for count, kind in pairs]

    def observe(self, rows: I64, shares: F64, seconds: float) -> bool:
        """Learns that parts of experts took so long together; whether that is less than ever.

        Args:
            rows: of each expert.
            shares: of each, that was computed, 0 to 1.
            seconds: of all of them.
        """
        experts = zip(rows.tolist(), kinds_of(rows), shares.tolist(), strict=True)
        parts = [(kind, self._assumed(count) * share) for count, kind, share in experts if share]
        assumed_s = sum(part_s for _, part_s in parts)
        if not (assumed_s > 0 and seconds > 0):
            return False
        factors = self._factors
        new = [kind for kind, _ in parts if not factors[kind]]
        for kind in new:
            factors[kind] = seconds / assumed_s
        least_s = sum(part_s * factors[kind] for kind, part_s in parts)
        if seconds < least_s:
            for kind in {kind for kind, _ in parts}:
                factors[kind] *= seconds / least_s
        return seconds < least_s or bool(new)

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
        self, rows: I64, is_cached: NDArray[np.bool_], weights: Sequence[int]
    ) -> float:
        """Seconds before which a layer does not end, unless something takes less than ever.

        Args:
            rows: of each active expert.
            is_cached: whether the device has it.
            weights: of processor, device and link, their sum is ``WEIGHT_SUM``; whatever they are,
                it is a bound (``Schedule.weights``).
        """
        upload_s = self.upload.seconds(ONE)[0]
        experts = zip(
            self.cpu.seconds(rows), self.device.seconds(rows), is_cached.tolist(), strict=True
        )
        leasts = (
            min(weights[0] * here_s, weights[1] * there_s + weights[2] * upload_s * (not cached))
            for here_s, there_s, cached in experts
        )
        return sum(leasts) / WEIGHT_SUM

    def observe_upload(self, seconds: float, experts: int = 1) -> bool:
        """Learns that experts were uploaded in so long together; whether that is less than ever."""
        return self.upload.observe(ONE, np.full(1, float(experts)), seconds)

    def observe(self, rows: I64, shares: F64, is_cached: NDArray[np.bool_], busy: Busy) -> bool:
        """Learns what a layer took; whether anything took less than ever.

        Args:
            rows: of each active expert.
            shares: of each, that the device computed, 0 to 1.
            is_cached: whether the device had it.
            busy: what that took.
        """
        least = [
            self.cpu.observe(rows, 1 - shares, busy.cpu_s),
            self.device.observe(rows, shares, busy.device_s),
            self.observe_upload(busy.upload_s, int(np.count_nonzero(shares[~is_cached]))),
        ]
        return any(least)
