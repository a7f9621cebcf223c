"""All places of an ONNX model where a tensor may say that its data lies in another file."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import AttributeProto, SparseTensorProto, TensorProto


def external(location: str) -> TensorProto:
    tensor = TensorProto(name="t", data_type=TensorProto.UINT8, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "4"}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def initializers(model: onnx.ModelProto, location: str) -> None:
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location


def sparse(location: str, part: str) -> SparseTensorProto:
    tensor = SparseTensorProto(dims=[4])
    getattr(tensor, part).CopyFrom(external(location))
    return tensor


def in_attribute(model: onnx.ModelProto, location: str) -> None:
    attribute = model.graph.node[0].attribute.add(name="value", type=AttributeProto.TENSOR)
    attribute.t.CopyFrom(external(location))


def in_mistyped_attribute(model: onnx.ModelProto, location: str) -> None:
    attribute = model.graph.node[0].attribute.add(name="value", type=AttributeProto.INT)
    attribute.t.CopyFrom(external(location))


def in_attribute_list(model: onnx.ModelProto, location: str) -> None:
    attribute = model.graph.node[0].attribute.add(name="value", type=AttributeProto.TENSORS)
    attribute.tensors.append(external(location))


def in_subgraph(model: onnx.ModelProto, location: str) -> None:
    attribute = model.graph.node[0].attribute.add(name="then_branch", type=AttributeProto.GRAPH)
    attribute.g.initializer.append(external(location))


def in_deep_subgraph(model: onnx.ModelProto, location: str) -> None:
    outer = model.graph.node[0].attribute.add(name="bodies", type=AttributeProto.GRAPHS)
    inner = outer.graphs.add().node.add(op_type="If").attribute.add(name="else_branch")
    inner.type = AttributeProto.GRAPH
    constant = inner.g.node.add(op_type="Constant").attribute.add(name="value")
    constant.t.CopyFrom(external(location))


def in_sparse_initializer(model: onnx.ModelProto, location: str) -> None:
    model.graph.sparse_initializer.append(sparse(location, "values"))


def in_sparse_indices(model: onnx.ModelProto, location: str) -> None:
    model.graph.sparse_initializer.append(sparse(location, "indices"))


def in_sparse_attribute(model: onnx.ModelProto, location: str) -> None:
    attribute = model.graph.node[0].attribute.add(name="value", type=AttributeProto.SPARSE_TENSOR)
    attribute.sparse_tensor.CopyFrom(sparse(location, "values"))


def in_sparse_list(model: onnx.ModelProto, location: str) -> None:
    attribute = model.graph.node[0].attribute.add(name="value", type=AttributeProto.SPARSE_TENSORS)
    attribute.sparse_tensors.append(sparse(location, "values"))


def in_function(model: onnx.ModelProto, location: str) -> None:
    node = model.functions.add(name="f", domain="d").node.add(op_type="Constant")
    node.attribute.add(name="value", type=AttributeProto.TENSOR).t.CopyFrom(external(location))


def in_function_attribute(model: onnx.ModelProto, location: str) -> None:
    attribute = model.functions.add(name="f", domain="d").attribute_proto.add(name="value")
    attribute.t.CopyFrom(external(location))


def in_training(model: onnx.ModelProto, location: str) -> None:
    model.training_info.add().initialization.initializer.append(external(location))


def in_training_step(model: onnx.ModelProto, location: str) -> None:
    model.training_info.add().algorithm.initializer.append(external(location))


def in_sparse_initializer_of_a_subgraph(model: onnx.ModelProto, location: str) -> None:
    attribute = model.graph.node[0].attribute.add(name="then_branch", type=AttributeProto.GRAPH)
    attribute.g.sparse_initializer.append(sparse(location, "values"))


FIELDS = (
    initializers,
    in_attribute,
    in_mistyped_attribute,
    in_attribute_list,
    in_subgraph,
    in_deep_subgraph,
    in_sparse_initializer,
    in_sparse_indices,
    in_sparse_attribute,
    in_sparse_list,
    in_function,
    in_function_attribute,
    in_training,
    in_training_step,
    in_sparse_initializer_of_a_subgraph,
)
Field = Callable[[onnx.ModelProto, str], None]
