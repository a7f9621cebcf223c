"""Writes ``model.onnx.data``: tensors one after another, each in pieces, with a running digest."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

# Large tensors start on a page, so that a mapped one can be advised or locked by itself; small
# ones on a cache line, because pages would double the size of a small model.
PAGE_BYTES = 4096
LINE_BYTES = 64
_LARGE_BYTES = 1 << 20


class DataWriter:
    """The external data file of a model, written front to back.

    Example:
        >>> with DataWriter(Path("model.onnx.data")) as data:
        ...     proto = data.add("w", np.dtype(np.float32), (2, 3), [np.ones((2, 3), np.float32)])

    Attributes:
        path: the file.
        size: bytes written so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._digest = hashlib.sha256()
        self._file = path.open("xb")

    def __enter__(self) -> DataWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        """Hexadecimal digest of everything written."""
        return self._digest.hexdigest()

    def add(
        self,
        name: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        pieces: Iterable[NDArray[Any]],
    ) -> onnx.TensorProto:
        """Writes a tensor whose ``pieces`` follow each other in row-major order.

        Returns:
            the initializer that refers to the written bytes.

        Raises:
            ValueError: the pieces do not make up ``shape``.
            OSError: the file cannot be written.
        """
        length = math.prod(shape) * dtype.itemsize
        self._write(bytes(-self.size % (PAGE_BYTES if length >= _LARGE_BYTES else LINE_BYTES)))
        offset = self.size
        for piece in pieces:
            self._write(np.ascontiguousarray(piece, dtype).data.cast("B"))
        if self.size - offset != length:
            raise ValueError(f"{name}: {self.size - offset} bytes written, {length} expected")
        return _reference(name, dtype, shape, self.path.name, offset, length)

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)


def _reference(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...], location: str, offset: int, length: int
) -> onnx.TensorProto:
    tensor = onnx.TensorProto(
        name=name, data_type=onnx.helper.np_dtype_to_tensor_dtype(dtype), dims=shape
    )
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
