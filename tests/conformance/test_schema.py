"""What an op's file says of its nodes is demanded of them, for every op there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgerun.backends.reference import ReferenceExecutable
from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph.check import check
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.graph.shapes import value_shapes
from edgerun.ops.base import Example, Kind, Op, Operand, rows
from edgerun.ops.registry import OPS
from edgerun.state import Batch
from tests.conformance.examples import CASES, Case

FIRST = [next(case for case in CASES if case.op == op) for op in OPS]


def with_attributes(case: Case, attributes: dict[str, Any]) -> Graph:
    graph = case.graph()
    return replace(graph, nodes=[graph.nodes[0].replace(attrs=attributes)])


@pytest.mark.parametrize("case", FIRST, ids=str)
def test_attributes_are_exactly_those_of_the_op(case: Case) -> None:
    attributes = dict(case.example.attributes)
    with pytest.raises(BundleError, match="'example' .*has the attributes .*mystery.*; expected"):
        check(with_attributes(case, {**attributes, "mystery": 0.5}))
    for name, value in attributes.items():
        rest = {key: value for key, value in attributes.items() if key != name}
        with pytest.raises(BundleError, match="'example' .*has the attributes"):
            check(with_attributes(case, rest))
        low = -1 if type(value) is int else 3
        for other in (f"{value}x", None, float("nan"), low, True):
            with pytest.raises(BundleError, match=f"'example' .*has {name} = .*; expected"):
                check(with_attributes(case, {**attributes, name: other}))


@pytest.mark.parametrize("case", FIRST, ids=str)
def test_a_node_has_the_inputs_of_its_op(case: Case) -> None:
    graph = case.graph()
    (node,) = graph.nodes
    for inputs in ((), (*node.inputs, *["x"] * len(OPS[case.op].inputs))):
        with pytest.raises(BundleError, match=f"'example' .*has {len(inputs)} inputs; expected"):
            check(replace(graph, nodes=[node.replace(inputs=inputs)]))


def test_an_op_that_nobody_knows_is_refused_by_name() -> None:
    nodes = [Node("Softplus", "soft", ("x",), ("y",)), Node("T with k=1", "t", ("y",), ("z",))]
    with pytest.raises(UnsupportedError, match="node 't' is 'T with k=1'"):
        check(Graph(nodes, ["x"], ["z"], {}))
    with pytest.raises(UnsupportedError, match="node 'soft' is 'Softplus'"):
        check(Graph(nodes[:1], ["x"], ["y"], {}))


def best(x: Any) -> tuple[Any, Any]:
    place = x.argmax(axis=1, keepdims=True)
    return np.take_along_axis(x, place, 1), place.astype(np.int32)


@pytest.fixture
def two_outputs(monkeypatch: pytest.MonkeyPatch) -> Graph:
    """A graph with an op that makes a number and its place, and one that reads places."""
    outputs = (rows("value", "1"), rows("place", "1", dtype="int32"))
    find = Op((rows("x", "width"),), outputs, best, lambda: [Example({})])
    pick = Op(
        (rows("place", "one", dtype="int32"), Operand("weight", Kind.VECTOR, ("n",))),
        (rows("out", "one"),),
        lambda place, weight: weight[place],
        lambda: [Example({})],
    )
    monkeypatch.setitem(OPS, "best", find)  # type: ignore[arg-type]
    monkeypatch.setitem(OPS, "pick", pick)  # type: ignore[arg-type]
    nodes = [
        Node("best", "best", ("x",), ("value", "place")),
        Node("pick", "pick", ("place", "w"), ("out",)),
    ]
    constants: dict[str, Any] = {"w": np.arange(8, dtype=np.float32)}
    return Graph(nodes, ["x"], ["value", "out"], constants, shapes={"x": ValueShape(8)})


def test_several_outputs_and_integers_have_shapes(two_outputs: Graph) -> None:
    shapes = value_shapes(two_outputs)
    assert shapes["value"] == shapes["out"] == ValueShape(1)
    assert shapes["place"] == ValueShape(1, dtype="int32")
    x = np.float32([[3, 1, 4, 1, 5, 9, 2, 6]])
    outputs = ReferenceExecutable(two_outputs)(Batch.of([0], 0, 0), None, {"x": x})  # type: ignore[arg-type]
    assert (outputs["value"].item(), outputs["out"].item()) == (9, 5)


@pytest.mark.parametrize(
    ("index", "changes", "message"),
    [
        (1, {"inputs": ("value", "w")}, "'value', which is float32, as place; expected int32"),
        (0, {"outputs": ("value",)}, "makes value; expected 2 values that nothing else makes"),
        (0, {"outputs": ("same", "same")}, "makes same, same; expected 2 values"),
        (0, {"outputs": ("value", "w")}, "makes value, w; expected 2 values"),
    ],
)
def test_outputs_are_told_apart(
    two_outputs: Graph, index: int, changes: dict[str, Any], message: str
) -> None:
    table = Node("embedding", "table", ("ids", "t"), ("x",))
    constants = {**two_outputs.constants, "t": np.ones((4, 8), np.float32)}
    nodes = list(two_outputs.nodes)
    nodes[index] = nodes[index].replace(**changes)
    with pytest.raises(BundleError, match=message):
        check(Graph([table, *nodes], [], ["logits"], constants))
