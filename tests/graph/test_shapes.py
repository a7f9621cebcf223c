"""Widths and kinds of rows of every value of a graph, before anything runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgerun.backends import Backend, Phase, Shape, make_backend
from edgerun.backends.base import CompileOptions
from edgerun.errors import BundleError
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.graph.shapes import Sizes, value_shapes
from edgerun.llm.loading import resolve
from edgerun.model.bundle import open_bundle
from edgerun.plan.planner import make_plan
from edgerun.plan.programs import compile_plan
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore


def test_every_value_of_the_default_model_has_its_shape():
    bundle = open_bundle(resolve(None))
    graph, config = bundle.graph, bundle.config
    shapes = value_shapes(graph)
    assert set(shapes) == {output for node in graph.nodes for output in node.outputs}
    assert shapes["logits"] == ValueShape(config.vocab_size, selected=True)
    by_op = {node.op: shapes[node.outputs[0]] for node in reversed(graph.nodes)}
    assert by_op["embedding"] == ValueShape(config.hidden_size)
    assert by_op["attention"] == ValueShape(config.num_heads * config.head_dim)
    assert by_op["gate"] == ValueShape(config.intermediate_size)
    assert by_op["select_rows"] == ValueShape(config.hidden_size, selected=True)


def test_unknown_ops_and_inputs_are_left_out():
    nodes = [Node("step", "a", ("x",), ("y",)), Node("add", "b", ("y", "y"), ("z",))]
    assert value_shapes(Graph(nodes, ["x"], ["z"], {})) == {}
    graph = Graph(nodes, ["x"], ["z"], {}, shapes={"y": ValueShape(3)})
    assert value_shapes(graph)["z"] == ValueShape(3)


def test_products_are_those_of_factors_that_come_later():
    nodes = [Node("add_to_heads", "sum", ("whole", "row"), ("out",), {"heads": 4})]
    shapes = {"whole": ValueShape(60), "row": ValueShape(16)}
    with pytest.raises(BundleError, match=r"whole' has heads\*head_dim = 60, and .* makes it 64"):
        value_shapes(Graph(nodes, ["whole", "row"], ["out"], {}, shapes=shapes))
    shapes["whole"] = ValueShape(64)
    graph = Graph(nodes, ["whole", "row"], ["out"], {}, shapes=shapes)
    assert value_shapes(graph)["out"] == ValueShape(64)


def test_widths_may_be_sums():
    nodes = [Node("concat", "both", ("x", "y"), ("z",))]
    graph = Graph(nodes, ["x", "y"], ["z"], {}, shapes={"x": ValueShape(3), "y": ValueShape(4)})
    assert value_shapes(graph)["z"] == ValueShape(7)
    del graph.shapes["y"]
    assert "z" not in value_shapes(graph)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"a": 0, "b": 4}, "b 4 is no multiple of a 0"),
        ({"a": -2, "b": 4}, "b 4 is no multiple of a -2"),
        ({"a": 3, "b": 4}, "b 4 is no multiple of a 3"),
        ({"c": 5, "d": 4}, "c is 5 of no more than d = 4"),
        ({"e": 3, "f": 4}, "e is 3 and f is 4, not the same"),
        ({"e": 4, "f": 3}, "e is 4 and f is 3, not the same"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(sizes, message):
    with pytest.raises(BundleError, match=f"node 'n' \\(op\\): {message}"):
        relate(sizes)


def test_sizes_are_compared_where_both_are_known():
    for sizes in ({"a": 2, "b": 4}, {"c": 4, "d": 4}, {"e": 4, "f": 4}):
        relate(sizes)
        for name in sizes:
            relate({name: 3})


def relate(sizes: dict[str, int]) -> None:
    rules = (("e", "f"),), (("a", "b"),), (("c", "d"),)
    Sizes(Node("op", "n", (), (), sizes)).relate(*rules)


WANTED, ALL = ValueShape(4, selected=True), ValueShape(4)


@pytest.mark.parametrize(("x", "y"), [(WANTED, ALL), (ALL, WANTED)])
def test_rows_of_wanted_logits_are_not_added_to_those_of_all_tokens(x, y):
    graph = Graph([Node("add", "sum", ("x", "y"), ("z",))], ["x", "y"], ["z"], {})
    assert value_shapes(replace(graph, shapes={"x": x, "y": x}))["z"] == x
    with pytest.raises(BundleError, match="'sum' .* mixes rows of all tokens with those whose log"):
        value_shapes(replace(graph, shapes={"x": x, "y": y}))


def test_rows_of_wanted_logits_are_chosen_once():
    graph = Graph([Node("select_rows", "choice", ("x",), ("z",))], ["x"], ["z"], {})
    assert value_shapes(replace(graph, shapes={"x": ALL}))["z"] == WANTED
    with pytest.raises(BundleError, match="'choice' .* mixes rows"):
        value_shapes(replace(graph, shapes={"x": WANTED}))


class Only(Backend):
    """A CPU back-end for some ops, under another name."""

    def __init__(self, name, ops):
        self.name, self._ops, self._inner = name, ops, make_backend("cpu")

    def probe(self):
        return self._inner.probe()

    def supports(self, graph, node, shape):
        able = node.op in self._ops
        return type(self._inner.probe())(able, "" if able else "not mine")

    def cost(self, graph, node, shape):
        return 0.0

    def compile(self, segment, shape, options):
        return self._inner.compile(segment, shape, options)

    def close(self):
        self._inner.close()


@pytest.mark.parametrize("first", [("linear",), ("rotary", "gate"), ("attention", "rms_norm")])
def test_segments_cut_anywhere_compute_what_the_whole_does(first):
    """Rows that want no logits, inputs of any op, values that only wanted rows have."""
    bundle = open_bundle(resolve(None))
    config, ops = bundle.config, {node.op for node in bundle.graph.nodes}
    spec = states_of(bundle.graph, config, "fp32")
    batches = [([5, 9, 300, 7], "all"), ([11, 12, 13], "last"), ([4, 8], "none")]

    def run(backends):
        plan = make_plan(bundle.graph, backends)
        programs = compile_plan(plan, backends, [Shape.of(16)], CompileOptions(spec))
        cache = SequenceStore(spec, 64, len(batches))
        opened = [cache.open() for _ in batches]
        for (ids, _), sequence in zip(batches, opened, strict=True):
            cache.reserve(sequence, len(ids))
        parts = [
            Batch.of(ids, 0, sequence, logits=selection)
            for (ids, selection), sequence in zip(batches, opened, strict=True)
        ]
        logits = programs.run(Batch.join(parts), cache)["logits"].copy()
        programs.close()
        for backend in backends:
            backend.close()
        return logits, len(plan.segments[Phase.FEW])

    whole, _ = run([make_backend("cpu")])
    cut, segments = run([Only("some", first), Only("others", ops - set(first))])
    assert segments > 10
    assert whole.shape == cut.shape == (5, config.vocab_size)
    np.testing.assert_allclose(cut, whole, atol=1e-4)
