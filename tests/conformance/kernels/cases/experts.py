"""Cases of the kernels that choose experts, sort rows by them, and add up what they made."""

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
from edgerun.kernels.run.parts import PART_WORDS
from edgerun.kernels.run.residency import (
    ABORT,
    BELL,
    CONTROL_WORDS,
    COUNT,
    DONE,
    EXPERTS,
    FORESEES,
    HAS_INPUT,
    HITS,
    LOCK,
    LOG,
    MISSES,
    POSTED,
    SEQUENCE,
)
from edgerun.offload.schedule import NANOSECONDS, Schedule, Starts, bound, divide, makespan
from edgerun.ops.registry import OPS
from tests.conformance.kernels.harness import (
    ISAS,
    UNTOUCHED,
    Call,
    assert_near,
    cases_of,
    float_lanes,
    random,
    untouched,
)

NAN, INFINITY = np.nan, np.inf


@cases_of(
    "route",
    scoring=["softmax", "sigmoid"],
    shape=[(3, 8, 2), (1, 128, 8), (4, 5, 5), (2, 1, 1), (20, 70, 6)],
    normalise=[0, 1],
    biased=["", "scores", "logits"],
)
def route(scoring: str, shape: tuple[int, int, int], normalise: int, biased: str) -> Call:
    rows, experts, top_k = shape
    x, out = random((rows, experts), gap=2), untouched((rows, experts + 3))
    x[-1, : experts // 2] = x[-1, 0]
    if rows > 2:
        x[1, experts // 2] = -INFINITY
    bias = random((experts,)) if biased else None
    if bias is not None:
        bias[: experts // 2] = bias[0]
    given = {"top_k": top_k, "normalise": normalise, **scored(scoring, biased), **grouping(1, 1, 1)}
    expected = OPS["route"].define(x[:, :experts], bias, **given, epsilon=0.25, scale=2.5)

    def check() -> None:
        assert_near(out[:, :experts], expected, 1e-6)
        np.testing.assert_array_equal(out[:, :experts] != 0, expected != 0)
        assert (out[:, experts:] == UNTOUCHED).all()

    fields = {"x": x, "x_stride": experts + 2, "out": out, "out_stride": experts + 3}
    fields |= {"scale": np.float32([2.5]), "epsilon": np.float32([0.25]), "experts": experts}
    fields |= {"bias": 0 if bias is None else bias, "top_k": top_k, "normalise": normalise}
    params = {"scoring": scoring, "biased": biased, "grouped": False}
    return Call(params, fields | grouping(1, 1, 1), rows, check)


def scored(scoring: str, biased: str) -> dict[str, str]:
    return {"scoring": scoring, "biased": biased or "scores"}


def grouping(*numbers: int) -> dict[str, int]:
    """Attributes that say of how many groups how many are chosen, and by how many experts."""
    return dict(zip(("groups", "top_groups", "group_top_k"), numbers, strict=True))


@cases_of(
    "route",
    scoring=["softmax", "sigmoid"],
    shape=[
        *((3, 8, 2, (4, 2, 1)), (40, 24, 4, (6, 2, 2)), (2, 256, 8, (8, 4, 2))),
        *((2, 6, 2, (6, 2, 1)), (3, 30, 30, (2, 2, 2))),
    ],
    biased=["", "scores", "logits"],
)
def route_in_groups(
    scoring: str, shape: tuple[int, int, int, tuple[int, ...]], biased: str
) -> Call:
    """Most experts and groups are as good as another."""
    (rows, experts, top_k, groups), rng = shape, np.random.default_rng(shape[:2])
    x = rng.choice(np.float32([-1, 0, 0.7, 1.9]), (rows, experts))
    x[0, ::2] = -INFINITY
    bias = rng.choice(np.float32([-2, 0, 0.4]), experts) if biased else None
    out, numbers = untouched((rows, experts + 3)), grouping(*groups)
    given = {"top_k": top_k, "normalise": 1, **scored(scoring, biased), **numbers}
    expected = OPS["route"].define(x, bias, **given, epsilon=0.25, scale=2.5)

    def check() -> None:
        assert_near(out[:, :experts], expected, 1e-6)
        np.testing.assert_array_equal(out[:, :experts] != 0, expected != 0)
        assert (out[:, experts:] == UNTOUCHED).all()

    fields = {"x": x, "x_stride": experts, "out": out, "out_stride": experts + 3}
    fields |= {"scale": np.float32([2.5]), "epsilon": np.float32([0.25]), "experts": experts}
    fields |= {"bias": 0 if bias is None else bias, "top_k": top_k, "normalise": 1, **numbers}
    return Call({"scoring": scoring, "biased": biased, "grouped": True}, fields, rows, check)


@cases_of(
    "route",
    scoring=["softmax", "sigmoid"],
    wrong=[
        (NAN, 1, 2, 3),
        (NAN, NAN, NAN, NAN),
        (INFINITY, 1, 2, 3),
        (INFINITY, INFINITY, -INFINITY, NAN),
        (-INFINITY, -INFINITY, -INFINITY, -INFINITY),
        (-INFINITY, NAN, 5, 5),
        (INFINITY, -INFINITY, 1, 2),
    ],
    biased=["", "scores", "logits"],
    groups=[(1, 1, 1), (2, 1, 1), (2, 1, 2)],
)
def route_of_no_numbers(
    scoring: str, wrong: tuple[float, ...], biased: str, groups: tuple[int, ...]
) -> Call:
    x, out = np.float32([wrong]), untouched((1, 4))
    bias = np.float32([-2, 1, 0, 3]) if biased else None
    given = {"top_k": 2, "normalise": 0, "epsilon": 0.0, "scale": 1.0, **scored(scoring, biased)}
    expected = OPS["route"].define(x, bias, **given, **grouping(*groups))

    def check() -> None:
        np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-30)

    fields = {"x": x, "x_stride": 4, "out": out, "out_stride": 4, "experts": 4, "top_k": 2}
    fields |= {"scale": np.ones(1, np.float32), "epsilon": np.zeros(1, np.float32)}
    fields |= {"bias": 0 if bias is None else bias, "normalise": 0, **grouping(*groups)}
    params = {"scoring": scoring, "biased": biased, "grouped": groups[0] > 1}
    return Call(params, fields, 1, check)


@cases_of(
    "sparse_mixer",
    shape=[(3, 16, 2), (1, 70, 3), (4, 2, 2), (20, 5, 1)],
    margin=[0.02, 0.5, 1.5],
)
def sparse_mixer(shape: tuple[int, int, int], margin: float) -> Call:
    """Some rows have logits below 0 alone, zeros, or such that are no numbers."""
    rows, experts, top_k = shape
    x, out = random((rows, experts), gap=2), untouched((rows, experts + 3))
    x[0] -= 4
    if rows > 2:
        x[1], x[2, 0] = 0, -INFINITY
    if rows > 3:
        x[3, 1] = NAN
    if rows > 4:
        x[4, 1] = INFINITY
    given = {"normalise": 0, "epsilon": 0.0, "scale": 2.5, "top_k": top_k, "margin": margin}
    given |= scored("sparse_mixer", "") | grouping(1, 1, 1)
    expected = OPS["route"].define(x[:, :experts], **given)

    def check() -> None:
        np.testing.assert_allclose(out[:, :experts], expected, rtol=2e-6, atol=1e-30)
        assert (out[:, experts:] == UNTOUCHED).all()

    fields = {"x": x, "x_stride": experts + 2, "out": out, "out_stride": experts + 3}
    fields |= {"scale": np.float32([2.5]), "margin": np.float32([margin])}
    return Call({}, fields | {"experts": experts, "top_k": top_k}, rows, check)


def chosen(rows: int, experts: int, share: float) -> NDArray[np.float32]:
    """Routes of which some are not 0."""
    rng = np.random.default_rng([rows, experts])
    weights = rng.uniform(0.1, 1, (rows, experts)) * (rng.random((rows, experts)) < share)
    return weights.astype(np.float32)


def places_of(routes: NDArray[np.float32], top_k: int) -> list[tuple[int, int]]:
    """Row and expert of each place."""
    chosen = [(row, e) for row, line in enumerate(routes) for e in np.flatnonzero(line)[:top_k]]
    return sorted(chosen, key=lambda pair: (pair[1], pair[0]))


@cases_of("expert_plan", shape=[(1, 8, 3, 0.5), (20, 5, 2, 0.3), (3, 70, 70, 1.0), (4, 6, 2, 0.0)])
def expert_plan(shape: tuple[int, int, int, float]) -> Call:
    rows, experts, top_k, share = shape
    routes = np.full((rows, experts + 3), NAN, np.float32)
    routes[:, :experts] = chosen(rows, experts, share)
    parts = untouched((1 + experts * PART_WORDS,), np.int64)
    weights, places = untouched((rows * top_k,)), untouched((rows, top_k), np.int32)

    def check() -> None:
        expected = places_of(routes[:, :experts], top_k)
        active = sorted({expert for _, expert in expected})
        assert parts[0] == len(active)
        for part, expert in zip(parts[1:].reshape(-1, PART_WORDS), active, strict=False):
            belongs = [place for place, (_, e) in enumerate(expected) if e == expert]
            assert part.tolist() == [expert, belongs[0], len(belongs)]
        for place, (row, expert) in enumerate(expected):
            assert weights[place] == routes[row, expert]
            assert place in places[row]
        for row, line in enumerate(places):
            own = [place for place, (r, _) in enumerate(expected) if r == row]
            assert line.tolist() == own + [-1] * (top_k - len(own))

    fields = {"routes": routes, "stride": experts + 3, "experts": experts, "top_k": top_k}
    fields |= {"parts": parts, "first": untouched((experts,), np.int64)}
    fields |= {"weights": weights, "places": places}
    return Call({}, fields, rows, check, 1)


@cases_of(
    "expert_fetch",
    missing=[(), (1, 4), (0, 1, 2, 3, 4, 5)],
    first=[0, 2, 4],
    aborted=[0, 1],
    foresees=[0, 1],
    rows=[1, 3],
)
def expert_fetch(
    missing: tuple[int, ...], first: int, aborted: int, foresees: int, rows: int
) -> Call:
    """Six experts, all but the fourth of which have places."""
    counts = [2, 1, 3, 0, 1, 2]
    active = [expert for expert, count in enumerate(counts) if count]
    starts = np.cumsum([0, *counts])
    parts = untouched((1 + 6 * PART_WORDS,), np.int64)
    parts[: 1 + len(active) * PART_WORDS] = [
        len(active),
        *(word for e in active for word in (e, starts[e], counts[e])),
    ]
    before = parts.copy()
    table = np.array([0 if expert in missing else 64 for expert in range(6)], np.int64)
    control, post = np.zeros(CONTROL_WORDS, np.int64), untouched((EXPERTS + 6,), np.int64)
    post[:EXPERTS], control[ABORT], control[POSTED], control[BELL] = 5, aborted, 41, -1
    control[FORESEES] = foresees
    weights, scores = random((9,)), untouched((6,))
    x, taken = random((rows, 7), gap=2), untouched((7,))

    def check() -> None:
        posts, shown = not (first or aborted), parts[1:].reshape(-1, PART_WORDS)
        assert control[LOCK] == 0
        assert control[POSTED] == 41 + posts
        if not posts:
            np.testing.assert_array_equal(parts, before)
            assert post[SEQUENCE] == 5 and post[DONE] == (5 if aborted else first)
            return
        assert control[LOG + 42] == 3 and post[SEQUENCE] == 42 and post[DONE] == 0
        present = [expert for expert in active if expert not in missing]
        assert post[HITS] == 5 + len(present) and post[MISSES] == 5 + len(active) - len(present)
        numbers = post[EXPERTS : EXPERTS + post[COUNT]].tolist()
        assert sorted(numbers[: len(present)]) == present
        assert numbers[len(present) :] == [expert for expert in active if expert in missing]
        for place, expert in enumerate(numbers):
            assert shown[place].tolist() == [expert, starts[expert], counts[expert]]
            own = slice(starts[expert], starts[expert + 1])
            assert abs(scores[place] - weights[own].sum()) < 1e-5
        assert bool(post[HAS_INPUT]) == (foresees and rows == 1)
        np.testing.assert_array_equal(taken, x[0, :7] if post[HAS_INPUT] else untouched((7,)))

    fields = {"parts": parts, "table": table, "weights": weights, "places": 9, "post": post}
    fields |= {"control": control, "scores": scores}
    fields |= {"layer": 3, "first": first, "experts": 6}
    fields |= {"x": x, "x_stride": x.strides[0] // 4, "width": 7, "input": taken}
    return Call({}, fields, rows, check, 1)


def spread(rows: int, top_k: int) -> NDArray[np.int32]:
    """Places of rows in any order; the last row has one place less."""
    order = np.random.default_rng([rows, top_k]).permutation(rows * top_k).astype(np.int32)
    places = np.sort(order.reshape(rows, top_k), axis=1)
    places[-1, -1] = -1
    return places


@cases_of("expert_rows", shape=[(1, 2, 7), (5, 3, 64)])
def expert_rows(shape: tuple[int, int, int]) -> Call:
    rows, top_k, width = shape
    x, out = random((rows, width), gap=2), untouched((rows * top_k, width + 1))
    places = spread(rows, top_k)

    def check() -> None:
        expected = untouched((rows * top_k, width + 1))
        for row, line in enumerate(places):
            expected[line[line >= 0], :width] = x[row, :width]
        np.testing.assert_array_equal(out, expected)

    fields = {"places": places, "top_k": top_k, "x": x, "x_stride": width + 2}
    fields |= {"spread": out, "spread_stride": width + 1, "width": width}
    return Call({}, fields, rows, check)


@cases_of("expert_sum", isa=ISAS, shape=[(1, 2, 7), (5, 3, 64), (2, 1, 130)])
def expert_sum(isa: str, shape: tuple[int, int, int]) -> Call:
    rows, top_k, width = shape
    x, out = random((rows * top_k, width), gap=2), untouched((rows, width + 3))
    weights, places = random((rows * top_k,), 3), spread(rows, top_k)

    def check() -> None:
        expected = np.zeros((rows, width), np.float32)
        for row, line in enumerate(places):
            for place in line[line >= 0]:
                expected[row] += x[place, :width] * weights[place]
        np.testing.assert_array_equal(out[:, :width], expected)
        assert (out[:, width:] == UNTOUCHED).all()

    fields = {"places": places, "weights": weights, "top_k": top_k, "results": x}
    fields |= {"results_stride": width + 2, "out": out, "out_stride": width + 3, "width": width}
    return Call({"lanes": float_lanes(isa)}, fields, rows, check)


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
