"""Reads ``model.onnx`` into a ``Graph`` whose constants are views of memory-mapped files.

A hostile file must not make us read outside its folder or allocate more than it holds: external
data names one regular file in the same folder, ranges are checked against its size, and tensors
are never copied, but for small ones that are lists of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
from edgerun.graph.ir import Constant, Graph
from edgerun.graph.onnx_nodes import check_names, check_values, read_nodes
from edgerun.graph.onnx_schema import check_parts, onnx_messages

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
ITEM_BYTES = {dtype: np.dtype(dtype).itemsize for dtype in DTYPES.values()}
MAX_MODEL_BYTES = 2**31 - 1  # a protobuf message cannot be larger
MOST_AXES, MOST_ELEMENTS = 64, 1 << 48  # of an array of NumPy; more than any machine maps


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

    check_parts(data)
    model = onnx_messages().ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise BundleError(f"{path} is no ONNX model or is damaged: {error}") from error
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    check_names([*tensors, *(value.name for value in (*graph.input, *graph.output))])
    if not graph.output:
        raise BundleError(f"{path} is no ONNX model: it has no outputs")
    files = ExternalFiles(path.parent, listed)
    check_other_tensors(model, files)
    if len(tensors) != len(graph.initializer):
        _check_unlike(graph)
    tensors.pop("", None)
    constants: dict[str, Constant] = {
        name: _tensor(name, tensor, files) for name, tensor in tensors.items()
    }
    nodes = read_nodes(graph.node, files)
    sparse = (tensor.values.name for tensor in graph.sparse_initializer)
    check_values(nodes, [*constants, *(value.name for value in graph.input), *sparse])
    return Graph(
        nodes=nodes,
        inputs=[value.name for value in graph.input if value.name not in constants],
        outputs=[value.name for value in graph.output],
        constants=constants,
        source=path,
    )


def _check_unlike(graph: Any) -> None:
    """No two constants have the same name; what has none is read by nobody.

    Raises:
        BundleError: two have.
    """
    names = [tensor.name for tensor in graph.initializer if tensor.name]
    if len({*names}) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BundleError(f"the graph has two tensors called '{twice}'")


def _type_name(tensor: Any) -> str:
    kinds = onnx_messages().TensorProto.DataType
    names: dict[int, str] = {number: name for name, number in kinds.items()}
    return names.get(tensor.data_type, str(tensor.data_type)).lower()


def _tensor(name: str, tensor: Any, files: ExternalFiles) -> NDArray[Any]:
    dtype = DTYPES.get(tensor.data_type)
    if dtype is None:
        raise UnsupportedError(
            f"tensor '{name}' has the element type {_type_name(tensor)}, supported are "
            f"{', '.join(kind.__name__ for kind in DTYPES.values())}"
        )
    shape = _shape(name, tensor)
    length = math.prod(shape) * ITEM_BYTES[dtype]
    if tensor.data_location == EXTERNAL:
        raw: Any = read_external(tensor, files, length)
    elif tensor.HasField("raw_data"):
        raw = np.frombuffer(tensor.raw_data, np.uint8)
    else:
        return _typed(tensor, dtype, shape)
    if len(raw) != length:
        raise BundleError(
            f"tensor '{name}' of shape {shape} needs {length} bytes and has {len(raw)}"
        )
    return np.ndarray(shape, dtype, raw)


def _shape(name: str, tensor: Any) -> tuple[int, ...]:
    """A tensor's sizes, of which a product is quickly formed.

    Raises:
        BundleError: there are too many, or one is negative or too large.
    """
    if len(tensor.dims) > MOST_AXES:
        raise BundleError(
            f"tensor '{name}' has {len(tensor.dims)} axes; expected at most {MOST_AXES}: the file "
            "is damaged or altered, copy or export it again"
        )
    shape = tuple(tensor.dims[:])
    # Of an empty tensor, NumPy multiplies the sizes that are not 0.
    if min(shape, default=0) < 0 or math.prod(filter(None, shape)) > MOST_ELEMENTS:
        raise BundleError(f"tensor '{name}' has the impossible shape {shape}")
    return shape


def _typed(tensor: Any, dtype: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    """A tensor that is a list of numbers; halves are those of their bits (onnx.proto)."""
    fields: dict[type[np.generic], tuple[str, type[np.generic]]] = {
        np.float32: ("float_data", np.float32),
        np.int64: ("int64_data", np.int64),
        np.float64: ("double_data", np.float64),
        np.float16: ("int32_data", np.uint16),
    }
    field, stored = fields.get(dtype, ("int32_data", np.int32))
    values = getattr(tensor, field)
    if len(values) != math.prod(shape):
        raise BundleError(f"tensor '{tensor.name}' of shape {shape} holds {len(values)} elements")
    try:
        array = np.fromiter(values, stored, len(values))  # copied once
    except OverflowError as error:
        raise BundleError(f"tensor '{tensor.name}' holds a half of more than 16 bits") from error
    array = array.view(dtype) if dtype is np.float16 else array.astype(dtype, copy=False)
    return array.reshape(shape)
