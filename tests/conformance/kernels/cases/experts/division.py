"""Cases of the kernels that divide a layer between processor and device."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.kernels.experts.division import (
    ALONE,
    BOUND,
    CERTIFICATE,
    CPU_WEIGHT,
    DIVISION_WORDS,
    KINDS,
    LINK_WEIGHT,
    MAKESPAN,
    MAX_COST,
    OTHER_PRICES,
    PLANNED,
    PRICES,
    RESULT_WORDS,
    WEIGHT_SUM,
)
from edgerun.offload.schedule import NANOSECONDS, Schedule, Starts, bound, divide, makespan
from tests.conformance.kernels.harness import (
    Call,
    cases_of,
    untouched,
)


@cases_of(
    "expert_schedule",
    shape=[(1, 0, 1), (1, 1, 4), (6, 3, 1), (6, 0, 3), (5, 5, 4), (9, 4, 2)],
    room=[0, 1, 9],
    largest=[50, (1 << 31) - 1],
)
def expert_schedule(shape: tuple[int, int, int], room: int, largest: int) -> Call:
    experts, cached, parts = shape
    costs = np.random.default_rng([experts, cached]).integers(1, largest, (experts, 3))
    costs[:cached, 2] = 0
    room = min(room, experts)
    order, shares = (untouched((experts,), np.int64) for _ in range(2))
    result = untouched((RESULT_WORDS,), np.int64)

    def check() -> None:
        weights = result[CPU_WEIGHT : LINK_WEIGHT + 1].tolist()
        assert result[MAKESPAN] == divide(costs, room, parts)[2]
        assert result[MAKESPAN] == makespan(costs, shares, order.tolist(), parts)
        assert sorted(order) == list(range(experts)) and sum(weights) == WEIGHT_SUM
        assert min(weights) >= 0
        assert result[BOUND] == bound(costs, weights)
        assert bound(costs, weights) * parts <= int(result[MAKESPAN]) * WEIGHT_SUM

    fields = {"experts": experts, "room": room, "parts": parts, "costs": costs, "order": order}
    return Call({}, fields | {"shares": shares, "result": result}, 0, check, 1)


@cases_of(
    "expert_division",
    shape=[(1, 0, 1), (1, 1, 4), (6, 3, 1), (6, 0, 3), (5, 5, 4), (9, 4, 2)],
    room=[0, 9],
    largest=[50.0, 1e12],
)
def expert_division(shape: tuple[int, int, int], room: int, largest: float) -> Call:
    experts, count, parts = shape
    rng = np.random.default_rng([experts, count])
    rows, cached = rng.integers(1, 70, experts), (np.arange(experts) < count).astype(np.int64)
    prices = rng.uniform(1, largest, (KINDS, PRICES))
    others = rng.uniform(1, largest, OTHER_PRICES)
    costs = untouched((experts, 3), np.int64)
    order, shares = (untouched((experts,), np.int64) for _ in range(2))
    result, room = untouched((DIVISION_WORDS,), np.int64), min(room, experts)

    def priced(first: int) -> NDArray[np.float64]:
        fixed, row = prices[np.frexp(rows - 0.5)[1], first : first + 2].T
        return fixed + row * rows  # type: ignore[no-any-return]

    def check() -> None:
        expected = np.stack([priced(0), priced(2), np.full(experts, others[0])], axis=1)
        whole = np.floor(np.clip(expected, 1, MAX_COST) + 0.5).astype(np.int64)
        whole[:count, 2] = 0
        np.testing.assert_array_equal(costs, whole)
        assert result[MAKESPAN] == divide(costs, room, parts)[2]
        weights = result[CPU_WEIGHT : LINK_WEIGHT + 1]
        assert result[BOUND] == bound(costs, weights.tolist())
        schedule = Schedule(shares, order[shares[order] > 0], 0.0, 0.0, ())
        starts = Starts(*(others[2:] / NANOSECONDS).tolist())
        seconds = schedule.seconds(list(costs.T / NANOSECONDS), parts, starts)
        assert result[PLANNED] == pytest.approx(seconds * NANOSECONDS, rel=1e-9, abs=1)
        assert result[ALONE] == costs[:, 0].sum()
        elsewhere = weights[1] * priced(6) + weights[2] * others[1] * (cached == 0)
        least = np.minimum(weights[0] * priced(4), elsewhere).sum() / WEIGHT_SUM
        assert result[CERTIFICATE] == pytest.approx(least, rel=1e-9, abs=1)
        assert result[CERTIFICATE] <= least * (1 + 1e-12)

    fields = {"experts": experts, "room": room, "parts": parts, "rows": rows, "cached": cached}
    fields |= {"prices": prices, "others": others, "costs": costs, "order": order}
    return Call({}, fields | {"shares": shares, "result": result}, 0, check, 1)
