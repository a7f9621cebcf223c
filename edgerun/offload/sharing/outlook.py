"""What is expected of layers that are shared with a device, before any was.

Costs are assumed, tokens are taken to go to all experts alike, and the device to hold as many of
each layer as it has room for. How many of those that a call needs are among them varies from call
to call, and a layer is an average over that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from edgerun.kernels.experts.division import MAX_COST
from edgerun.offload.estimates import Estimates
from edgerun.offload.schedule import F64, NANOSECONDS, Schedule, Scheduler, Starts

LONGEST_S = MAX_COST / NANOSECONDS  # of an expert, to schedules; whatever takes longer is as bad
AT_ONCE = Starts(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Call:
    """What a call needs of a layer.

    Attributes:
        experts: that the layer has.
        active: of these, those that some row goes to.
        rows: of each of these.
        cpu_s: seconds that the processor takes for one of them.
    """

    experts: int
    active: int
    rows: int
    cpu_s: float

    @classmethod
    def of(cls, experts: int, top_k: int, rows: int, layer_s: float) -> Call:
        """Of so many rows, each of which goes to ``top_k`` experts, any of them alike.

        Args:
            experts: of the layer.
            top_k: of a row.
            rows: of the call.
            layer_s: seconds that the processor alone takes for the layer.
        """
        active = max(1, round(experts * (1 - (1 - top_k / experts) ** rows)))
        return cls(experts, active, max(1, round(rows * top_k / active)), layer_s / active)


@dataclass(frozen=True, slots=True)
class Outlook:
    """A layer, in seconds.

    Attributes:
        shared_s: as the schedule divides it, or alone where that is faster.
        divided_s: as the schedule divides it, with what a call costs besides.
        around_s: of that, what a call costs besides.
        bound_s: no division is faster.
        alone_s: the processor alone.
        fixed_s: the device computes what it has, the processor the rest.
        moved_s: the device computes everything and gets what it lacks.
    """

    shared_s: float
    divided_s: float
    around_s: float
    bound_s: float
    alone_s: float
    fixed_s: float
    moved_s: float


def outlook(call: Call, share: float, slots: int, estimates: Estimates) -> Outlook:
    """What a layer is expected to take.

    Args:
        call: what it needs.
        share: of the layer's experts that the device has.
        slots: for experts of all layers.
        estimates: costs on the device and of uploads.
    """
    scheduler, total = Scheduler(call.active), np.zeros(len(fields(Outlook)))
    for cached, chance in _chances(call.active, share):
        if chance > 1e-6:
            total += chance * np.array(_seconds(call, cached, slots, estimates, scheduler))
    return Outlook(*total.tolist())


def _chances(count: int, share: float) -> Iterator[tuple[int, float]]:
    """How likely it is that so many of ``count`` are on the device."""
    for cached in range(count + 1):
        missing = count - cached
        yield cached, math.comb(count, cached) * share**cached * (1 - share) ** missing


def _seconds(
    call: Call, cached: int, slots: int, estimates: Estimates, scheduler: Scheduler
) -> tuple[float, ...]:
    """The figures of an ``Outlook`` where so many of the experts are on the device."""
    is_cached = np.arange(call.active) < cached
    _, device, upload = estimates.costs(np.full(call.active, call.rows), is_cached)
    costs = np.full(call.active, call.cpu_s), device, upload
    cpu, device, upload = (np.minimum(each, LONGEST_S) for each in costs)
    schedule = scheduler(cpu, device, upload, slots - cached)
    ways = [schedule, *(_fixed(costs, there) for there in (0, cached, call.active))]
    around_s = estimates.around.of_one()
    shared, alone, *others = (
        way.seconds(costs, 1, estimates.starts) + around_s * (len(way.order) > 0) for way in ways
    )
    # It costs as much to find out that the processor computes everything.
    divided = shared if len(schedule.order) else alone + around_s
    beside = around_s + max(0.0, divided - around_s - schedule.seconds(costs, 1, AT_ONCE))
    return min(shared, alone), divided, beside, schedule.bound_s, alone, *others


def _fixed(costs: tuple[F64, F64, F64], there: int) -> Schedule:
    """The device computes the first experts, whatever that takes."""
    shares = (np.arange(len(costs[0])) < there).astype(np.int64)
    return Schedule(shares, np.arange(there), 0.0, 0.0, ())
