"""Cases of the kernels that sort rows by experts, ask for these, and add up what they made."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
from tests.conformance.kernels.harness import (
    ISAS,
    UNTOUCHED,
    Call,
    cases_of,
    float_lanes,
    random,
    untouched,
)


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
    routes = np.full((rows, experts + 3), np.nan, np.float32)
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
