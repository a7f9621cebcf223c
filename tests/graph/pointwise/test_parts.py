"""What a file does with each part of a row becomes no op of whole rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, helper, numpy_helper

from edgerun.errors import UnsupportedError
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

HIDDEN = 64
CONSTANTS = {
    "two": np.float32(2),
    "first": np.array(0),
    "single": np.array([1]),
    "third_axis": np.array([2]),
    "last_axis": np.array([-1]),
    "in_one": np.array([0, 0, 2 * HIDDEN]),
    "in_parts": np.array([0, 0, 2, HIDDEN]),
    "in_longer_parts": np.array([0, 0, 2, 2 * HIDDEN]),
    "floor": np.float32(1e-5),
    "halving": np.full((2 * HIDDEN, HIDDEN), 0.1, np.float32),
}
make = helper.make_node


def streams(source: str, name: str) -> list[NodeProto]:
    """A value and twice the value, beside each other."""
    return [
        make("Mul", [source, "two"], [f"{name}_other"]),
        make("Concat", [source, f"{name}_other"], [f"{name}_joined"], axis=-1),
        make("Reshape", [f"{name}_joined", "in_parts"], [name]),
    ]


def root_mean_square(source: str, name: str, *clip: str) -> list[NodeProto]:
    square, mean, bounded = (f"{name}_{part}" for part in ("square", "mean", "bounded"))
    return [
        make("Mul", [source, source], [square]),
        make("ReduceMean", [square, "last_axis"], [mean], keepdims=1),
        *(make("Clip", [mean, each], [bounded]) for each in clip),
        make("Sqrt", [bounded if clip else mean], [name]),
    ]


def largest(source: str, name: str) -> list[NodeProto]:
    """What is more than two standard deviations above the mean."""
    return [
        make("ReduceMean", [source, "last_axis"], ["mean"], keepdims=1),
        make("Sub", [source, "mean"], ["centred"]),
        *root_mean_square("centred", "deviation"),
        make("Mul", ["deviation", "two"], ["cut"]),
        make("Sub", ["centred", "cut"], ["above"]),
        make("Relu", ["above"], [name]),
    ]


def matched(source: str, like: str, name: str) -> list[NodeProto]:
    """A value with the magnitude of another."""
    return [
        *root_mean_square(source, "own", "floor"),
        *root_mean_square(like, "other"),
        make("Div", ["other", "own"], ["ratio"]),
        make("Mul", [source, "ratio"], [name]),
    ]


def gathered(source: str, name: str) -> NodeProto:
    return make("Gather", [source, "first"], [name], axis=2)


def halved(source: str) -> list[NodeProto]:
    return [make("MatMul", [source, "halving"], ["row"])]


def joined(source: str) -> list[NodeProto]:
    """What makes a row of two parts, which first are added to the embedding."""
    return [
        make("Reshape", [source, "in_parts"], ["apart"]),
        make("Unsqueeze", ["x", "third_axis"], ["column"]),
        make("Add", ["apart", "column"], ["sum"]),
        make("Reshape", ["sum", "in_one"], ["long"]),
        *halved("long"),
    ]


def joined_again(left: str, right: str) -> list[NodeProto]:
    """Streams of two values that may be streams, of which the first goes on."""
    return [
        make("Concat", [left, right], ["both"], axis=-1),
        make("Reshape", ["both", "in_longer_parts"], ["longer"]),
        gathered("longer", "long"),
        *halved("long"),
    ]


def chosen(source: str, name: str) -> list[NodeProto]:
    """The largest element of a part."""
    return [
        make("Softmax", [source], ["scores"], axis=-1),
        make("TopK", [source, "single"], ["values", "ids"], axis=-1),
        make("GatherElements", ["scores", "ids"], ["weights"], axis=-1),
        make("Shape", [source], ["shape"]),
        make("ConstantOfShape", ["shape"], ["zeros"]),
        make("ScatterElements", ["zeros", "ids", "weights"], [name], axis=-1),
    ]


STREAMS = streams("x", "a")
TANH = make("Tanh", ["a"], ["t"])
REFUSED = {
    "concat": [*STREAMS, *streams("a_other", "b"), *joined_again("a", "b")],
    "concat of what other ops make": [*STREAMS, TANH, *joined_again("a", "t")],
    "gaussian_top_k": [*STREAMS, *largest("a", "b"), *joined("b")],
    "match_magnitude": [*STREAMS, TANH, *matched("a", "t", "b"), *joined("b")],
    "route": [*STREAMS, *chosen("a", "b"), *joined("b")],
}
ALLOWED = {
    "functions of elements": [*STREAMS, TANH, *joined("t")],
    "a part": [*STREAMS, gathered("a", "p"), *largest("p", "row")],
    "what was joined": [*STREAMS, TANH, *joined("t")[:-1], *largest("long", "c"), *halved("c")],
}


def ops_of(bundle: AlteredBundle, added: Sequence[NodeProto]) -> set[str]:
    """The ops of a model in which nodes make ``row`` of the embedding, ``x``."""
    graph = bundle.model.graph
    embedding = bundle.node("embed_tokens/Reshape")
    row, embedding.output[0] = embedding.output[0], "x"
    nodes = [copy(node) for node in graph.node]
    own = [copy(node) for node in added]
    for node in own:
        node.output[:] = [row if name == "row" else name for name in node.output]
    place = nodes.index(embedding) + 1
    del graph.node[:]
    graph.node.extend([*nodes[:place], *own, *nodes[place:]])
    for name, values in CONSTANTS.items():
        graph.initializer.append(numpy_helper.from_array(values, name))
    path = bundle.save() / "model.onnx"
    return {node.op for node in lower(read_graph(path, path.read_bytes())).nodes}


def copy(node: NodeProto) -> NodeProto:
    return NodeProto.FromString(node.SerializeToString())


@pytest.fixture
def bundle(tmp_path: Path) -> AlteredBundle:
    return AlteredBundle(bundle_of("llama", weights="int4"), tmp_path / "bundle")


@pytest.mark.parametrize("case", REFUSED)
def test_what_treats_each_part_by_itself_is_refused(case: str, bundle: AlteredBundle) -> None:
    with pytest.raises(UnsupportedError, match=f"would be {case.split()[0]} of whole rows"):
        ops_of(bundle, REFUSED[case])


@pytest.mark.parametrize("case", ALLOWED)
def test_what_treats_elements_or_whole_rows_is_lowered(case: str, bundle: AlteredBundle) -> None:
    assert "concat" in ops_of(bundle, ALLOWED[case])
