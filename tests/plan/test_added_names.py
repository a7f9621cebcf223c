"""What is added to a graph has names of its own, whatever its file calls things."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from edgerun.backends import CompileOptions, Shape
from edgerun.backends.base import Phase
from edgerun.backends.registry import make_backend
from edgerun.graph.ir import FreeNames, Graph, Node
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from edgerun.model.bundle import open_bundle
from edgerun.plan.early_rows import select_early
from edgerun.plan.latent_rows import attend_to_latent_rows
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

ROWS = 16
PARTS = ("keys", "queries", "mixed")  # of attention to latent rows, as long as it is computed


def test_a_name_is_numbered_where_something_has_it() -> None:
    nodes = [Node("add", "a", ("x", "w"), ("a/b",)), Node("add", "a/b#2", ("x", "w"), ("y",))]
    free = FreeNames(Graph(nodes, ["x"], ["y"], {"w": np.zeros(1)}))
    assert [free.take(name) for name in ("a", "x", "y", "w")] == ["a#2", "x#2", "y#2", "w#2"]
    assert [free.take("a/b"), free.take("a/b"), free.take("c")] == ["a/b#3", "a/b#4", "c"]


def renamed(graph: Graph, old: str, new: str) -> Graph:
    """With a value that has another name."""

    def names(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new if value == old else value for value in values)

    nodes = [
        node.replace(inputs=names(node.inputs), outputs=names(node.outputs)) for node in graph.nodes
    ]
    shapes = {new if name == old else name: shape for name, shape in graph.shapes.items()}
    return replace(graph, nodes=nodes, shapes=shapes)


def logits_of(graph: Graph, folder: Path, backend: str = "reference") -> NDArray[np.float32]:
    states = states_of(graph, open_bundle(folder).config, "fp32")
    store = SequenceStore(states, 256, 1)
    runs = make_backend(backend, given={"threads": 1})
    executable = runs.compile(graph, Shape(Phase.PREFILL, ROWS), CompileOptions(states))
    slot = store.open()
    store.reserve(slot, ROWS)
    ids = [7 * index % 90 for index in range(ROWS)]
    logits = executable(Batch.of(ids, 0, slot, logits="last"), store)["logits"].copy()
    executable.close()
    runs.close()
    return logits


def added(before: Graph, after: Graph) -> set[str]:
    """The values that only one of two graphs has, and is not the other's."""
    values = [{name for node in graph.nodes for name in node.outputs} for graph in (after, before)]
    return values[0] - values[1]


@pytest.mark.parametrize(
    ("name", "weights", "rewrite"),
    [("llama", "int4", select_early), ("deepseek_v2", "fp32", attend_to_latent_rows)],
)
def test_no_added_value_takes_the_place_of_another(
    name: str, weights: str, rewrite: Callable[[Graph], Graph]
) -> None:
    folder = bundle_of(name, weights=weights, activations="fp32")
    graph = open_bundle(folder).graph
    expected = logits_of(graph, folder)
    names = added(graph, rewrite(graph))
    assert names
    streams = [node.outputs[0] for node in graph.nodes if node.op == "linear" and node.inputs[3:]]
    for stream, new in product(streams, names):
        taken = renamed(graph, stream, new)
        after = rewrite(taken)
        assert len(added(taken, after)) == len(names)
        np.testing.assert_allclose(logits_of(after, folder), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("part", PARTS)
def test_what_attention_computes_in_between_overwrites_no_value(part: str) -> None:
    folder = bundle_of("deepseek_v2", weights="fp32", activations="fp32")
    graph = attend_to_latent_rows(open_bundle(folder).graph)
    expected = logits_of(graph, folder, "cpu")
    places = [place for place, node in enumerate(graph.nodes) if node.op == "latent_attention"]
    before = graph.nodes[: places[-1]]
    stream = next(node for node in before[::-1] if node.op == "linear" and any(node.inputs[3:]))
    taken = renamed(graph, stream.outputs[0], f"{graph.nodes[places[-1]].name}/{part}")
    np.testing.assert_array_equal(logits_of(taken, folder, "cpu"), expected)


def test_what_is_called_like_the_first_stream_stays(tmp_path: Path) -> None:
    bundle = AlteredBundle(bundle_of("gemma3n_text", weights="int8"), tmp_path / "bundle")
    streams = bundle.value("layers.5/altup/correct/Add")
    nodes = bundle.model.graph.node
    part = next(node for node in nodes if node.op_type == "Gather" and node.input[0] == streams)
    unscaled = (part.output[0], bundle.value("layers.5/altup/correct/scale"))
    part.output[0] = new = f"{streams}/first"
    for node in nodes:
        node.input[:] = [new if name in unscaled else name for name in node.input]
    bundle.model.graph.initializer.append(numpy_helper.from_array(np.array(1), "second"))
    part.input[1] = "second"
    path = bundle.save() / "model.onnx"
    makers = lower(read_graph(path, path.read_bytes())).producers()
    assert (makers[new].op, makers[new].attrs["number"]) == ("row_part", 2)
