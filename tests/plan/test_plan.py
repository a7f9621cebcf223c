"""The planner: cheapest placement, charge for changes, reasons for what is turned down."""

import itertools

import numpy as np
import pytest

from edgerun.backends.base import (
    NO_VALUES,
    Backend,
    CompileOptions,
    Executable,
    Phase,
    Support,
    buckets,
)
from edgerun.errors import UnsupportedError
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.plan.planner import make_plan
from edgerun.plan.programs import compile_plan
from edgerun.plan.tasks import SWITCH_BYTES_A_SECOND, SWITCH_SECONDS
from edgerun.state import Batch, SequenceStore, same_attention


class Adding(Executable):
    """Adds 1 in every node."""

    def __init__(self, segment):
        self.segment = segment

    def __call__(self, batch, cache, values=NO_VALUES):
        computed = {"ids": batch.ids.astype(np.float32), **values}
        for node in self.segment.nodes:
            computed[node.outputs[0]] = computed[node.inputs[0]] + 1
        return {name: computed[name] for name in self.segment.outputs}

    def close(self):
        pass


class Fake(Backend):
    """A back-end that adds its number to its input, with given costs per node."""

    def __init__(self, name, costs, able=lambda node: True, whole_graph=False):
        self.name, self.costs, self.able, self.whole_graph = name, costs, able, whole_graph

    def probe(self):
        return Support(True)

    def supports(self, graph, node, shape):
        return Support(self.able(node), "" if self.able(node) else f"{self.name} cannot")

    def cost(self, graph, node, shape):
        return self.costs[int(node.name[1:])]

    def compile(self, segment, shape, options):
        return Adding(segment)


def chain_graph(length):
    names = ["ids", *(f"v{index}" for index in range(length))]
    nodes = [
        Node("step", f"n{index}", (names[index],), (names[index + 1],)) for index in range(length)
    ]
    return Graph(nodes, [], [names[-1]], {})


def placement(plan, phase=Phase.DECODE):
    return [segment.backend for segment in plan.segments[phase] for _ in segment.graph.nodes]


def cheapest_by_force(length, backends):
    """Tries every assignment."""

    def total(names):
        costs = sum(backends[name].costs[index] for index, name in enumerate(names))
        return costs + SWITCH_SECONDS * sum(a != b for a, b in itertools.pairwise(names))

    return min(total(names) for names in itertools.product(backends, repeat=length))


@pytest.mark.parametrize("seed", range(10))
def test_the_plan_costs_what_the_best_of_all_assignments_costs(seed):
    rng = np.random.default_rng(seed)
    length = 7
    backends = {name: Fake(name, rng.uniform(0, 2e-4, length)) for name in ("a", "b", "c")}
    plan = make_plan(chain_graph(length), list(backends.values()))
    segments = plan.segments[Phase.DECODE]
    seconds = sum(segment.seconds for segment in segments) + SWITCH_SECONDS * (len(segments) - 1)
    assert seconds == pytest.approx(cheapest_by_force(length, backends))


def test_a_small_gain_is_not_worth_a_change():
    slow, fast = [1e-4] * 3, [2e-4, 1e-4 - SWITCH_SECONDS / 4, 2e-4]
    plan = make_plan(chain_graph(3), [Fake("a", slow), Fake("b", fast)])
    assert placement(plan) == ["a", "a", "a"]


def test_nodes_that_only_one_back_end_runs_are_placed_there():
    able = lambda node: node.name == "n1"  # noqa: E731
    plan = make_plan(
        chain_graph(3), [Fake("a", [1e-4] * 3, lambda node: not able(node)), Fake("b", [1.0] * 3)]
    )
    assert placement(plan) == ["a", "b", "a"]


def test_segments_hand_values_to_one_another():
    backends = [
        Fake("a", [0, 1, 0, 1]),
        Fake("b", [1, 0, 1, 0]),
    ]
    plan = make_plan(chain_graph(4), backends)
    assert placement(plan) == ["a", "b", "a", "b"]
    spec = same_attention(1, 1, 8)
    programs = compile_plan(plan, backends, buckets(4), CompileOptions(spec))
    result = programs.run(Batch.of([5, 7], 0, 0), SequenceStore(spec, 64))
    np.testing.assert_array_equal(result["v3"], [9, 11])


def test_a_node_nobody_runs_names_it_and_every_reason():
    backends = [Fake("a", [0.0] * 2, lambda node: node.name != "n1")]
    with pytest.raises(UnsupportedError, match="a: n1: a cannot"):
        make_plan(chain_graph(2), backends)


