"""The three forms of an activation function are one; ``tests/conformance`` compares the kernels."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edgerun.activations.registry import ACTIVATIONS
from edgerun.errors import UnsupportedError
from edgerun.graph.ir import Graph, Node
from edgerun.graph.passes.gates import fuse_gates
from edgerun_export.architectures.fields import activation
from edgerun_export.graph.blocks import activate
from edgerun_export.graph.onnx_graph import OnnxGraph


def written(name):
    """What the exporter writes for ``activation(gate) * up``."""
    graph = OnnxGraph()
    active = activate(graph, name, "gate", "mlp/activation")
    graph.node("Mul", [active, "up"], "product", outputs=["out"])
    values = [
        helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, ["rows", "width"])
        for value in ("gate", "up", "out")
    ]
    return graph.model(values[:2], values[2:])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_onnx_computes_what_the_definition_says(name):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        written(name).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = np.concatenate([np.linspace(-20, 20, 4001), [-300, 300, 0]]).astype(np.float32)[None]
    (out,) = session.run(None, {"gate": x, "up": np.ones_like(x)})
    np.testing.assert_allclose(out, ACTIVATIONS[name].define(x), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_the_exporter_writes_is_recognised(name):
    graph = written(name).graph
    nodes = [
        Node(node.op_type, node.name, tuple(node.input), tuple(node.output)) for node in graph.node
    ]
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    lowered = fuse_gates(Graph(nodes, ["gate", "up"], ["out"], constants))
    expected = Node("gate", "product", ("gate", "up"), ("out",), {"activation": name})
    assert lowered.nodes[-1] == expected


def test_checkpoints_may_use_other_names():
    for name, entry in ACTIVATIONS.items():
        assert {activation({"hidden_act": alias}) for alias in (name, *entry.aliases)} == {name}
    with pytest.raises(UnsupportedError, match="'mish' is not supported; supported are: relu2, "):
        activation({"hidden_act": "mish"})
