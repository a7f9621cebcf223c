"""The data file of a model: tensors one after another, each in pieces, with a running digest."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
        try:
            offset = self.append((np.asarray(piece, dtype) for piece in pieces), length)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        return _reference(name, dtype, shape, self.path.name, offset, length)

    def append(self, pieces: Iterable[NDArray[Any]], length: int) -> int:
        """Writes ``length`` bytes at the next suitable multiple and returns their offset.

        Raises:
            ValueError: the pieces have another length.
            OSError: the file cannot be written.
        """
        self._write(bytes(-self.size % (PAGE_BYTES if length >= _LARGE_BYTES else LINE_BYTES)))
        offset = self.size
        for piece in pieces:
            self._write(np.ascontiguousarray(piece).data.cast("B"))
        if self.size - offset != length:
            raise ValueError(f"{self.size - offset} bytes written, {length} expected")
        return offset

    def begin_page(self) -> None:
        """Lets the next tensor start on a page, whatever its size.

        Raises:
            OSError: the file cannot be written.
        """
        self._write(bytes(-self.size % PAGE_BYTES))

    def flush(self) -> None:
        """Lets other readers of the file see everything written so far."""
        self._file.flush()

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


@dataclass(frozen=True, slots=True)
class Stored:
    """Where an initializer's bytes lie.

    Attributes:
        location: name of the data file.
        offset: of the first byte.
        length: in bytes.
    """

    location: str
    offset: int
    length: int


def find_data(tensors: Iterable[onnx.TensorProto]) -> Iterator[Stored]:
    """Tells for each tensor outside the graph where its bytes lie."""
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            where = {entry.key: entry.value for entry in tensor.external_data}
            yield Stored(where["location"], int(where["offset"]), int(where["length"]))
