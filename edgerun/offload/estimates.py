"""What experts take on a resource: assumed at first, then as long as they were seen to take."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.offload.floors import ONE, Counts, Floor, Floors, kinds_of, listed
from edgerun.offload.schedule import Starts

F64: TypeAlias = NDArray[np.float64]
I64: TypeAlias = NDArray[np.int64]
WEIGHT = 0.15  # of what was seen last: after 20 times 4% is left of what was assumed
EXCHANGE_S = 3e-4
START_S = 1e-4
AROUND_S = 3e-4  # measured beside the stand-in, two free cores of a Zen 5 server
START_INSIDE_S, AROUND_INSIDE_S = 3e-6, 2e-5  # the same
(KIND_OF_ONE,) = KINDS_OF_ONE = kinds_of(ONE)
LARGEST_STEP = 4.0  # by which a single time may be off: it may have been a pause of the system


@dataclass(slots=True)
class Estimate:
    """Seconds of an expert's work with some rows: a constant and so much a row, times a factor.

    Factors are of numbers of rows up to 1, 2, 4, 8, ...: kernels differ by them. One that was not
    seen yet is that of the nearest number that was.

    Attributes:
        fixed_s: assumed, of the weights.
        row_s: assumed, of a row.
    """

    fixed_s: float
    row_s: float = 0.0
    _factors: dict[int, float] = field(default_factory=dict)

    def seconds(self, rows: I64) -> F64:
        """Of experts with so many rows each, ``[experts]``."""
        return np.array(self._each(rows))

    def of_one(self) -> float:
        """Of what has no rows, or one."""
        return (self.fixed_s + self.row_s) * self.factor(KIND_OF_ONE)

    def learned(self) -> dict[int, float]:
        """Factors by kind, of those that were seen."""
        return dict(self._factors)

    def observe_one(self, seconds: float) -> None:
        """Learns that it took so long once."""
        self._learn(KINDS_OF_ONE, self.of_one(), seconds)

    def observe(self, rows: Counts, seconds: float) -> None:
        """Learns that experts with so many rows each took so long together."""
        counts = listed(rows)
        if counts and counts.count(1) == len(counts):  # as in replies
            self._learn(KINDS_OF_ONE, len(counts) * self.of_one(), seconds)
        else:
            self._learn({*kinds_of(counts)}, sum(self._each(counts)), seconds)

    def observe_kinds(self, kinds: Collection[int], expected_s: float, seconds: float) -> None:
        """Learns that what was to take ``expected_s``, with numbers of rows of kinds, did that."""
        self._learn(kinds, expected_s, seconds)

    def _learn(self, kinds: Collection[int], expected: float, seconds: float) -> None:
        if not expected > 0 or not seconds > 0:
            return
        step = min(max(seconds / expected, 1 / LARGEST_STEP), LARGEST_STEP) ** WEIGHT
        self._factors.update([(kind, self.factor(kind) * step) for kind in kinds])

    def _each(self, rows: Counts) -> list[float]:
        """Of each; a token has few experts, with which Python is done before NumPy begins."""
        counts, kinds = listed(rows), kinds_of(rows)
        factors = {kind: self.factor(kind) for kind in set(kinds)}
        fixed_s, row_s = self.fixed_s, self.row_s
        pairs = zip(counts, kinds, strict=True)
        return [(fixed_s + row_s * count) * factors[kind] for count, kind in pairs]

    def factor(self, kind: int) -> float:
        """By which what is assumed is multiplied, of a kind of numbers of rows."""
        factors = self._factors
        factor = factors.get(kind)
        if factor is not None:
            return factor
        nearest = min(factors, key=lambda other: abs(other - kind), default=None)
        return 1.0 if nearest is None else factors[nearest]


@dataclass(slots=True)
class Estimates:
    """Of all resources.

    Attributes:
        cpu: an expert on the processor.
        device: an expert on the device.
        upload: the upload of an expert; its rows do not matter.
        start: of a call that uses the device: what passes before the processor multiplies, and
        command: before the device does.
        arrival: before the device begins with what it lacked, beside the uploads.
        around: of such a call, what it takes besides: dividing the layer, adding up, learning.
        exchange_s: what a layer takes longer if one of its experts is cut.
        floors: the least that experts ever took.
    """

    cpu: Estimate
    device: Estimate
    upload: Estimate
    start: Estimate = field(default_factory=lambda: Estimate(START_S))
    command: Estimate = field(default_factory=lambda: Estimate(START_S))
    arrival: Estimate = field(default_factory=lambda: Estimate(START_S))
    around: Estimate = field(default_factory=lambda: Estimate(AROUND_S))
    exchange_s: float = EXCHANGE_S
    floors: Floors = field(init=False)

    def __post_init__(self) -> None:
        """Has seen nothing yet."""
        self.floors = Floors(*map(Floor.of, (self.cpu, self.device, self.upload)))

    def inside(self) -> Estimates:
        """Of layers that are shared inside a program, which begins and goes on sooner."""
        start, around = Estimate(START_INSIDE_S), Estimate(AROUND_INSIDE_S)
        return replace(self, start=start, around=around)

    def with_uploads_of(self, other: Estimates) -> Estimates:
        """The same, from now on with the uploads of another, which both learn of."""
        self.upload, self.floors.upload = other.upload, other.floors.upload
        return self

    def observe_upload(self, seconds: float) -> None:
        """Learns that an expert that no layer waited for was uploaded in so long."""
        self.upload.observe_one(seconds)
        self.floors.observe_upload(seconds)

    def observe_exchange(self, excess_s: float) -> None:
        """Learns that a layer took so much longer than it was to take, this cost included."""
        step = min(max(excess_s, -self.exchange_s), LARGEST_STEP * self.exchange_s)
        self.exchange_s += WEIGHT * step

    @property
    def starts(self) -> Starts:
        """What passes before anything is done, as ``Schedule.seconds`` takes it."""
        return Starts(self.start.of_one(), self.command.of_one(), self.arrival.of_one())

    def costs(self, rows: I64, is_cached: NDArray[np.bool_]) -> tuple[F64, F64, F64]:
        """Seconds of active experts on processor, device and link, as ``Scheduler`` takes them."""
        upload = self.upload.seconds(np.ones_like(rows))
        return self.cpu.seconds(rows), self.device.seconds(rows), np.where(is_cached, 0.0, upload)
