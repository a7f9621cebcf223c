"""The compiled division says what schedule, estimates and certificate say one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.offload.divider import Divider, Prices
from edgerun.offload.estimates import Estimate, Estimates
from edgerun.offload.floors import Busy
from edgerun.offload.schedule import Scheduler


def learned(rng: np.random.Generator) -> Estimates:
    """Costs that were seen, of all numbers of rows that are asked for and of others."""
    estimates = Estimates(Estimate(1e-3, 1e-5), Estimate(2e-4, 3e-6), Estimate(5e-4))
    for _ in range(40):
        rows = rng.integers(1, 40, rng.integers(1, 9))
        seconds = rng.uniform(1e-4, 1e-2, 3)
        estimates.cpu.observe(rows, float(seconds[0]))
        estimates.device.observe(rows, float(seconds[1]))
        estimates.observe_upload(float(seconds[2]))
        for each in (estimates.start, estimates.command, estimates.arrival):
            each.observe_one(float(rng.uniform(1e-5, 1e-3)))
        shares, is_cached = rng.random(len(rows)), rng.random(len(rows)) < 0.5
        estimates.floors.observe(rows, shares, is_cached, Busy(*seconds.tolist()))
    return estimates


@pytest.mark.parametrize("parts", [1, 8])
def test_all_of_it_is_what_python_says(parts: int) -> None:
    rng = np.random.default_rng(parts)
    estimates = learned(rng)
    divider, scheduler = Divider(12, Prices(estimates), parts), Scheduler(12, parts)
    for _ in range(1000):
        count = int(rng.integers(1, 13))
        rows = rng.integers(1, int(rng.choice([2, 70])), count)
        is_cached, room = rng.random(count) < 0.5, int(rng.integers(0, 13))
        division = divider(rows, is_cached, room)
        costs = estimates.costs(rows, is_cached)
        np.testing.assert_allclose(division.costs.T / 1e9, costs, atol=1.01e-9)
        expected = scheduler(*(division.costs.T / 1e9), room)
        schedule = division.schedule
        assert (schedule.makespan_s, schedule.bound_s) == (expected.makespan_s, expected.bound_s)
        assert schedule.weights == expected.weights
        np.testing.assert_array_equal(schedule.shares, expected.shares)
        np.testing.assert_array_equal(schedule.order, expected.order)
        planned_s = schedule.seconds(costs, parts, estimates.starts)
        assert division.planned_s == pytest.approx(planned_s, abs=1e-7)
        assert division.alone_s == pytest.approx(costs[0].sum(), abs=1e-7)
        alone = division.alone()
        assert alone.planned_s == alone.schedule.makespan_s == division.alone_s
        assert not alone.schedule.shares.any() and not len(alone.schedule.order)
        certificate_s = estimates.floors.certificate_s(rows, is_cached, schedule.weights)
        assert division.certificate_s == pytest.approx(certificate_s, abs=2e-9)
        assert division.certificate_s <= certificate_s * (1 + 1e-12)
        estimates.cpu.observe(rows, float(rng.uniform(1e-4, 1e-2)))  # prices are those of now
