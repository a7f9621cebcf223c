"""Mutations of ``model.onnx``: what a hostile exporter could write, with everything else right."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper

from tests.fuzz.mutate.values import integer, number, small, text

MODEL, DATA = "model.onnx", "model.onnx.data"
ATTRIBUTES = (
    "N", "K", "bits", "block_size", "accuracy_level", "epsilon", "axis", "softcap", "scale",
    "is_causal", "q_num_heads", "kv_num_heads", "perm", "to", "start", "end", "stash_type",
    "local_window_size", "do_rotary", "transA", "head_dim", "num_heads", "window", "unknown",
)  # fmt: skip
OPS = (
    "Add", "Mul", "Sub", "Relu", "Sigmoid", "MatMul", "Gather", "Reshape", "Identity", "Loop", "If",
    "Scan", "Attention", "RMSNormalization", "MatMulNBits", "Softmax", "Einsum", "Expand", "Tile",
    "ConstantOfShape", "Custom", "",
)  # fmt: skip
FORMATS = ("ternary", "int2", "int4", "int8", "fp32", "")


def mutate_sizes(data: bytes, draw: random.Random) -> bytes:
    """Other sizes, with data and attributes that agree: only the graph as a whole is wrong."""
    model = onnx.load_model_from_string(data)
    for _ in range(draw.choice((1, 1, 2))):
        draw.choice((cut_rows, grow_linear, change_shape, change_constant))(model, draw)
    return model.SerializeToString()


def mutate_onnx(data: bytes, draw: random.Random) -> bytes:
    """One to three changes of the graph."""
    model = onnx.load_model_from_string(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        draw.choice(CHANGES)(model, draw)
    return model.SerializeToString()


def _nodes(model: ModelProto, draw: random.Random) -> list[NodeProto]:
    """The nodes of the graph, or at times those of a body that one of them runs."""
    bodies = [a.g for node in model.graph.node for a in node.attribute if a.HasField("g")]
    return list((draw.choice(bodies) if bodies and draw.random() < 0.2 else model.graph).node)


def _node(model: ModelProto, draw: random.Random, op: str = "") -> NodeProto | None:
    nodes = [node for node in _nodes(model, draw) if not op or node.op_type == op]
    return draw.choice(nodes) if nodes else None


def _tensor(model: ModelProto, draw: random.Random) -> TensorProto | None:
    tensors = list(model.graph.initializer)
    weights = [tensor for tensor in tensors if tensor.data_location == TensorProto.EXTERNAL]
    some = weights if weights and draw.random() < 0.7 else tensors
    return draw.choice(some) if some else None


def change_attribute(model: ModelProto, draw: random.Random) -> None:
    """Another value, of the same type."""
    nodes = [node for node in model.graph.node if node.attribute]
    if not nodes:
        return
    attribute = draw.choice(draw.choice(nodes).attribute)
    if attribute.type == AttributeProto.INT:
        pick = small if draw.random() < 0.5 else integer
        attribute.i = pick(draw, attribute.i)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = draw.choice((number(draw), attribute.f * 2, -attribute.f))
    elif attribute.type == AttributeProto.INTS:
        values = [
            integer(draw, value) if draw.random() < 0.4 else value for value in attribute.ints
        ]
        draw.shuffle(values)
        attribute.ints[:] = values[: draw.randrange(len(values) + 2)]
    else:
        attribute.s = text(draw).encode()


def change_attribute_type(model: ModelProto, draw: random.Random) -> None:
    """The same name with a value of another type."""
    node = _node(model, draw)
    if node is None or not node.attribute:
        return
    index = draw.randrange(len(node.attribute))
    attribute = helper.make_attribute(node.attribute[index].name, _attribute_value(draw))
    node.attribute[index].CopyFrom(attribute)


def add_attribute(model: ModelProto, draw: random.Random) -> None:
    """An attribute that the op has not, or has already."""
    node = _node(model, draw, draw.choice(("", "", "Attention", "MatMulNBits")))
    if node is not None:
        value = _attribute_value(draw)
        node.attribute.append(helper.make_attribute(draw.choice(ATTRIBUTES), value))


def _attribute_value(draw: random.Random) -> Any:
    kinds = (
        lambda: integer(draw, 64),
        lambda: number(draw),
        lambda: text(draw),
        lambda: [integer(draw, 4) for _ in range(draw.randrange(1, 5))],
        lambda: [number(draw)],
        lambda: helper.make_tensor("t", TensorProto.FLOAT, [2], [1.0, 2.0]),
        lambda: helper.make_graph([helper.make_node("Loop", [], ["x"])], "body", [], []),
    )
    return draw.choice(kinds)()


def drop_attribute(model: ModelProto, draw: random.Random) -> None:
    """A node without one of its attributes, or with it under another name."""
    node = _node(model, draw)
    if node is None or not node.attribute:
        return
    index = draw.randrange(len(node.attribute))
    if draw.random() < 0.5:
        del node.attribute[index]
    else:
        node.attribute[index].name = draw.choice((*ATTRIBUTES, text(draw)))


def change_metadata(model: ModelProto, draw: random.Random) -> None:
    """What the exporter says about a node beside its attributes."""
    node = _node(model, draw, "MatMulNBits") or _node(model, draw)
    if node is None:
        return
    if node.metadata_props and draw.random() < 0.6:
        node.metadata_props[0].value = draw.choice((*FORMATS, text(draw)))
    else:
        key = draw.choice(("N", "K", "edgerun.format", "bits", "axis", "scale", text(draw)))
        node.metadata_props.add(key=key, value=draw.choice(("64", "1", *FORMATS, text(draw))))


def change_shape(model: ModelProto, draw: random.Random) -> None:
    """Dimensions of a tensor, with or without a data range that agrees."""
    tensor = _tensor(model, draw)
    if tensor is None or not tensor.dims:
        return
    dims = list(tensor.dims)
    how = draw.randrange(5)
    index = draw.randrange(len(dims))
    if how <= 1:
        pick = small if draw.random() < 0.7 else integer
        dims[index] = pick(draw, dims[index])
    elif how == 2:
        draw.shuffle(dims)
    elif how == 3:
        dims.insert(index, 1)
    else:
        dims[index : index + 2] = [int(np.prod([abs(dim) % 2**31 for dim in dims[index:]]))]
    tensor.dims[:] = [_int64(dim) for dim in dims]
    if draw.random() < 0.8:
        _fit_length(tensor)


def cut_rows(model: ModelProto, draw: random.Random) -> None:
    """A weight with fewer rows, and tensors and attributes that agree with it."""
    tensor = _tensor(model, draw)
    if tensor is None or not tensor.dims:
        return
    rows = small(draw, tensor.dims[0])
    stem = tensor.name.rsplit(".", 1)[0]
    for other in model.graph.initializer:
        if other.name.rsplit(".", 1)[0] == stem and other.dims:
            other.dims[0] = rows
            _fit_length(other)
    for node in model.graph.node:
        if tensor.name in node.input:
            for attribute in node.attribute:
                if attribute.name == "N" and draw.random() < 0.7:
                    attribute.i = rows


def grow_linear(model: ModelProto, draw: random.Random) -> None:
    """A linear layer that says it is many times as high or as wide, with data for all of it."""
    node = _node(model, draw, "MatMulNBits")
    if node is None:
        return
    side, times = draw.choice(("N", "K")), draw.choice((2, 8, 16))
    for attribute in node.attribute:
        if attribute.name == side:
            attribute.i = _int64(attribute.i * times)
    for tensor in model.graph.initializer:
        if tensor.name in node.input[1:3] and len(tensor.dims) >= 2:
            tensor.dims[side == "K"] = _int64(tensor.dims[side == "K"] * times)
            _fit_length(tensor)
            for entry in tensor.external_data:
                if entry.key == "offset":
                    entry.value = "0"
    if draw.random() < 0.5:
        node.input[:] = node.input[:3]  # a bias would have to grow, too


def _fit_length(tensor: TensorProto) -> None:
    """Lets the data range, or the data, be as long as the shape says."""
    dims = [abs(dim) for dim in tensor.dims]
    item = {TensorProto.FLOAT: 4, TensorProto.INT64: 8, TensorProto.UINT8: 1}.get(tensor.data_type)
    length = int(np.prod(dims, dtype=object)) * (item or 1) if dims else item or 1
    for entry in tensor.external_data:
        if entry.key == "length":
            entry.value = str(length)
    if tensor.HasField("raw_data") and length < 1 << 20:
        tensor.raw_data = (tensor.raw_data * (length // max(1, len(tensor.raw_data)) + 1))[:length]


def _int64(value: int) -> int:
    return max(-(2**63), min(2**63 - 1, value))


def change_dtype(model: ModelProto, draw: random.Random) -> None:
    """Another element type for the same bytes."""
    tensor = _tensor(model, draw)
    if tensor is not None:
        tensor.data_type = draw.choice((0, 1, 2, 3, 5, 6, 7, 9, 10, 11, 16, 17, 21, 22, 999))


def change_range(model: ModelProto, draw: random.Random) -> None:
    """Where a tensor's data lies."""
    tensors = [tensor for tensor in model.graph.initializer if tensor.external_data]
    if not tensors:
        return
    tensor = draw.choice(tensors)
    entry = draw.choice(tensor.external_data)
    if entry.key == "location":
        entry.value = text(draw)
    else:
        pick = small if draw.random() < 0.5 else integer
        near = int(entry.value) if entry.value.lstrip("-").isdigit() else 0
        entry.value = draw.choice((str(pick(draw, near)), str(pick(draw, near)), text(draw)))
    if draw.random() < 0.2:
        tensor.external_data.add(key=draw.choice(("location", "offset", "length")), value="1")


