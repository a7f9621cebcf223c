"""What a layer costs beside its products where a device shares it: microseconds of Python.

    python -m tools.bench.offload.boundary [--threads 1 2] [--rows 1] [--calls 1500]
        [--experts 64 --top-k 8 --hidden 256 --width 256] [--shares none half]

Experts are small, so that hardly anything but this takes time. The device is a stand-in that works
in the calling thread the moment it is told to, and what that takes is subtracted, as is the native
program of the processor's own share: what is left is dividing the layer, moving rows, learning and
adding up. No process or thread wakes up, so that other programs hardly matter, and nothing of it
is about any GPU. Costs are set before each call so that the device computes ``half`` of the
experts, or ``none``; nothing is uploaded. Figures are the least tenth and the median.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, make_backend
from edgerun.backends.base import Shape
from edgerun.offload.estimates import Estimate, Estimates
from edgerun.offload.sharing.device import ALL, U8, Answer, Device, Product
from edgerun.offload.sharing.executable import SharedLayer
from edgerun.offload.sharing.layer import Layer
from edgerun.offload.standin import StandinBackend
from edgerun.offload.standin.device import StandinDevice
from edgerun.offload.standin.memory import make_memory, slot_of, transfers_of
from edgerun.offload.standin.process import Command, Multiplier, Setup
from edgerun.state import SequenceStore
from tools.bench.standin import STATE, inputs, layer, timed

WARM_CALLS = 100
ROOM = "memory=1G"
# Seconds of an expert on processor and device: what the schedule then gives the device.
COSTS = {"half": (1e-4, 1e-4), "none": (1e-4, 1.0)}
FREE, NEVER = 1e-9, 1.0


class Immediate(Device):
    """A stand-in without a process: whoever sends a command computes it.

    Attributes:
        seconds: that products took so far.
    """

    title = "the stand-in"

    def __init__(self, standin: StandinDevice) -> None:
        """Takes sizes and weights' layout of one that is not started."""
        self.sizes, self._standin, self.seconds = standin.sizes, standin, 0.0

    @property
    def uploaded_bytes(self) -> int:
        return 0

    def start(self) -> None:
        import pickle

        descriptor, self._memory = make_memory(self.sizes.nbytes)
        self.x, self.inner, self.out = transfers_of(self.sizes, self._memory)
        standin = self._standin
        setup = Setup(self.sizes, pickle.dumps(standin._layout), standin._attributes)
        self._multiplier, self._answers = Multiplier(setup, descriptor), deque[Answer]()

    def upload(self, slot: int, source: U8, then: Callable[[float], None]) -> None:
        np.copyto(slot_of(self.sizes, self._memory, slot), source)
        then(FREE)

    def send(self, number: int, first: int, slots: Sequence[int], product: Product = ALL) -> None:
        begin = time.monotonic()
        self._multiplier.run(Command(number, first, tuple(slots), product))
        end = time.monotonic()
        self.seconds += end - begin
        self._answers.append(Answer(number, end, begin))

    def answer(self, patience_s: float) -> Answer:
        return self._answers.popleft()

    def stop(self) -> None:
        """There is nothing to end."""

    def forget(self) -> None:
        """Nothing is shared with a parent."""


class ImmediateBackend(StandinBackend):
    """Shares layers with such a device."""

    device: Immediate

    def make_device(self, layer: Layer, slots: int, rows: int) -> Device:
        standin = super().make_device(layer, slots, rows)
        assert isinstance(standin, StandinDevice)
        self.device = Immediate(standin)
        return self.device


@dataclass(frozen=True)
class Figures:
    """Microseconds of each call, float64 ``[calls]``.

    Attributes:
        boundary: beside the products.
        whole: of the call.
        alone: of the same rows on the processor, with its own Python.
        there: share of the experts that the device computed.
    """

    boundary: NDArray[np.float64]
    whole: NDArray[np.float64]
    alone: NDArray[np.float64]
    there: float


def main() -> None:
    """Measures what the command line names and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--calls", type=int, default=1500)
    parser.add_argument("--shares", nargs="+", choices=[*COSTS], default=[*COSTS])
    for name, value in (("experts", 64), ("top-k", 8), ("hidden", 256), ("width", 256)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    columns = ["threads", "rows", "there", "boundary, us", "whole call, us", "CPU alone, us"]
    sys.stdout.write(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n")
    for threads in options.threads:
        for rows in options.rows:
            for share in options.shares:
                figures = measure(options, rows, threads, share)
                each = figures.boundary, figures.whole, figures.alone
                cells = [f"{threads}", f"{rows}", f"{figures.there:.0%}", *map(shown, each)]
                sys.stdout.write(f"| {' | '.join(cells)} |\n")
                sys.stdout.flush()


def measure(options: argparse.Namespace, rows: int, threads: int, share: str) -> Figures:
    """Calls of the layer, shared and on the processor alone, in turns."""
    graph, store = layer(options), SequenceStore(STATE, 1)
    shared = ImmediateBackend()
    shared.configure({"threads": threads, "share_always": True})
    shared.use_device(ROOM)
    alone = make_backend("cpu", given={"threads": threads})
    first, second = (
        each.compile(graph, Shape.of(rows), CompileOptions(STATE)) for each in (shared, alone)
    )
    assert isinstance(first, SharedLayer)
    shared.preload()
    device, launches, estimates = shared.device, first._layer.places.launches, shared._estimates
    assert launches is not None and estimates is not None
    first._calls, calls = 1, []
    for x, routes in inputs(rows, options):
        cost(estimates, *COSTS[share])
        before_s = device.seconds + launches.native_s
        out, whole_s = timed(first, store, x, routes)
        products_s = device.seconds + launches.native_s - before_s
        expected, alone_s = timed(second, store, x, routes)
        if not np.array_equal(out, expected):
            raise SystemExit("the device computes other numbers than the processor")
        calls.append((whole_s - products_s, whole_s, alone_s))
    (tally,) = shared._tallies
    there = tally.cached / (tally.cached + tally.here)
    for each in (shared, alone):
        each.close()
    return Figures(*1e6 * np.array(calls[WARM_CALLS:]).T, there)


def cost(estimates: Estimates, cpu_s: float, device_s: float) -> None:
    """Forgets what was learned: experts cost this much, uploads too much and beginnings nothing."""
    estimates.cpu, estimates.device = Estimate(cpu_s), Estimate(device_s)
    estimates.upload = Estimate(NEVER)
    estimates.start, estimates.command, estimates.arrival = (Estimate(FREE) for _ in range(3))


def shown(microseconds: NDArray[np.float64]) -> str:
    """The least tenth and the median."""
    least, median = np.quantile(microseconds, (0.1, 0.5))
    return f"{least:.0f}, {median:.0f}"


if __name__ == "__main__":
    main()
