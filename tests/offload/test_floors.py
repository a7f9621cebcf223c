"""What the least costs ever seen prove, no call falls below."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.offload.estimates import Estimate, Estimates
from edgerun.offload.floors import Busy, Floor
from edgerun.offload.schedule import Scheduler

PARTS = 4
TRUE = np.array([[1e-3, 2e-4], [2e-4, 1e-5], [2.5e-3, 0.0]])  # of an expert, and of a row of it


def test_the_least_counts_and_nothing_is_claimed_of_what_was_never_seen() -> None:
    floor, single_row = Floor(1e-3, 1e-4), np.array([1])
    assert floor.seconds(single_row) == [0.0]
    assert floor.observe(single_row, np.ones(1), 5e-3)
    assert not floor.observe(single_row, np.ones(1), 6e-3)
    assert floor.seconds(single_row) == pytest.approx([5e-3])
    assert not floor.observe(single_row, np.array([0.5]), 2.5e-3 * 1.0001)
    assert floor.observe(single_row, np.array([0.5]), 1e-3)
    assert floor.seconds(single_row) == pytest.approx([2e-3])
    assert floor.seconds(np.array([16])) == [0.0]
    assert not floor.observe(single_row, np.zeros(1), 1e-9)


def test_rows_of_several_kinds_together_never_come_to_more_than_was_seen() -> None:
    rng, floor = np.random.default_rng(0), Floor(1e-3, 1e-4)
    seen = []
    for _ in range(200):
        rows = rng.integers(1, 40, rng.integers(1, 6))
        shares, seconds = rng.uniform(0, 1, len(rows)), float(rng.uniform(1e-3, 1e-2))
        floor.observe(rows, shares, seconds)
        seen.append((rows, shares, seconds))
        for rows, shares, seconds in seen:
            assert (floor.seconds(rows) * shares).sum() <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_call_ends_before_its_certificate_only_if_something_takes_less_than_ever(
    seed: int,
) -> None:
    """Whatever estimates say, and however long anybody waits besides; after a while none does."""
    rng, scheduler = np.random.default_rng(seed), Scheduler(8, PARTS)
    wrong = rng.uniform(1 / 3, 3, 3)
    estimates = Estimates(*(Estimate(*(true * f)) for true, f in zip(TRUE, wrong, strict=True)))
    early, tight, records = [], [], 0
    for _ in range(600):
        rows, is_cached = rng.choice([1, 2, 5], 8), rng.random(8) < 0.6
        schedule = scheduler(*estimates.costs(rows, is_cached))
        certificate = (rows, is_cached, schedule.weights)
        before_s = estimates.floors.certificate_s(*certificate)
        costs = (TRUE[:, :1] + TRUE[:, 1:] * rows) * rng.uniform(1, 1.5, (3, 1))
        costs[2, is_cached] = 0
        shares = schedule.shares / PARTS
        busy = Busy(*(costs * [1 - shares, shares, shares > 0]).sum(axis=1).tolist())
        seconds = max(busy.cpu_s, busy.device_s, busy.upload_s) * rng.uniform(1, 1.1)
        is_least = estimates.floors.observe(rows, shares, is_cached, busy)
        assert seconds >= before_s * (1 - 1e-9) or is_least
        assert seconds >= estimates.floors.certificate_s(*certificate) * (1 - 1e-9)
        for estimate, part, each in ((estimates.cpu, 0, 0), (estimates.device, PARTS, 1)):
            whole = schedule.shares == part
            estimate.observe(rows[whole], float(costs[each, whole].sum()))
        records += is_least
        if rng.random() < 0.1:  # one that nobody waits for
            estimates.observe_upload(float(TRUE[2, 0] * rng.uniform(1, 1.5)))
        early.append(seconds < before_s * (1 - 1e-9))
        tight.append(before_s / seconds)
    assert not any(early[300:])
    assert records < 200
    assert np.median(tight[300:]) > 0.5
