"""Reads ``model.onnx`` into a ``Graph`` whose constants are views of memory-mapped files.

A hostile file must not make us read outside its folder or allocate more than it holds: external
data names one regular file in the same folder, ranges are checked against its size, and tensors
are never copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph.external_data import (
    EXTERNAL,
    ExternalFiles,
    OpenFile,
    check_other_tensors,
    read_external,
)
from edgerun.graph.ir import Constant, Graph, Node
from edgerun.graph.onnx_schema import onnx_messages

DTYPES: dict[int, type[np.generic]] = {
    1: np.float32,
    2: np.uint8,
    3: np.int8,
    5: np.int16,
    6: np.int32,
    7: np.int64,
    9: np.bool_,
    10: np.float16,
    11: np.float64,
}
# By onnx.AttributeProto.AttributeType.
ATTRIBUTE_READERS: Mapping[int, Callable[[Any], Any]] = {
    1: lambda attribute: attribute.f,
    2: lambda attribute: attribute.i,
    3: lambda attribute: attribute.s.decode("utf-8", "replace"),
    6: lambda attribute: tuple(attribute.floats),
    7: lambda attribute: tuple(attribute.ints),
}
DEFAULT_DOMAINS = ("", "ai.onnx")
LONGEST_NAME = 1000
MAX_MODEL_BYTES = 2**31 - 1  # a protobuf message cannot be larger


def read_graph(path: Path, data: bytes, listed: Mapping[str, OpenFile] | None = None) -> Graph:
    """Reads an ONNX model.

    Args:
        path: where it came from; its external data lies beside it.
        data: content of the file, of at most ``MAX_MODEL_BYTES``.
        listed: the files that may hold external data, see ``ExternalFiles``.

    Raises:
        BundleError: it is no ONNX model, truncated, or points outside its folder.
        UnsupportedError: a tensor has an element type that no kernel reads.
    """
    from google.protobuf.message import DecodeError

    model = onnx_messages().ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise BundleError(f"{path} is no ONNX model or is damaged: {error}") from error
    _check_names(model.graph)
    if not model.graph.output:
        raise BundleError(f"{path} is no ONNX model: it has no outputs")
    files = ExternalFiles(path.parent, listed)
    check_other_tensors(model, files)
    constants: dict[str, Constant] = {
        tensor.name: _tensor(tensor, files) for tensor in model.graph.initializer if tensor.name
    }
    names = set(constants)
    _check_values(model, [tensor.name for tensor in model.graph.initializer if tensor.name])
    return Graph(
        nodes=_nodes(model.graph.node),
        inputs=[value.name for value in model.graph.input if value.name not in names],
        outputs=[value.name for value in model.graph.output],
        constants=constants,
        source=path,
    )


def _type_name(tensor: Any) -> str:
    kinds = onnx_messages().TensorProto.DataType
    names: dict[int, str] = {number: name for name, number in kinds.items()}
    return names.get(tensor.data_type, str(tensor.data_type)).lower()


def _tensor(tensor: Any, files: ExternalFiles) -> NDArray[Any]:
    dtype = DTYPES.get(tensor.data_type)
    if dtype is None:
        raise UnsupportedError(
            f"tensor '{tensor.name}' has the element type {_type_name(tensor)}, supported are "
            f"{', '.join(kind.__name__ for kind in DTYPES.values())}"
        )
    shape = tuple(tensor.dims)
    if any(size < 0 for size in shape):
        raise BundleError(f"tensor '{tensor.name}' has the impossible shape {shape}")
    length = math.prod(shape) * np.dtype(dtype).itemsize
    if tensor.data_location == EXTERNAL:
        raw: Any = read_external(tensor, files, length)
    elif tensor.HasField("raw_data"):
        raw = np.frombuffer(tensor.raw_data, np.uint8)
    else:
        return _typed(tensor, dtype, shape)
    if len(raw) != length:
        raise BundleError(
            f"tensor '{tensor.name}' of shape {shape} needs {length} bytes and has {len(raw)}"
        )
    values: NDArray[Any] = raw.view(dtype).reshape(shape)
    return values


def _typed(tensor: Any, dtype: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    fields: dict[type[np.generic], str] = {
        np.float32: "float_data",
        np.int64: "int64_data",
        np.float64: "double_data",
    }
    values = getattr(tensor, fields.get(dtype, "int32_data"))
    if len(values) != math.prod(shape):
        raise BundleError(f"tensor '{tensor.name}' of shape {shape} holds {len(values)} elements")
    return np.array(values).astype(dtype).reshape(shape)


def _check_names(graph: Any) -> None:
    """Names go into messages: they are short, and have nothing that a terminal would obey."""
    values = [*graph.input, *graph.output, *graph.initializer]
    names = [value.name for value in values]
    for node in graph.node:
        names += (node.name, node.op_type, node.domain)
        names += node.input
        names += node.output
        names += [attribute.name for attribute in node.attribute]
    for name in {*names}:
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise BundleError(
                f"the graph has a name that cannot be shown, {name[:40]!r}...; expected at most "
                f"{LONGEST_NAME} printable characters"
            )


def _nodes(protos: Any) -> list[Node]:
    """The nodes, under different names: ONNX demands none of them, and nothing depends on them."""
    nodes: list[Node] = []
    names: set[str] = set()
    for index, proto in enumerate(protos):
        name = proto.name or f"node_{index}"
        while name in names:
            name += f"#{index}"
        names.add(name)
        nodes.append(_node(proto, name))
    return nodes


def _check_values(model: Any, names: list[str]) -> None:
    """Every value is made once, and before a node reads it, as ONNX demands."""
    available = set(names)
    if len(available) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BundleError(f"the graph has two tensors called '{twice}'")
    available.update(value.name for value in model.graph.input)
    available.update(tensor.values.name for tensor in model.graph.sparse_initializer)
    for node in model.graph.node:
        for name in node.input:
            if name and name not in available:
                raise BundleError(
                    f"node '{node.name}' ({node.op_type}) reads '{name}', which nothing before it "
                    "makes"
                )
        for name in node.output:
            if name in available:
                raise BundleError(
                    f"node '{node.name}' ({node.op_type}) makes '{name}', which is there already"
                )
        available.update(name for name in node.output if name)


def _node(proto: Any, name: str) -> Node:
    domain = "" if proto.domain in DEFAULT_DOMAINS else f"{proto.domain}."
    attributes = {attribute.name: _attribute(attribute) for attribute in proto.attribute}
    if len(attributes) != len(proto.attribute):
        raise BundleError(f"node '{proto.name}' ({proto.op_type}) has an attribute twice")
    return Node(
        op=domain + proto.op_type,
        name=name,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attrs=attributes,
        metadata={entry.key: entry.value for entry in proto.metadata_props},
    )


def _attribute(attribute: Any) -> Any:
    """Value of a scalar, string or list attribute; None for tensors and subgraphs."""
    reader = ATTRIBUTE_READERS.get(attribute.type)
    return reader(attribute) if reader else None
