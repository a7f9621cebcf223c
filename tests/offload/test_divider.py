"""The compiled division says what schedule, estimates and certificate say one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.kernels.experts.division import MAX_COST
from edgerun.offload.divider import Divider, Prices
from edgerun.offload.estimates import Estimate, Estimates
from edgerun.offload.floors import Busy
from edgerun.offload.schedule import NANOSECONDS, Scheduler


def learned(rng: np.random.Generator, scale: float) -> Estimates:
    """Costs that were seen, of all numbers of rows that are asked for and of others."""
    prices = np.array([(1e-3, 1e-5), (2e-4, 3e-6), (5e-4, 0.0)]) * scale
    estimates = Estimates(*(Estimate(*price) for price in prices.tolist()))
    for _ in range(40):
        rows = rng.integers(1, 40, rng.integers(1, 9))
        seconds = scale * rng.uniform(1e-4, 1e-2, 3)
        estimates.cpu.observe(rows, float(seconds[0]))
        estimates.device.observe(rows, float(seconds[1]))
        estimates.observe_upload(float(seconds[2]))
        for each in (estimates.start, estimates.command, estimates.arrival):
            each.observe_one(float(rng.uniform(1e-5, 1e-3)))
        shares, is_cached = rng.random(len(rows)), rng.random(len(rows)) < 0.5
        estimates.floors.observe(rows, shares, is_cached, Busy(*seconds.tolist()))
    return estimates


@pytest.mark.parametrize(("parts", "experts", "scale"), [
    (1, 12, 1.0), (8, 12, 1.0), (8, 128, 1.0), (8, 128, 3e3)
])  # fmt: skip
def test_all_of_it_is_what_python_says(parts: int, experts: int, scale: float) -> None:
    """Also of costs beyond the largest that the division takes."""
    rng, most_s = np.random.default_rng(parts), MAX_COST / NANOSECONDS
    estimates = learned(rng, scale)
    divider, scheduler = Divider(experts, Prices(estimates), parts), Scheduler(experts, parts)
    for _ in range(10_000 // experts):
        count = int(rng.integers(1, experts + 1))
        rows = rng.integers(1, int(rng.choice([2, 70])), count)
        is_cached, room = rng.random(count) < 0.5, int(rng.integers(0, count + 1))
        division = divider(rows, is_cached, room)
        costs = np.minimum(estimates.costs(rows, is_cached), most_s)
        np.testing.assert_allclose(division.costs.T / 1e9, costs, atol=1.01e-9)
        expected = scheduler(*(division.costs.T / 1e9), room)
        schedule = division.schedule
        assert (schedule.makespan_s, schedule.bound_s) == (expected.makespan_s, expected.bound_s)
        assert schedule.weights == expected.weights
        np.testing.assert_array_equal(schedule.shares, expected.shares)
        np.testing.assert_array_equal(schedule.order, expected.order)
        planned_s = schedule.seconds(costs, parts, estimates.starts)
        assert division.planned_s == pytest.approx(planned_s, rel=1e-6, abs=1e-7)
        assert division.alone_s == pytest.approx(costs[0].sum(), rel=1e-6, abs=1e-7)
        alone = division.alone()
        assert alone.planned_s == alone.schedule.makespan_s == division.alone_s
        assert not alone.schedule.shares.any() and not len(alone.schedule.order)
        certificate_s = estimates.floors.certificate_s(rows, is_cached, schedule.weights)
        assert division.certificate_s == pytest.approx(certificate_s, abs=2e-9)
        assert division.certificate_s <= certificate_s * (1 + 1e-12)
        estimates.cpu.observe(
            rows, scale * float(rng.uniform(1e-4, 1e-2))
        )  # prices are those of now
