"""What gates guess that a layer will need, beside what its router chooses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgerun.backends.cpu.experts.gate import Gate, gate_of
from edgerun.backends.cpu.weights import WeightStore
from edgerun.kernels.isa import selected_isa
from edgerun.model.bundle import open_bundle
from edgerun.ops.registry import OPS
from edgerun.ops.route import Groups
from tests.support.bundles import bundle_of


def test_a_gate_guesses_what_its_router_would_choose() -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((2, 9, 16)).astype(np.float32)
    norms = rng.uniform(0.5, 2, (2, 12)).astype(np.float32)
    bias, row = rng.standard_normal((2, 12)).astype(np.float32)
    bias = bias[:9]
    here, there = (
        Gate(weight, bias if number else None, norm, 3)
        for number, (weight, norm) in enumerate(zip(weights, norms, strict=True))
    )
    logits = weights[1, :, :12] @ (row * norms[1]) + bias
    guess = there.guess(row * norms[0], here)
    assert guess == np.argsort(-logits, kind="stable")[:3].tolist()


def test_a_gate_heeds_what_is_added_to_scores_for_the_choice() -> None:
    weight, row = np.eye(4, dtype=np.float32), np.array([9, 8, 1, 0], np.float32)
    bias = np.array([0, 0, 0.5, 1], np.float32)  # all sigmoids lie between 0.5 and 1
    gates = [Gate(weight, None, None, 3, "sigmoid", each) for each in (bias, None)]
    assert [gate.guess(row, gate) for gate in gates] == [[3, 2, 0], [0, 1, 2]]


def test_a_gate_heeds_groups_that_are_chosen_first() -> None:
    weight, row = np.eye(6, dtype=np.float32), np.array([9, 1, 6, 5, 2, 8], np.float32)
    gates = [Gate(weight, None, None, 3, groups=Groups(3, 2, best)) for best in (1, 2)]
    assert [gate.guess(row, gate) for gate in gates] == [[0, 5, 4], [0, 2, 3]]


@pytest.mark.parametrize("name", ["olmoe", "gpt_oss", "lfm2_moe", "kolibri1", "deepseek_v3-groups"])
def test_gates_of_a_model_guess_of_their_own_input_what_its_routers_choose(name: str) -> None:
    graph = open_bundle(bundle_of(name, weights="fp32")).graph
    store = WeightStore(selected_isa())
    binder: Any = SimpleNamespace(graph=graph, producers=graph.producers(), weights=store)
    for node in graph.nodes:
        if node.op != "experts":
            continue
        gate = gate_of(binder, node)
        route = binder.producers[node.inputs[1]]
        assert gate is not None
        x = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
        constants = [graph.array(each) for each in binder.producers[route.inputs[0]].inputs[1:]]
        logits = x @ constants[0].T + sum(constants[1:])
        biases = [graph.array(each) for each in route.inputs[1:]]
        routes = OPS["route"].define(logits, *biases, **route.attrs)
        for row, weights in zip(x, routes, strict=True):
            assert {*gate.guess(row, gate)} == {*np.flatnonzero(weights)}
        binder.producers[node.inputs[1]] = route.replace(op="add")  # nothing that chooses
        assert gate_of(binder, node) is None


def test_a_norm_that_is_zero_somewhere_does_not_matter() -> None:
    weight, row = np.eye(4, dtype=np.float32), np.array([1, 3, 2, 0], np.float32)
    norms = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.float32)
    here, there = (Gate(weight, None, norm, 2) for norm in norms)
    assert there.guess(row, here) == [1, 2]