def test_whole_graph_back_ends_are_compared_by_cost():
    whole = Fake("whole", [1.0] * 2, whole_graph=True)
    assert placement(make_plan(chain_graph(2), [whole, Fake("a", [0.9] * 2)])) == ["a", "a"]
    dear = make_plan(chain_graph(2), [Fake("a", [0.9, 1.2]), whole])
    assert placement(dear) == ["whole", "whole"]
    assert "slower by estimate: 2100.00 ms" in dear.refusals[Phase.DECODE][0].reason
    unable = Fake("a", [1.0] * 2, lambda node: False)
    plan = make_plan(chain_graph(2), [whole, unable])
    assert placement(plan) == ["whole", "whole"]
    assert plan.refusals[Phase.DECODE][0].reason == "n0: a cannot"


def test_explain_has_a_row_for_every_segment_and_refusal():
    plan = make_plan(chain_graph(2), [Fake("a", [1e-3] * 2), Fake("b", [1.0] * 2)])
    rows = [row for row in plan.explain() if row.phase == "decode"]
    assert [(row.backend, row.chosen) for row in rows] == [("a", True), ("b", False)]
    assert rows[0].ops == {"step": 2}
    assert "slower by estimate" in rows[1].reason


def test_explain_says_what_estimates_stand_on():
    class Calibrated(Fake):
        def cost_basis(self):
            return "measured yesterday"

    plan = make_plan(chain_graph(1), [Calibrated("a", [1e-3]), Fake("b", [1.0])])
    assert {row.backend: row.basis for row in plan.explain()} == {
        "a": "measured yesterday",
        "b": "",
    }


class Accelerating(Fake):
    """Runs odd nodes only; leaves the rest, and failures, to its companions."""

    companions = ("absent", "b")

    def __init__(self, costs):
        super().__init__("a", costs, lambda node: int(node.name[1:]) % 2 == 1)

    def compile(self, segment, shape, options):
        assert options.fallback is not None
        return options.fallback(segment, shape)


def test_a_preferred_back_end_takes_what_it_supports_whatever_it_costs():
    backends = [Accelerating([9.0] * 5), Fake("b", [0.0] * 5)]
    plan = make_plan(chain_graph(5), backends, "a")
    assert placement(plan) == ["b", "a", "b", "a", "b"]
    assert [refusal.reason for refusal in plan.refusals[Phase.DECODE]] == ["a cannot (3 nodes)"]
    assert placement(make_plan(chain_graph(5), backends)) == ["b"] * 5


def test_an_accelerator_left_out_is_compared_where_it_could_run():
    plan = make_plan(chain_graph(4), [Accelerating([1e-3] * 4), Fake("b", [1e-4] * 4)])
    reasons = [refusal.reason for refusal in plan.refusals[Phase.DECODE]]
    assert reasons[0] == "a cannot (2 nodes)"
    assert "slower by estimate: 2.00 ms / 1 rows for 2 nodes that take 0.20 ms" in reasons[1]


def test_an_accelerator_learns_who_stands_in_for_it():
    backends = [Accelerating([0.0] * 3), Fake("b", [0.0] * 3)]
    plan = make_plan(chain_graph(3), backends, "a")
    spec = same_attention(1, 1, 8)
    programs = compile_plan(plan, backends, buckets(4), CompileOptions(spec))
    result = programs.run(Batch.of([5], 0, 0), SequenceStore(spec, 64))
    np.testing.assert_array_equal(result["v2"], [8])


def test_without_a_companion_nobody_stands_in():
    backends = [Accelerating([0.0] * 3), Fake("c", [0.0] * 3)]
    plan = make_plan(chain_graph(3), backends, "a")
    spec = same_attention(1, 1, 8)
    with pytest.raises(UnsupportedError, match="'a' failed and no other"):
        compile_plan(plan, backends, buckets(4), CompileOptions(spec))


def test_a_change_costs_what_the_bytes_that_cross_cost():
    """Values alive between two nodes are handed over, the wider the dearer; others are not."""
    wide, narrow = 1 << 22, 64
    nodes = [
        Node("add", "n0", ("x", "x"), ("u",)),
        Node("linear", "n1", ("u", "down"), ("v",), {"activations": "float"}),
        Node("add", "n2", ("v", "v"), ("y",)),
    ]
    shape = np.lib.stride_tricks.as_strided
    down = shape(np.zeros(1, np.float32), (narrow, wide), (0, 0))
    graph = Graph(nodes, ["x"], ["y"], {"down": down}, shapes={"x": ValueShape(wide)})
    crossing = 4 * wide / SWITCH_BYTES_A_SECOND
    gain = SWITCH_SECONDS + crossing / 2
    # Behind the wide value a change pays only if it gains more than the bytes cost.
    early = [Fake("a", [0.0, gain, gain]), Fake("b", [1.0, 0.0, gain])]
    assert placement(make_plan(graph, early)) == ["a", "a", "a"]
    late = [Fake("a", [0.0, 0.0, gain]), Fake("b", [1.0, 1.0, 0.0])]
    assert placement(make_plan(graph, late)) == ["a", "a", "b"]