def inline_data(model: ModelProto, draw: random.Random) -> None:
    """Data in the graph instead of the file: of any length, or in a typed field."""
    tensor = _tensor(model, draw)
    if tensor is None:
        return
    del tensor.external_data[:]
    tensor.data_location = TensorProto.DEFAULT
    tensor.ClearField("raw_data")
    how = draw.randrange(3)
    if how == 0:
        tensor.raw_data = draw.randbytes(draw.choice((0, 1, 4, 64, 256, 2048)))
    elif how == 1:
        tensor.float_data.extend(number(draw) for _ in range(draw.choice((0, 1, 64))))
    else:
        tensor.int64_data.extend(integer(draw) for _ in range(draw.choice((0, 1, 4))))


def change_constant(model: ModelProto, draw: random.Random) -> None:
    """Numbers in the graph: axes, shapes, slices, frequencies."""
    tensors = [tensor for tensor in model.graph.initializer if tensor.HasField("raw_data")]
    if not tensors:
        return
    tensor = draw.choice(tensors)
    if tensor.data_type == TensorProto.INT64:
        values = np.frombuffer(tensor.raw_data, np.int64).copy()
        if len(values):
            index = draw.randrange(len(values))
            values[index] = _int64(integer(draw, int(values[index])))
        tensor.raw_data = values.tobytes()
    else:
        floats = np.frombuffer(tensor.raw_data[: len(tensor.raw_data) // 4 * 4], np.float32).copy()
        if len(floats):
            floats[draw.randrange(len(floats))] = number(draw)
        tensor.raw_data = floats.tobytes()


def reconnect(model: ModelProto, draw: random.Random) -> None:
    """Another value as an input, none, or its own output."""
    node = _node(model, draw)
    if node is None or not node.input:
        return
    names = [name for other in model.graph.node for name in (*other.input, *other.output)]
    names += [tensor.name for tensor in model.graph.initializer]
    choice = draw.choice((draw.choice(names), draw.choice(names), "", "nothing", node.output[0]))
    index = draw.randrange(len(node.input))
    how = draw.randrange(6)
    if how == 0:
        del node.input[index]
    elif how == 1:
        node.input.append(choice)
    else:
        node.input[index] = choice


def rename_output(model: ModelProto, draw: random.Random) -> None:
    """A value made twice, never, or under a constant's name."""
    node = _node(model, draw)
    if node is None or not node.output:
        return
    names = [name for other in model.graph.node for name in other.output]
    names += [tensor.name for tensor in model.graph.initializer] + ["", "logits", "input_ids"]
    node.output[draw.randrange(len(node.output))] = draw.choice(names)


def move_nodes(model: ModelProto, draw: random.Random) -> None:
    """Nodes dropped, doubled, in another order, or of another op."""
    nodes = list(model.graph.node)
    if not nodes:
        return
    index, other = draw.randrange(len(nodes)), draw.randrange(len(nodes))
    how = draw.randrange(5)
    if how == 0:
        del nodes[index]
    elif how == 1:
        nodes.insert(other, nodes[index])
    elif how == 2:
        nodes[index], nodes[other] = nodes[other], nodes[index]
    elif how == 3:
        nodes[index].op_type = draw.choice(OPS)
    else:
        nodes[index].domain = draw.choice(("", "com.microsoft", "ai.onnx", "custom", text(draw)))
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def rename_nodes(model: ModelProto, draw: random.Random) -> None:
    """Names that occur twice or are no names."""
    node, other = _node(model, draw), _node(model, draw)
    if node is not None and other is not None:
        node.name = draw.choice(("", other.name, text(draw)))


def rename_tensor(model: ModelProto, draw: random.Random) -> None:
    """A constant under another's name, or dropped, or doubled."""
    tensor, other = _tensor(model, draw), _tensor(model, draw)
    if tensor is None or other is None:
        return
    how = draw.randrange(3)
    if how == 0:
        tensor.name = draw.choice((other.name, "", text(draw)))
    elif how == 1:
        model.graph.initializer.remove(tensor)
    else:
        model.graph.initializer.append(TensorProto.FromString(other.SerializeToString()))


def change_ends(model: ModelProto, draw: random.Random) -> None:
    """Inputs and outputs of the graph: fewer, doubled, other names."""
    ends = draw.choice((model.graph.input, model.graph.output))
    if not ends:
        return
    index = draw.randrange(len(ends))
    how = draw.randrange(3)
    if how == 0:
        del ends[index]
    elif how == 1:
        ends[index].name = draw.choice((text(draw), ends[draw.randrange(len(ends))].name))
    else:
        ends.append(type(ends[index]).FromString(ends[index].SerializeToString()))


def change_layer(model: ModelProto, draw: random.Random) -> None:
    """The cache of another layer, or of one layer twice."""
    names = [value.name for value in model.graph.input if value.name.startswith("past_")]
    if len(names) < 2:
        return
    old, new = draw.choice(names), draw.choice((*names, "past_key_values.99.key"))
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]


CHANGES: tuple[Callable[[ModelProto, random.Random], None], ...] = (
    change_attribute, change_attribute, change_attribute, change_attribute_type, add_attribute,
    drop_attribute, change_metadata, change_shape, change_shape, cut_rows, grow_linear,
    change_dtype,
    change_range, inline_data, change_constant, change_constant, reconnect, reconnect,
    rename_output, move_nodes, rename_nodes, rename_tensor, change_ends, change_layer,
)  # fmt: skip
