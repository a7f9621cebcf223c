"""Costs that were assumed wrongly become those that are seen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from edgerun.offload.estimates import Estimate, Estimates
from edgerun.offload.schedule import NANOSECONDS, Scheduler, makespan

LAYERS = 4


def test_an_estimate_learns_each_number_of_rows() -> None:
    estimate = Estimate(1e-3, 1e-4)
    for _ in range(60):
        estimate.observe(np.array([1]), 5e-3)
        estimate.observe(np.array([16, 16]), 8e-3)
    assert estimate.seconds(np.array([1, 2, 16])) == pytest.approx([5e-3, 5.45e-3, 4e-3], rel=0.02)
    assert estimate.seconds(np.array([1000]))[0] == pytest.approx(4e-3 / 2.6e-3 * 101e-3, rel=0.02)


def test_a_single_pause_does_not_count_for_much() -> None:
    estimate = Estimate(1e-3)
    estimate.observe(np.array([1]), 10.0)
    assert estimate.seconds(np.array([1]))[0] < 1.25e-3


@pytest.mark.parametrize("seconds", [0.0, -1.0, np.nan])
def test_what_is_no_time_is_not_learned(seconds: float) -> None:
    estimate = Estimate(1e-3)
    estimate.observe(np.array([1]), seconds)
    estimate.observe(np.array([], np.int64), 1.0)
    assert estimate.seconds(np.array([1])) == [1e-3]


@pytest.mark.parametrize(
    "wrong",
    [*itertools.product([1 / 3, 1.0, 3.0], repeat=3)],
    ids=lambda w: "-".join(f"{f:.1f}" for f in w),
)
def test_a_profile_wrong_by_three_recovers_in_fifty_tokens(wrong: tuple[float, ...]) -> None:
    """Layers then take no longer than with the right one, to 3%.

    As in the executor an expert is uploaded now and then that nobody waits for, so that the link
    is seen even where the schedule has no use for it.
    """
    true = np.array([1e-3, 2e-4, 2.5e-3])
    estimates = Estimates(*(Estimate(float(each)) for each in true * wrong))
    scheduler, rng = Scheduler(8), np.random.default_rng(7)
    single_row, ratios = np.ones(1, np.int64), []
    for _token in range(70):
        for _ in range(LAYERS):
            is_cached = rng.random(8) < 0.6
            noise = rng.uniform(0.95, 1.05, 3)
            rows = np.ones(8, np.int64)
            schedule = scheduler(*estimates.costs(rows, is_cached))
            costs = np.tile(true, (8, 1))
            costs[is_cached, 2] = 0
            best = scheduler(*costs.T).makespan_s * NANOSECONDS
            exact = np.ceil(costs * NANOSECONDS).astype(np.int64)
            ratios.append(makespan(exact, schedule.shares, schedule.order.tolist(), 1) / best)
            here, there = schedule.shares == 0, schedule.shares == 1
            estimates.cpu.observe(rows[here], noise[0] * true[0] * here.sum())
            estimates.device.observe(rows[there], noise[1] * true[1] * there.sum())
            for _ in range(np.count_nonzero(there & ~is_cached)):
                estimates.upload.observe(single_row, noise[2] * true[2])
        estimates.upload.observe(single_row, true[2])
    assert np.mean(ratios[-20 * LAYERS :]) <= 1.03
