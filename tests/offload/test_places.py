"""Every row goes through each of its experts exactly once, whoever computes it."""

from __future__ import annotations

from itertools import product

import numpy as np

from edgerun.offload.places import NOWHERE, Places, Sorter, one_hot
from edgerun.offload.schedule import Scheduler
from edgerun.ops.experts import OP

CASES = 10_000


def random_routes(rng: np.random.Generator) -> tuple[np.ndarray, int]:  # type: ignore[type-arg]
    rows, experts = rng.integers(1, 12), rng.integers(1, 17)
    share = rng.random()
    routes = rng.uniform(0.1, 1, (rows, experts)) * (rng.random((rows, experts)) < share)
    return routes.astype(np.float32), int(rng.integers(1, experts + 1))


def test_every_expert_is_computed_once_for_every_row_that_goes_to_it() -> None:
    """Over random routers, caches, costs and batches; with a result that tells who made it."""
    rng = np.random.default_rng(1)
    schedulers = {parts: Scheduler(16, parts) for parts in (1, 4)}
    sorters = {sizes: Sorter(12, *sizes) for sizes in product(range(1, 17), repeat=2)}
    for turn in range(CASES):
        routes, top_k = random_routes(rng)
        places = sorters[routes.shape[1], top_k](routes)
        top_routes = routes * (np.cumsum(routes != 0, axis=1) <= top_k)
        assert sorted(zip(places.rows, places.experts, strict=True)) == sorted(
            map(tuple, np.argwhere(top_routes))
        )
        assert (np.bincount(places.experts, minlength=16)[places.active] == places.counts).all()
        if not len(places.active):
            assert not places.sum(np.zeros((0, 3), np.float32)).any()
            continue
        largest = np.where(top_routes != 0, top_routes, -1).max(axis=0)[places.active]
        assert places.scores() == tuple(largest.tolist())
        chosen = places.active[turn % 3 :: 3]
        assert (places.select(chosen) == np.flatnonzero(np.isin(places.experts, chosen))).all()
        assert places.counts_of(chosen) == places.counts[turn % 3 :: 3]
        costs = rng.uniform(1e-6, 1e-3, (3, len(places.active)))
        costs[2, rng.random(len(places.active)) < 0.5] = 0
        schedule = schedulers[1 + 3 * (turn % 2)](*costs, int(rng.integers(0, 17)))
        shares = schedule.shares / (1 + 3 * (turn % 2))
        device = shares[np.searchsorted(places.active, places.experts)]
        outputs = np.zeros((len(places.rows), 1), np.float32)
        for computed in (device, 1 - device):  # each side what is its own
            outputs[:, 0] += computed * (places.experts + 1)
        expected = (top_routes * (np.arange(routes.shape[1]) + 1)).sum(axis=1)
        np.testing.assert_allclose(places.sum(outputs)[:, 0], expected, rtol=1e-5)


def test_the_sum_is_that_of_the_op() -> None:
    """Bit for bit, however places are divided: the op itself computes them one at a time."""
    for example in OP.examples():
        inputs, attributes = example.inputs, example.attributes
        routes = np.asarray(inputs["routes"])
        places = Places.of(routes, attributes["top_k"])
        x = np.asarray(inputs["x"])[places.rows]
        stacks = {name: given for name, given in inputs.items() if name not in ("x", "routes")}
        alone = {**attributes, "top_k": 1}
        outputs = np.zeros_like(x)
        for half in (places.experts % 2 == 0, places.experts % 2 == 1):
            hot = one_hot(places.experts[half], routes.shape[1])
            outputs[half] = OP.define(x=x[half], routes=hot, **stacks, **alone)
        np.testing.assert_array_equal(places.sum(outputs), OP.define(**inputs, **attributes))


def test_routes_may_lie_in_wider_rows_or_far_apart() -> None:
    routes = np.zeros((2, 8), np.float32)
    routes[0, [1, 4]], routes[1, 2] = 0.5, 0.25
    for each in (routes[:, :5], np.asfortranarray(routes)[:, :5]):
        places = Places.of(each, 2)
        assert (places.active, places.counts) == ([1, 2, 4], [1, 1, 1])
        assert places.of_row.tolist() == [[0, 2], [1, NOWHERE]]


def test_places_of_rows_without_experts_are_nowhere() -> None:
    places = Places.of(np.float32([[0, 0.5, 0.5], [0, 0, 0], [1, 1, 1]]), 2)
    assert places.of_row.tolist() == [[1, 3], [NOWHERE, NOWHERE], [0, 2]]
    assert places.weights.tolist() == [1, 0.5, 1, 0.5]
