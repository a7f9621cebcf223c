"""Segments that become one program, because a back-end works inside its companion's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgerun.backends.base import CompileOptions, Executable, Phase, buckets
from edgerun.graph.ir import Graph, Node
from edgerun.plan.planner import make_plan
from edgerun.plan.plans import Segment
from edgerun.plan.programs import compile_plan
from edgerun.plan.tasks import join, task_of
from edgerun.state import Batch, SequenceStore, same_attention
from tests.plan.test_plan import Adding, Fake, chain_graph, placement


class Host(Fake):
    """A back-end that joins its companion in replies, and notes of what."""

    companions = ("main",)

    def __init__(self, costs: list[float], able: Any) -> None:
        super().__init__("host", costs, able)
        self.joined: list[tuple[Graph, list[Graph]]] = []

    def joins(self, shape: Any) -> bool:
        return shape.phase is Phase.DECODE

    def compile_joined(self, graph: Graph, own: Any, shape: Any, options: Any) -> Executable:
        self.joined.append((graph, [*own]))
        return Adding(graph)


def every_third(node: Node) -> bool:
    return int(node.name[1:]) % 3 == 1


@pytest.fixture
def backends() -> list[Fake]:
    # What is dear on the companion is worth a change of back-end, in prompts as well.
    return [Host([0.0] * 8, every_third), Fake("main", [1.0] * 8)]


def test_replies_are_one_program_of_all_nodes_in_their_order(backends: list[Fake]) -> None:
    graph, (host, _) = chain_graph(8), backends
    plan = make_plan(graph, backends)
    expected = ["host" if every_third(node) else "main" for node in graph.nodes]
    for phase in (Phase.DECODE, Phase.PREFILL):
        assert placement(plan, phase) == expected
    options = CompileOptions(same_attention(1, 1, 2, "fp32"))
    programs = compile_plan(plan, backends, buckets(4), options)
    assert isinstance(host, Host)
    ((whole, own),) = host.joined
    assert [node.name for node in whole.nodes] == [node.name for node in graph.nodes]
    assert (whole.inputs, whole.outputs) == ([], graph.outputs)  # ids come with a batch
    assert [node.name for part in own for node in part.nodes] == ["n1", "n4", "n7"]
    store = SequenceStore(options.states, 4)
    for rows in (1, 3):
        ids = np.arange(rows, dtype=np.int32)
        values = programs.run(Batch.of(ids, 0, 0), store)
        np.testing.assert_array_equal(values["v7"], ids + 8.0)
    programs.close()


def test_a_change_costs_nothing_that_is_none(backends: list[Fake]) -> None:
    host, companion = backends
    other = Fake("other", [1.0] * 8)
    for shape in buckets(20):
        task = task_of(chain_graph(8), shape)
        is_one = shape.phase is Phase.DECODE
        assert (task.change_seconds(host, companion, 100) == 0) == is_one
        assert (task.change_seconds(companion, host, 100) == 0) == is_one
        assert task.change_seconds(host, other, 100) > 0 < task.change_seconds(other, host, 100)


def test_what_others_read_comes_out_and_what_they_make_goes_in() -> None:
    def graph(taken: list[str], given: list[str]) -> Graph:
        node, weight = Node("step", given[0], (*taken,), (*given,)), np.zeros(1)
        return Graph([node], taken, given, {given[0]: weight})

    parts = [("main", ["a"], ["b", "x"]), ("host", ["b"], ["c"]), ("other", ["c", "x"], ["d"])]
    parts += [("main", ["d", "c"], ["e", "y"]), ("host", ["e"], ["f"])]
    segments = [Segment(name, graph(taken, given), 1.0) for name, taken, given in parts]
    host = Host([], every_third)
    backends = {"main": Fake("main", []), "host": host, "other": Fake("other", [])}
    first, other, last = join(segments, backends, buckets(1)[0])
    assert (first.segment.backend, other.segment.backend) == ("host", "other")
    assert (first.title, other.title) == ("main and host", "other")
    assert (first.segment.graph.inputs, first.segment.graph.outputs) == (["a"], ["x", "c"])
    assert (last.segment.graph.inputs, last.segment.graph.outputs) == (["d", "c"], ["y", "f"])
    assert [part.outputs for part in first.own] == [["c"]] and not other.own
    assert first.segment.graph.constants.keys() == {"b", "c"} and first.segment.seconds == 2.0
    assert [each.segment for each in join(segments, backends, buckets(99)[-1])] == segments
    assert [each.segment for each in join(segments[:1], backends, buckets(1)[0])] == segments[:1]


def test_nothing_is_joined_that_is_looked_at(
    backends: list[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgerun.plan.programs._observes", lambda: (False, True))
    plan, (host, _) = make_plan(chain_graph(8), backends), backends
    options = CompileOptions(same_attention(1, 1, 2, "fp32"))
    program = compile_plan(plan, backends, buckets(1), options)
    assert isinstance(host, Host) and not host.joined
    values = program.run(Batch.of([3], 0, 0), SequenceStore(options.states, 4))
    assert values["v7"] == [11.0]
    program.close()
