"""Collects the nodes and initializers of an ONNX graph, and says which versions it targets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

OPSET = 23
CONTRIB_DOMAIN = "com.microsoft"
# onnx.helper would write the newest version of the installed package, which runtimes reject.
IR_VERSION = 11


def node_path(module: str) -> str:
    """Turns ``model.layers.0.mlp`` into the node name ``/model/layers.0/mlp``."""
    return "/" + re.sub(r"\.(?!\d)", "/", module)


def numbered(name: str, number: int) -> str:
    """The name of a part of which there may be several: ``name``, ``name_1``, ``name_2``."""
    return f"{name}_{number}" if number else name


class OnnxGraph:
    """A graph under construction.

    Nodes are named like paths (``/model/layers.0/mlp/Mul``). What they compute is numbered, since
    each of these names stands in the file several times: paths would double a model of experts.
    """

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._names: set[str] = set()
        self._values = 0

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        name: str,
        *,
        domain: str = "",
        outputs: Sequence[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> str:
        """Adds a node and returns its first output, which gets a number unless named."""
        if name in self._names:
            raise ValueError(f"two nodes are named {name}")
        self._names.add(name)
        results = list(outputs) if outputs else [self.value()]
        proto = helper.make_node(op, inputs, results, name, domain=domain, **attributes)
        for key, value in (metadata or {}).items():
            proto.metadata_props.add(key=key, value=value)
        self._nodes.append(proto)
        return results[0]

    def value(self) -> str:
        """A name for what a node computes."""
        self._values += 1
        return f"v{self._values}"

    def constant(self, value: NDArray[Any], name: str | None = None) -> str:
        """Returns the name of a small initializer stored in the graph itself; equal ones share."""
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._constants:
            unnamed = f"constants/{value.dtype.name}_{len(self._constants)}"
            self._constants[key] = name or unnamed
            self._initializers.append(numpy_helper.from_array(value, self._constants[key]))
        return self._constants[key]

    def integers(self, *values: int) -> str:
        """Returns an int64 vector constant."""
        return self.constant(np.array(values, np.int64))

    def integer(self, value: int) -> str:
        """Returns an int64 scalar constant."""
        return self.constant(np.array(value, np.int64))

    def scalar(self, value: float) -> str:
        """Returns a float32 scalar constant."""
        return self.constant(np.array(value, np.float32))

    def initializer(self, tensor: onnx.TensorProto) -> str:
        """Adds an initializer whose bytes lie in the external data file; returns its name."""
        self._initializers.append(tensor)
        return str(tensor.name)

    def model(
        self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        """Returns the finished model."""
        graph = helper.make_graph(
            self._nodes, "decoder", list(inputs), list(outputs), self._initializers
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB_DOMAIN, 1)]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edgerun"
        )
