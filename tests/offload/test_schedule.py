"""Divided layers against what can be tried out, what cannot be beaten, and what others do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.errors import InputError
from edgerun.offload.schedule import (
    MAX_EXPERTS,
    NANOSECONDS,
    WEIGHT_SUM,
    Schedule,
    Scheduler,
    Starts,
    bound,
    divide,
    makespan,
)

I64 = NDArray[np.int64]


def instance(rng: np.random.Generator, experts: int) -> I64:
    """Costs of experts with unlike rows: a constant for the weights, or so much a row."""
    rows = rng.geometric(1 / rng.uniform(1, 20), experts)
    weights, row = rng.uniform(10, 1000, 3), rng.uniform(1, 300, 2)
    costs = np.stack(
        [
            np.maximum(weights[0], row[0] * rows),
            np.maximum(weights[1] / 5, row[1] / 10 * rows),
            np.full(experts, weights[2] * rng.uniform(0.2, 5)),
        ],
        axis=1,
    )
    costs[rng.random(experts) < rng.random(), 2] = 0
    return np.ceil(costs).astype(np.int64)


def any_instance(rng: np.random.Generator, experts: int) -> I64:
    """Costs that have nothing to do with each other."""
    costs = rng.integers(1, 10 ** rng.integers(1, 7), (experts, 3))
    costs[rng.random(experts) < rng.random(), 2] = 0
    return costs


def alike(rng: np.random.Generator, experts: int) -> I64:
    """What one row needs: all experts cost the same."""
    costs = np.tile(rng.integers(1, 1000, 3), (experts, 1))
    costs[: rng.integers(0, experts + 1), 2] = 0
    return costs


def scheduled(costs: I64, parts: int = 1, room: int = MAX_EXPERTS) -> Schedule:
    return Scheduler(len(costs), parts)(*(costs.T / NANOSECONDS), room)


def ends(schedule: Schedule, parts: int = 1) -> int:
    """When it is done, in nanoseconds times parts."""
    return round(schedule.makespan_s * parts * NANOSECONDS)


def shortest(costs: I64) -> int:
    """The best of all schedules of whole experts, all subsets of them tried.

    Uploads are in the order that is best for a set (Johnson 1954, two machines in a row).
    """
    _, device, upload = costs.T
    order = sorted(
        range(len(costs)),
        key=lambda e: (0, upload[e]) if upload[e] <= device[e] else (1, -device[e]),
    )
    chosen = np.arange(1 << len(costs))[:, None] >> np.arange(len(costs)) & 1
    cpu = ((1 - chosen) * costs[:, 0]).sum(axis=1)
    link = np.zeros(len(chosen), np.int64)
    done = (chosen * np.where(upload == 0, device, 0)).sum(axis=1)
    for expert in order:
        if upload[expert]:
            taken = chosen[:, expert] == 1
            link[taken] += upload[expert]
            done[taken] = np.maximum(done, link)[taken] + device[expert]
    return int(np.maximum(cpu, done).min())


def largest_bound(costs: I64) -> float:
    """The optimum of the dual: the best corner of all its straight pieces."""
    cpu, device, upload = costs.T.astype(float)
    lines = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (1.0, 1.0, 1.0)]
    lines += [(c + g, c + t, c) for c, g, t in zip(cpu, device, upload, strict=True)]
    best = 0.0
    for (a, b, e), (c, d, f) in itertools.combinations(lines, 2):
        if abs(det := a * d - b * c) > 1e-12 * max(abs(a * d), abs(b * c), 1e-300):
            p, q = (e * d - b * f) / det, (a * f - e * c) / det
            if min(p, q, 1 - p - q) >= -1e-12:
                best = max(best, np.minimum((1 - p - q) * cpu, p * device + q * upload).sum())
    return best


@pytest.mark.parametrize("make", [instance, any_instance, alike])
def test_compiled_and_plain_divisions_end_together(make: object) -> None:
    assert callable(make)
    rng = np.random.default_rng(1)
    for turn in range(150):
        costs, parts = make(rng, rng.integers(1, 8)), [1, 2, 3, 5][turn % 4]
        room = int(rng.integers(0, len(costs) + 1))
        schedule = scheduled(costs, parts, room)
        assert ends(schedule, parts) == divide(costs, room, parts)[2]
        assert ends(schedule, parts) == makespan(costs, schedule.shares, schedule.order, parts)
        assert sorted(schedule.order) == np.flatnonzero(schedule.shares).tolist()
        assert ((schedule.shares >= 0) & (schedule.shares <= parts)).all()
        assert np.count_nonzero(schedule.shares[costs[:, 2] > 0]) <= room


@pytest.mark.parametrize("make", [instance, any_instance, alike])
def test_no_schedule_ends_before_the_bound_nor_before_the_best_of_all(make: object) -> None:
    assert callable(make)
    rng = np.random.default_rng(2)
    for _ in range(150):
        costs = make(rng, rng.integers(1, 13))
        schedule, best = scheduled(costs), shortest(costs)
        assert bound(costs, schedule.weights) <= best * WEIGHT_SUM
        assert best <= ends(schedule)
        for parts in (2, 16):
            cut = scheduled(costs, parts)
            assert bound(costs, cut.weights) * parts <= ends(cut, parts) * WEIGHT_SUM


def test_one_row_is_divided_as_well_as_can_be() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        costs = alike(rng, rng.integers(1, 13))
        assert ends(scheduled(costs)) == shortest(costs)


@pytest.mark.parametrize("make", [instance, any_instance, alike])
def test_the_bound_is_the_largest_of_its_kind(make: object) -> None:
    assert callable(make)
    rng = np.random.default_rng(4)
    for _ in range(60):
        costs = make(rng, rng.integers(1, 13))
        schedule = scheduled(costs)
        lower_bound, best = bound(costs, schedule.weights) / WEIGHT_SUM, largest_bound(costs)
        slack = costs.sum() / WEIGHT_SUM  # weights are rounded
        assert best * (1 - 1e-9) - slack <= lower_bound <= best * (1 + 1e-9)
        assert schedule.bound_s == pytest.approx(lower_bound / NANOSECONDS)


def test_parts_come_closer_to_the_bound() -> None:
    rng = np.random.default_rng(5)
    for _ in range(100):
        costs = instance(rng, rng.integers(1, 30))
        times = [scheduled(costs, parts).makespan_s for parts in (1, 2, 4, 16)]
        assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("parts", [1, 8])
def test_sides_that_begin_late_end_later(parts: int) -> None:
    rng = np.random.default_rng(9)
    for _ in range(200):
        costs, starts = instance(rng, 6), Starts(*rng.integers(0, 1500, 3) / NANOSECONDS)
        schedule, link_s, device_s = scheduled(costs, parts), starts.upload_s, starts.device_s
        seconds = costs / NANOSECONDS
        for expert in schedule.order:
            share = schedule.shares[expert] / parts
            link_s += share * seconds[expert, 2]
            begin_s = max(device_s, link_s) if costs[expert, 2] else device_s
            device_s = begin_s + share * seconds[expert, 1]
        cpu_s = float(seconds[:, 0] @ (1 - schedule.shares / parts))
        late_s = max(cpu_s + starts.cpu_s, device_s) if len(schedule.order) else cpu_s
        assert schedule.seconds(seconds.T, parts, starts) == pytest.approx(late_s)
        assert schedule.seconds(seconds.T, parts, Starts(0, 0, 0)) == pytest.approx(
            schedule.makespan_s
        )


def test_many_experts() -> None:
    costs = instance(np.random.default_rng(6), MAX_EXPERTS)
    schedule = scheduled(costs, 16)
    assert schedule.bound_s <= schedule.makespan_s <= 1.05 * schedule.bound_s


def test_what_is_no_schedule_is_refused() -> None:
    for experts, parts in ((0, 1), (MAX_EXPERTS + 1, 1), (4, 0), (4, 65)):
        with pytest.raises(InputError, match=f"a schedule of {experts} experts in {parts} parts"):
            Scheduler(experts, parts)
    scheduler = Scheduler(2)
    for costs in ([[1] * 3] * 3, [[]] * 3, [[1], [1], [1, 1]], [[[1]]] * 3):
        with pytest.raises(InputError, match="expected one a resource for each of 1 to 2 experts"):
            scheduler(*costs)
    for wrong in (-1.0, np.nan, np.inf, 3.0):
        with pytest.raises(InputError, match="expected times from 0 to 2.147"):
            scheduler([1, 1], [1, wrong], [1, 1])
