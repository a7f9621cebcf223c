"""One layer of experts on three resources, event by event."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgerun.offload.schedule import Starts
from tools.bench.offload.profile import F64

CPU, DEVICE, UPLOAD = range(3)


@dataclass(frozen=True)
class Division:
    """What each resource has to do, in its order.

    Attributes:
        cpu: experts, and the share of each that the processor computes, above 0 up to 1.
        device: the same of the device; those that are not cached are uploaded in this order.
        starts: what passes before anything is done, if the device has anything to do: until then
            the processor tells it what, and later the link that something has arrived.
    """

    cpu: Sequence[tuple[int, float]]
    device: Sequence[tuple[int, float]]
    starts: Starts = Starts(0.0, 0.0, 0.0)


@dataclass
class Timeline:
    """What came of it.

    Attributes:
        makespan_s: when processor and device were done.
        busy_s: seconds that each resource worked.
        products: resource, expert, share and the time it ended, of every product.
    """

    makespan_s: float = 0.0
    busy_s: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    products: list[tuple[int, int, float, float]] = field(default_factory=list)


def play(costs: F64, division: Division) -> Timeline:
    """Lets a layer run: resources take what is theirs as soon as they can.

    Args:
        costs: seconds of each expert on processor, device and link, ``[experts, 3]``.
        division: of its experts.
    """
    layer = _Layer(costs, division)
    starts = division.starts if division.device else Starts(0.0, 0.0, 0.0)
    layer.line.makespan_s = starts.cpu_s
    for resource, start_s in zip((CPU, DEVICE, UPLOAD), starts, strict=True):
        layer.begin(resource, start_s)
    while layer.events:
        layer.happen()
    return layer.line


class _Layer:
    """What is left to do, and which work ends when."""

    def __init__(self, costs: F64, division: Division) -> None:
        self.costs, self.line = costs, Timeline()
        uploads = [each for each in division.device if costs[each[0], UPLOAD] > 0]
        self.waiting = {
            CPU: deque(division.cpu),
            DEVICE: deque(division.device),
            UPLOAD: deque(uploads),
        }
        self.missing = {expert for expert, _ in uploads}
        self.is_busy = {CPU: False, DEVICE: False, UPLOAD: False}
        self.events: list[tuple[float, int, int, float]] = []  # end, resource, expert, share

    def begin(self, resource: int, now: float) -> None:
        """A resource takes what is next, if it is idle and that can be done."""
        waiting = self.waiting[resource]
        if self.is_busy[resource] or not waiting:
            return
        if resource == DEVICE and waiting[0][0] in self.missing:
            return
        expert, share = waiting.popleft()
        seconds = float(share * self.costs[expert, resource])
        self.line.busy_s[resource] += seconds
        self.is_busy[resource] = True
        heapq.heappush(self.events, (now + seconds, resource, expert, share))

    def happen(self) -> None:
        """The work that is the next to end ends."""
        now, resource, expert, share = heapq.heappop(self.events)
        self.is_busy[resource] = False
        if resource == UPLOAD:
            self.missing.remove(expert)
            self.begin(DEVICE, now)
        else:
            self.line.makespan_s = max(now, self.line.makespan_s)
            self.line.products.append((resource, expert, share, now))
        self.begin(resource, now)
