"""The least that experts were ever seen to take, and the time that a layer cannot fall below by it.

Estimates are averages, so a bound that is added up from them is one of averages, too: whoever is
luckier than that ends before it. A **certificate** is the same sum of the least costs that were
ever seen. A layer ends after the processor, the device and the link have done what is theirs, so
after any weighted mean of these three, and no schedule has a smaller one (``schedule.py``). So it
ends before its certificate only if one of the three took less for its share of the layer than was
ever seen: then that is the least from then on, and by it no call before has ended too early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.experts.division import WEIGHT_SUM

if TYPE_CHECKING:
    from edgerun.offload.estimates import Estimate

F64: TypeAlias = NDArray[np.float64]
I64: TypeAlias = NDArray[np.int64]
KINDS = 40  # numbers of rows up to 1, 2, 4, 8, ...


def kinds_of(rows: I64) -> I64:
    """Numbers of rows that kernels take alike: up to 1, 2, 4, 8, ..., int64 ``[experts]``."""
    return np.ceil(np.log2(np.maximum(rows, 1))).astype(np.int64)


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
    _factors: F64 = field(default_factory=lambda: np.zeros(KINDS))

    @classmethod
    def of(cls, estimate: Estimate) -> Floor:
        """Of what an estimate begins with."""
        return cls(estimate.fixed_s, estimate.row_s)

    def seconds(self, rows: I64) -> F64:
        """Of experts with so many rows each, ``[experts]``."""
        least: F64 = self._assumed(rows) * self._factors[kinds_of(rows)]
        return least

    def observe(self, rows: I64, shares: F64, seconds: float) -> bool:
        """Learns that parts of experts took so long together; whether that is less than ever.

        Args:
            rows: of each expert.
            shares: of each, that was computed, 0 to 1.
            seconds: of all of them.
        """
        rows, shares = rows[shares > 0], shares[shares > 0]
        if not len(rows) or not seconds > 0:
            return False
        assumed, kinds = self._assumed(rows) * shares, kinds_of(rows)
        is_new = self._factors[kinds] == 0
        self._factors[kinds[is_new]] = seconds / float(assumed.sum())
        least = float((assumed * self._factors[kinds]).sum())
        if seconds < least:
            self._factors[np.unique(kinds)] *= seconds / least
        return seconds < least or bool(is_new.any())

    def _assumed(self, rows: I64) -> F64:
        return np.asarray(self.fixed_s + self.row_s * rows, np.float64)


@dataclass(slots=True)
class Floors:
    """Of an expert on the processor, on the device, and on its way there."""

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
        here = weights[0] * self.cpu.seconds(rows)
        uploads = self.upload.seconds(np.where(is_cached, 0, 1)) * ~is_cached
        there = weights[1] * self.device.seconds(rows) + weights[2] * uploads
        return float(np.minimum(here, there).sum()) / WEIGHT_SUM

    def observe(self, rows: I64, shares: F64, is_cached: NDArray[np.bool_], busy: Busy) -> bool:
        """Learns what a layer took; whether anything took less than ever.

        Args:
            rows: of each active expert.
            shares: of each, that the device computed, 0 to 1.
            is_cached: whether the device had it.
            busy: what that took.
        """
        uploaded = np.where(is_cached, 0.0, (shares > 0).astype(np.float64))
        one = np.ones_like(rows)
        least = [
            self.cpu.observe(rows, 1 - shares, busy.cpu_s),
            self.device.observe(rows, shares, busy.device_s),
            self.upload.observe(one, uploaded, busy.upload_s),
        ]
        return any(least)
