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
from edgerun_export.architectures.decoder.fields import activation
from edgerun_export.graph.blocks import gated
from edgerun_export.graph.onnx_graph import OnnxGraph


def written(name):
    """What the exporter writes for the product of gate and up."""
    graph = OnnxGraph()
    output = gated(graph, name, "gate", "up", "mlp")
    values = [
        helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, ["rows", "width"])
        for value in ("gate", "up", output)
    ]
    return graph.model(values[:2], values[2:])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_onnx_computes_what_the_definition_says(name):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        written(name).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = np.concatenate([np.linspace(-20, 20, 4001), [-300, 300, 0]]).astype(np.float32)[None]
    for up in (np.ones_like(x), x[:, ::-1].copy()):
        (out,) = session.run(None, {"gate": x, "up": up})
        expected = ACTIVATIONS[name].product(x, up)
        # onnxruntime's sigmoid is off by so much, and 0 far out.
        assert (np.abs(out - expected) <= 1e-5 * np.abs(expected) + 5e-6 * (1 + np.abs(up))).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_the_exporter_writes_is_recognised(name):
    graph = written(name).graph
    nodes = [
        Node(node.op_type, node.name, tuple(node.input), tuple(node.output)) for node in graph.node
    ]
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    output = nodes[-1].outputs
    lowered = fuse_gates(Graph(nodes, ["gate", "up"], [*output], constants))
    expected = Node("gate", "mlp/Mul", ("gate", "up"), output, {"activation": name})
    assert lowered.nodes[-1] == expected


def test_checkpoints_may_use_other_names():
    for name, entry in ACTIVATIONS.items():
        assert {activation({"hidden_act": alias}) for alias in (name, *entry.aliases)} == {name}
    with pytest.raises(
        UnsupportedError, match="'mish' is not supported; supported are: clamped_swiglu, "
    ):
        activation({"hidden_act": "mish"})
