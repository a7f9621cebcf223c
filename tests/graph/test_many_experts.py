"""One node of one expert is altered among thousands: it is found wherever it is, and named."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper, numpy_helper

from edgerun.errors import EdgerunError
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Graph
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from tests.support.bundles import tiny_experts

LAYERS, EXPERTS = 3, 48
NODES = 14  # of one expert
Change = Callable[[onnx.NodeProto, onnx.NodeProto], None]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    sizes = {"num_hidden_layers": LAYERS, "num_experts": EXPERTS, "moe_intermediate_size": 32}
    return tiny_experts(folder, "int4", **sizes) / "model.onnx"


def lowered(path: Path, model: onnx.ModelProto) -> Graph:
    return lower(read_graph(path, model.SerializeToString()))


def other_op(node: onnx.NodeProto, _other: onnx.NodeProto) -> None:
    node.op_type = "Abs" if node.op_type != "Abs" else "Neg"


def other_domain(node: onnx.NodeProto, _other: onnx.NodeProto) -> None:
    node.domain = "com.example"


def one_attribute_more(node: onnx.NodeProto, _other: onnx.NodeProto) -> None:
    node.attribute.append(helper.make_attribute("limit", 7))


def one_note_more(node: onnx.NodeProto, _other: onnx.NodeProto) -> None:
    node.metadata_props.add(key="edgerun.format", value="int2")


def one_input_more(node: onnx.NodeProto, _other: onnx.NodeProto) -> None:
    node.input.append(node.input[0])


def one_input_less(node: onnx.NodeProto, _other: onnx.NodeProto) -> None:
    del node.input[-1]


def input_of_another(node: onnx.NodeProto, other: onnx.NodeProto) -> None:
    """An input, but no weight, is that of the expert before; of a Gather it is the number."""
    pairs = list(enumerate(zip(node.input, other.input, strict=True)))
    own = [(place, theirs) for place, (mine, theirs) in pairs if mine != theirs]
    place, theirs = [pair for pair in own if not pair[1].startswith("model.")][-1]
    node.input[place] = theirs


CHANGES: list[Change] = [
    other_op,
    other_domain,
    one_attribute_more,
    one_note_more,
    one_input_more,
    one_input_less,
    input_of_another,
]


def test_thousands_of_nodes_become_three_layers(path: Path) -> None:
    model = onnx.load(path, load_external_data=False)
    assert len(model.graph.node) > LAYERS * EXPERTS * NODES
    graph = lowered(path, model)
    layers = [node for node in graph.nodes if node.op == "experts"]
    assert len(layers) == LAYERS
    stacks = [graph.constants[name] for node in layers for name in node.inputs[2:]]
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for place, stack in enumerate(stacks):
        layer, part = place // 3, ("gate", "up", "down")[place % 3]
        assert isinstance(stack, ExpertStack) and len(stack.matrices) == EXPERTS
        for expert, matrix in enumerate(stack.matrices):
            tensor = stored[f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight.scales"]
            assert (matrix.scales == values(path, tensor)).all()  # type: ignore[union-attr]


def values(path: Path, tensor: onnx.TensorProto) -> Any:
    return numpy_helper.to_array(tensor, str(path.parent)).reshape(tensor.dims[0], -1)


def nodes_at(model: onnx.ModelProto, path: str) -> list[onnx.NodeProto]:
    """Those of one expert."""
    nodes = [node for node in model.graph.node if node.name.startswith(path)]
    assert len(nodes) == NODES
    return nodes


@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
def test_every_node_of_every_expert_is_compared(change: Change, path: Path) -> None:
    """Each of an expert's nodes in turn, of any expert but the first of any layer."""
    model = onnx.load(path, load_external_data=False)
    draw = random.Random(change.__name__)
    for turn in range(NODES):
        layer, expert = draw.randrange(LAYERS), draw.randrange(1, EXPERTS)
        at = f"/model/layers.{layer}/mlp/experts."
        other, node = (nodes_at(model, f"{at}{e}/")[turn] for e in (expert - 1, expert))
        before = onnx.NodeProto()
        before.CopyFrom(node)
        change(node, other)
        assert node != before
        with pytest.raises(EdgerunError) as caught:
            lowered(path, model)
        if before.op_type != "ScatterND":  # without that there is no layer of so many experts
            assert f"experts.{expert}/" in str(caught.value)
        node.CopyFrom(before)
    assert not lowered(path, model).refusal
