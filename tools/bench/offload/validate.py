"""The simulator against the stand-in: the same layers, simulated and measured.

    python -m tools.bench.offload.validate [--rows 1 4 16] [--calls 120] [--devices SPEC ...]
        [--real-time]

A layer of random experts is shared with the stand-in for a GPU (``tools/bench/standin.py``), call
by call, as a made-up trace says. The second half of the calls is simulated: which experts are
where, what is uploaded, and how long each layer takes. The simulator knows which experts are on the
device before it, and of each call what experts were seen to cost in the calls before that one:
other programs of the machine make costs change. Each call takes as much more or less than that as
one of those before it did, drawn at random (``variation.py``) from those that uploaded something if
it does, and else from the others. Figures are medians over the second half, in ms; we want
``simulated / measured`` within 10% of 1. Two cores must be free; ``--real-time`` (as root, Linux)
lets all other programs wait. No figure is about any GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgerun.backends import CompileOptions
from edgerun.backends.base import Shape
from edgerun.offload.cache import ExpertCache, Step
from edgerun.offload.places import Places
from edgerun.offload.policies.base import Entry
from edgerun.offload.policies.registry import policies
from edgerun.offload.schedule import NANOSECONDS, Scheduler, Starts
from edgerun.offload.sharing.cuts import with_cut
from edgerun.offload.sharing.executable import SharedLayer
from edgerun.offload.sharing.session import POLICY
from edgerun.offload.sharing.trials import TRIAL
from edgerun.offload.standin import StandinBackend
from edgerun.state import SequenceStore
from tools.bench.offload.machine import CPU, DEVICE, UPLOAD, Division
from tools.bench.offload.profile import F64
from tools.bench.offload.simulate import Batch, Simulation
from tools.bench.offload.variation import RESOURCES, drawn, watch
from tools.bench.standin import STATE, inputs, layer, precedence, timed

COLUMNS = ["device", "rows", "simulated", "measured", "simulated / measured"]
COLUMNS += ["on the device, simulated", "measured"]
DEVICES = ["memory=48M,link=2G,latency=20us", "memory=24M,link=8G,latency=20us"]


@dataclass
class Costs:
    """What experts with so many rows were seen to cost before a call, by call, rows and resource.

    Attributes:
        by_rows: float64 ``[calls, rows + 1, 3]``.
        exchange_s: what a cut costs, ``[calls]``.
        starts_s: what passes before anything is done, see ``Starts``, ``[calls, 3]``.
        cuts: whether calls that were cut had been faster, ``[calls]``.
        trials: whether the device is used though that seems slower, ``[calls]``.
        ratios: what the calls took that this one is to be like, by what was expected of them, if
            it uploads nothing and if it does, by ``RESOURCES``, ``[calls, 2, 6]``.
        parts: that experts can be cut into.
        call: that is simulated.
    """

    by_rows: F64
    exchange_s: F64
    starts_s: F64
    cuts: NDArray[np.bool_]
    trials: NDArray[np.bool_]
    ratios: F64
    parts: int = 1
    call: int = 0

    def costs(self, rows: NDArray[np.int64], is_cached: NDArray[np.bool_]) -> F64:
        """As ``Speeds.costs`` says."""
        costs = self.by_rows[self.call, rows].copy()
        costs[is_cached, UPLOAD] = 0
        return costs

    def between_s(self, tokens: int) -> float:
        """Layers follow one another at once."""
        return 0.0


NO_COSTS = Costs(
    *(np.zeros(shape) for shape in ((0, 0, 3), 0, (0, 3))),
    *np.zeros((2, 0), np.bool_),
    np.zeros((0, 2, len(RESOURCES))),
)


@dataclass
class Shared(Simulation):
    """A simulation of what the executor does: one expert cut at most, one uploaded while it idles.

    Attributes:
        seen: costs.
        there: experts that the device computed, counted by layer.
        is_here: of the layer under way, whether the processor computes each.
        exchange_s: of the layer under way.
        like: how resources vary in it.
    """

    seen: Costs = field(default_factory=lambda: NO_COSTS)
    there: int = 0
    is_here: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    exchange_s: float = 0.0
    like: F64 = field(default_factory=lambda: np.ones(len(RESOURCES)))

    def divide(self, costs: F64) -> Division:
        """As ``SharedLayer`` does."""
        room = self.slots - int(np.count_nonzero(costs[:, UPLOAD] == 0))
        seen, columns, parts = self.seen, list(costs.T), 1
        most, exchange_s = seen.parts, float(seen.exchange_s[seen.call])
        schedule = _scheduler(1)(*columns, room)
        if most > 1 and seen.cuts[seen.call]:
            finer = _scheduler(most)(*columns, room)
            exact = np.ceil(costs * NANOSECONDS).astype(np.int64)
            schedule, parts = with_cut(exact, schedule, finer, most, exchange_s)
        self.exchange_s = exchange_s if parts > 1 else 0.0
        starts = Starts(*seen.starts_s[seen.call].tolist())
        alone = schedule.alone(float(columns[CPU].sum()))
        planned_s = schedule.seconds(columns, parts, starts) + self.exchange_s
        if alone.makespan_s < planned_s and not seen.trials[seen.call]:
            schedule, parts, self.exchange_s = alone, 1, 0.0
        self.is_here = schedule.shares == 0
        self.there += len(schedule.order)
        shares, has_uploads = schedule.shares / parts, bool(columns[UPLOAD][schedule.order].any())
        self.like = seen.ratios[seen.call, int(has_uploads)]
        return Division(
            [(int(e), 1 - shares[e]) for e in np.flatnonzero(shares < 1)],
            [(int(e), float(shares[e])) for e in schedule.order],
            Starts(*(seen.starts_s[seen.call] * self.like[len(columns) :]).tolist()),
        )

    def varied(self, costs: F64) -> F64:
        """As much slower or faster than expected as the call that this one is to be like."""
        varied: F64 = costs * self.like[: len(costs.T)]
        return varied

    def improve(self, places: Places) -> None:
        """Uploads what the processor computed and is worth more than what is there."""
        pairs = zip(places.active, self.is_here.tolist(), strict=True)
        here = [expert for expert, is_here in pairs if is_here]
        if here:
            taken = places.select(here)
            expert = int(places.experts[taken[np.argmax(places.weights[taken])]])
            self.caches[0].exchange((0, expert))


@cache
def _scheduler(parts: int) -> Scheduler:
    return Scheduler(1024, parts)


@dataclass
class Measured:
    """The second half of the calls, and what was known before it.

    Attributes:
        seconds: of each call's experts.
        there: experts that the device computed, of all.
        experts: of all calls.
        costs: that were seen.
        resident: experts on the device before it.
        slots: that the device has.
    """

    seconds: list[float]
    there: int
    experts: int
    costs: Costs
    resident: frozenset[Entry]
    slots: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares what the command line names and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--calls", type=int, default=120)
    parser.add_argument("--devices", nargs="+", default=DEVICES)
    for name, value in (("experts", 24), ("top-k", 8), ("hidden", 2048), ("width", 1024)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--real-time", action="store_true", help="let other programs wait")
    options = parser.parse_args(arguments)
    sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n")
    for device in options.devices:
        for rows in options.rows:
            sys.stdout.write(f"| {' | '.join(compared(device, rows, options))} |\n")
            sys.stdout.flush()
    return 0


def compared(device: str, rows: int, options: argparse.Namespace) -> list[str]:
    """A row of the table."""
    calls = inputs(rows, options)
    measured = measure(device, rows, calls, options)
    simulation, simulated = simulate(measured, calls, options.top_k)
    shares = [simulation.there / simulation.outcome.experts, measured.there / measured.experts]
    seconds = [float(np.median(each)) for each in (simulated, measured.seconds)]
    figures = [*(f"{1e3 * each:.3f}" for each in seconds), f"{seconds[0] / seconds[1]:.2f}"]
    return [device, str(rows), *figures, *(f"{share:.0%}" for share in shares)]


def measure(
    device: str, rows: int, calls: list[tuple[F64, F64]], options: argparse.Namespace
) -> Measured:
    """Calls of the stand-in."""
    backend = StandinBackend()
    backend.configure({"threads": 1, "share_always": True})
    backend.use_device(device)
    with precedence(options.real_time):
        program = backend.compile(layer(options), Shape.of(rows), CompileOptions(STATE))
    assert isinstance(program, SharedLayer)
    store, half = SequenceStore(STATE, 1), len(calls) // 2
    estimated: list[F64] = []
    besides: list[tuple[float, ...]] = []
    session, estimates, (tally,) = backend._session, backend._estimates, backend._tallies
    assert session is not None and estimates is not None
    watched, ratios = watch(estimates), []
    seconds, before = [], (0, 0, 0)
    resident: frozenset[Entry] = frozenset()
    for number, (x, routes) in enumerate(calls):
        while session.is_uploading():
            time.sleep(1e-4)
        counts = np.arange(rows + 1)
        is_cut = program._trials.favours_other(rows)
        is_trial = program._calls % TRIAL == 0
        besides.append((estimates.exchange_s, *estimates.starts, is_cut, is_trial))
        estimated.append(np.stack(estimates.costs(counts, counts < 0), axis=1))
        if number == half:
            resident = session.cache.resident
            before = tally.cached, tally.uploaded, tally.here
        start, _ = tally.seconds, [each.ratio() for each in watched]
        timed(program, store, x, routes)
        seconds.append(tally.seconds - start)
        ratios.append([each.ratio() for each in watched])
    cached, uploaded, here = np.subtract((tally.cached, tally.uploaded, tally.here), before)
    slots = session.device.sizes.slots
    backend.close()
    exchange_s, *starts_s, cuts, trials = np.array(besides[half:]).T
    by_rows, starts = np.array(estimated[half:]), np.stack(starts_s, axis=1)
    like = drawn(np.array(ratios), half)
    costs = Costs(by_rows, exchange_s, starts, cuts > 0, trials > 0, like, program._parts)
    there = int(cached + uploaded)
    return Measured(seconds[half:], there, there + int(here), costs, resident, slots)


def simulate(
    measured: Measured, calls: list[tuple[F64, F64]], top_k: int
) -> tuple[Shared, list[float]]:
    """The second half of the calls, from what was known after the first, and seconds of each."""
    costs = measured.costs
    simulation = Shared(costs, "edgerun", measured.slots, seen=costs)  # type: ignore[arg-type]
    cache = simulation.caches[0] = ExpertCache(measured.slots, policies()[POLICY]())
    half = len(calls) - len(measured.seconds)
    placed = [Places.of(routes, top_k) for _, routes in calls]
    for places in placed[:half]:
        cache.admit(step_of(places), ())
    for entry in sorted(measured.resident):
        cache.exchange(entry)
    seconds = []
    for call, places in enumerate(placed[half:]):
        measured.costs.call = call
        before = simulation.outcome.seconds
        batch = Batch(step_of(places), np.array(places.counts))
        simulation.layer(batch, (), len(places.of_row))
        seconds.append(simulation.outcome.seconds - before + simulation.exchange_s)
        simulation.improve(places)
    return simulation, seconds


def step_of(places: Places) -> Step:
    """What a call needs, as the executor tells its cache."""
    return Step(0, tuple(places.active), places.scores())


if __name__ == "__main__":
    assert (CPU, DEVICE, UPLOAD) == (0, 1, 2)  # in the order of ``Estimates.costs``
    raise SystemExit(main())
