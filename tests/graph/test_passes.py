"""Passes leave nothing but schema ops of what our exporter writes, and prune the rest."""

import numpy as np
import pytest

from edgerun.graph.check import check
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Matcher, Num, Op, Var
from edgerun.graph.passes.prune import prune
from edgerun.graph.passes.residuals import fuse_residuals
from edgerun.model.bundle import open_bundle
from edgerun.ops.registry import OPS
from tests.support.bundles import NAMES, bundle_of


@pytest.mark.parametrize("weights", ["fp32", "int4"])
@pytest.mark.parametrize("name", NAMES)
def test_every_node_of_an_exported_model_is_lowered(name, weights):
    graph = open_bundle(bundle_of(name, weights=weights)).graph
    assert {node.op for node in graph.nodes} <= set(OPS)
    assert graph.outputs == ["logits"]


def test_the_sliding_window_is_found_in_the_mask():
    graph = open_bundle(bundle_of("mistral", weights="fp32")).graph
    windows = {node.attrs["window"] for node in graph.nodes if node.op == "attention"}
    assert windows and 0 not in windows


def test_bounds_of_scores_are_read_of_every_layer():
    graph = open_bundle(bundle_of("gemma2", weights="fp32")).graph
    layers = [node.attrs for node in graph.nodes if node.op == "attention"]
    assert [(attrs["softcap"], attrs["window"]) for attrs in layers] == [(3.0, 8), (3.0, 0)] + [
        (3.0, 8)
    ]


def test_native_activation_rounding_becomes_an_attribute():
    graph = open_bundle(bundle_of("bitnet-packed", weights="ternary")).graph
    kinds = {node.attrs["activations"] for node in graph.nodes if node.op == "linear"}
    assert "int8_row" in kinds


def chain():
    return Graph(
        nodes=[
            Node("Sigmoid", "s", ("x",), ("y",)),
            Node("Mul", "m", ("x", "y"), ("z",)),
            Node("Add", "a", ("z", "one"), ("w",)),
        ],
        inputs=["x"],
        outputs=["w"],
        constants={"one": np.float32([1])},
    )


def test_a_variable_matches_one_value_only():
    matcher = Matcher(chain())
    assert matcher.match("z", Op("Mul", Var("v"), Op("Sigmoid", Var("v"))))["v"] == "x"
    assert matcher.match("z", Op("Mul", Op("Sigmoid", Var("v")), Var("v"))) is None


def test_numbers_and_constants_match_by_content():
    matcher = Matcher(chain())
    assert matcher.match("w", Op("Add", Var("z"), Num(1))) is not None
    assert matcher.match("w", Op("Add", Var("z"), Num(2))) is None
    assert matcher.match("w", Op("Add", Const("z"), Num(1))) is None


def test_prune_drops_what_no_output_needs():
    graph = chain()
    graph.outputs = ["y"]
    pruned = prune(graph)
    assert [node.name for node in pruned.nodes] == ["s"]
    assert pruned.constants == {}


def linear_and_sum(*inputs, outputs=("z",)):
    nodes = [Node("linear", "l", ("x", "weight"), ("y",)), Node("Add", "a", inputs, ("z",))]
    return Graph(nodes, ["x"], list(outputs), {"weight": np.float32([[1]])})


def test_a_residual_is_added_by_the_linear_layer():
    (node,) = fuse_residuals(linear_and_sum("x", "y")).nodes
    assert (node.op, node.inputs, node.outputs) == ("linear", ("x", "weight", "", "x"), ("z",))


@pytest.mark.parametrize(
    ("inputs", "outputs"), [(("y", "y"), ("z",)), (("x", "y"), ("z", "y")), (("y", "x"), ("z",))]
)
def test_what_else_reads_a_linear_layer_still_does(inputs, outputs):
    nodes = fuse_residuals(linear_and_sum(*inputs, outputs=outputs)).nodes
    assert [(node.op, node.inputs) for node in nodes] == [
        ("linear", ("x", "weight")),
        ("add", inputs),
    ]


class Iterated(dict):
    """Counts how often somebody went through all of it."""

    count = 0

    def __iter__(self):
        self.count += 1
        return super().__iter__()


def test_no_node_is_compared_with_all_constants():
    """Files may have many of both."""
    graph = open_bundle(bundle_of("llama", weights="int4")).graph
    graph.constants = Iterated(graph.constants)
    check(graph)
    assert graph.constants.count < len(graph.nodes) / 2
