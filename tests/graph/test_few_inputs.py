"""Nodes with fewer inputs or outputs than their op has are refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest

from edgerun.errors import BundleError
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from tests.support.bundles import bundle_of

SOURCES = {"lfm2": {"weights": "int4", "scales": "fp16"}, "mistral": {"weights": "fp32"}}


def cut(node: onnx.NodeProto, place: int) -> None:
    del node.input[place:]


def left_empty(node: onnx.NodeProto, place: int) -> None:
    node.input[place] = ""


def without_outputs(node: onnx.NodeProto, _: int) -> None:
    del node.output[:]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (cut, "inputs that it needs"),
        (left_empty, "inputs that it needs"),
        (without_outputs, "makes"),
    ],
)
def test_nodes_that_lack_something_are_refused(
    source: str, alter: Callable[[onnx.NodeProto, int], None], message: str
) -> None:
    """Of every op, at every place; what it lacks may also be one of those that may be absent."""
    path = bundle_of(source, **SOURCES[source]) / "model.onnx"
    model = onnx.load(str(path), load_external_data=False)
    kinds = {node.op_type: place for place, node in enumerate(model.graph.node)}
    refused = 0
    for number in kinds.values():
        for place in range(len(model.graph.node[number].input)):
            altered = onnx.ModelProto()
            altered.CopyFrom(model)
            alter(altered.graph.node[number], place)
            try:
                lower(read_graph(path, altered.SerializeToString()))
            except BundleError as error:
                refused += message in str(error)
            except Exception as error:
                assert type(error).__module__ == "edgerun.errors", error
    assert refused > 5
