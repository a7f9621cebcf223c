"""Parser of GGUF headers: metadata and the table of tensors.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Written here, rather than taken
from the gguf package, because that one makes several Python objects per array element before it
looks at the file's size.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint.codecs import (
    GGUF,
    GGUF_UNSUPPORTED,
    TL2_NAME,
    TL2_NUMBER,
    TL2_SCALE,
    Codec,
    supported,
)
from edgerun_export.checkpoint.files import ByteFile
from edgerun_export.checkpoint.stored import MAX_TENSORS, check_ranges, check_shape, encoded_bytes

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_KEYS = 1 << 16
# All array elements of a file together. The largest vocabularies have about 1.3 million (tokens,
# scores, types and merges); as Python strings this many take about 250 MB.
_MAX_ELEMENTS = 1 << 22
_MAX_NAME_BYTES = 1 << 16
_WINDOW_BYTES = 1 << 20
_MAX_AXES = 4

# Metadata value types: number -> NumPy dtype; 7 is bool, 8 string, 9 array.
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_STRING, _ARRAY = 8, 9
_Range = tuple[int, int, str]  # first byte, end, tensor name


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor as the file describes it.

    Attributes:
        name: llama.cpp's name.
        shape: outermost axis first (the file has it the other way round).
        codec: storage type.
        offset: first byte in the file.
        file: where it lies.
    """

    name: str
    shape: tuple[int, ...]
    codec: Codec
    offset: int
    file: ByteFile


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata values by key (arrays as lists of ``str`` or NumPy arrays) and tensors by name."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_header(file: ByteFile) -> GgufHeader:
    """Parse and check a header; no tensor data is read.

    Raises:
        CheckpointError: the file is truncated, damaged or not GGUF.
        UnsupportedError: its version, byte order or a tensor's type is not supported.
    """
    cursor = _Cursor(file)
    tensor_count, key_count = _preamble(cursor)
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.string(_MAX_NAME_BYTES)
        if key in metadata:
            raise CheckpointError(f"'{file.name}' gives metadata key '{key}' twice")
        metadata[key] = cursor.value(cursor.u32())
    entries = [_tensor_entry(cursor) for _ in range(tensor_count)]
    alignment = _alignment(metadata, file.name)
    data = -(-cursor.offset // alignment) * alignment
    tensors, ranges = _place(entries, data, file)
    _check_tails(ranges, tensors, alignment)
    return GgufHeader(metadata, tensors)


class _Cursor:
    """Reads values one after another through a window, each checked against the file's size."""

    def __init__(self, file: ByteFile) -> None:
        self._file = file
        self._window = b""
        self._start = 0
        self._elements = 0
        self.offset = 0

    @property
    def file_name(self) -> str:
        return self._file.name

    def take(self, count: int) -> bytes:
        available = self._file.size_bytes - self.offset
        if count > available:
            raise CheckpointError(
                f"'{self._file.name}' is truncated or damaged: its header asks for {count} bytes "
                f"at offset {self.offset}, and {available} are left"
            )
        at = self.offset - self._start
        if at + count > len(self._window):
            self._start, at = self.offset, 0
            self._window = self._file.read(
                self.offset, min(available, max(count, _WINDOW_BYTES))
            ).tobytes()
        self.offset += count
        return self._window[at : at + count]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def string(self, limit: int | None = None) -> str:
        length = self.u64()
        if limit is not None and length > limit:
            raise CheckpointError(
                f"'{self._file.name}' has a name of {length} bytes; at most {limit} are accepted"
            )
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"'{self._file.name}' holds text that is not UTF-8 before offset {self.offset}"
            ) from error

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.u32(), self.u64())
        return self._numbers(kind, 1)[0].item()

    def _array(self, kind: int, count: int) -> list[str] | np.ndarray[Any, Any]:
        self._elements += count
        if self._elements > _MAX_ELEMENTS:
            raise CheckpointError(
                f"'{self._file.name}' has more than {_MAX_ELEMENTS} metadata array elements"
            )
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        return self._numbers(kind, count)

    def _numbers(self, kind: int, count: int) -> np.ndarray[Any, Any]:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise CheckpointError(
                f"'{self._file.name}' has metadata of unknown type {kind} at offset {self.offset}"
            )
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)


def _preamble(cursor: _Cursor) -> tuple[int, int]:
    if cursor.take(4) != MAGIC:
        raise CheckpointError(
            f"'{cursor.file_name}' does not begin with 'GGUF', so it is no GGUF file"
        )
    version = cursor.u32()
    if version not in _VERSIONS:
        # A big-endian file has its version in the upper bytes.
        order = " (a big-endian file?)" if version & 0xFFFF == 0 else ""
        raise UnsupportedError(f"GGUF version {version}{order} is not supported; 2 and 3 are")
    tensor_count, key_count = struct.unpack("<2Q", cursor.take(16))
    if tensor_count > MAX_TENSORS or key_count > _MAX_KEYS:
        raise CheckpointError(
            f"the header announces {tensor_count} tensors and {key_count} metadata keys; at most "
            f"{MAX_TENSORS} and {_MAX_KEYS} are accepted"
        )
    return tensor_count, key_count


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Read (name, shape outermost first, type number, offset within the data)."""
    name = cursor.string(_MAX_NAME_BYTES)
    axes = cursor.u32()
    if not 1 <= axes <= _MAX_AXES:
        raise CheckpointError(f"tensor '{name}' has {axes} axes; expected 1 to {_MAX_AXES}")
    shape = tuple(cursor.u64() for _ in range(axes))[::-1]
    return name, shape, cursor.u32(), cursor.u64()


def _alignment(metadata: Mapping[str, Any], file_name: str) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 0 < value <= 1 << 20 or value & (value - 1):
        raise CheckpointError(
            f"'{file_name}' has general.alignment {str(value)[:40]}; expected a power of two"
        )
    return value


def _place(
    entries: list[tuple[str, tuple[int, ...], int, int]], data: int, file: ByteFile
) -> tuple[dict[str, GgufTensor], list[_Range]]:
    tensors: dict[str, GgufTensor] = {}
    ranges: list[_Range] = []
    names = {name for name, *_ in entries}
    for name, shape, kind, offset in entries:
        codec = _codec(name, kind, names)
        check_shape(name, shape, codec)
        begin, size = data + offset, encoded_bytes(shape, codec)
        if name in tensors:
            raise CheckpointError(f"'{file.name}' has tensor '{name}' twice")
        if begin + size > file.size_bytes:
            raise CheckpointError(
                f"'{file.name}' is truncated: tensor '{name}' {list(shape)} ends at byte "
                f"{begin + size} of a file of {file.size_bytes}; download it again"
            )
        tensors[name] = GgufTensor(name, shape, codec, begin, file)
        ranges.append((begin, begin + size, name))
    check_ranges(ranges, file.name)
    return tensors, ranges


def _check_tails(ranges: list[_Range], tensors: Mapping[str, GgufTensor], alignment: int) -> None:
    """Checks, of tensors with a scale at their end, that the next one begins there."""
    for (begin, end, name), (following, _, _) in pairwise(ranges):
        if tensors[name].codec.tail_bytes and following - end >= alignment:
            raise CheckpointError(
                f"tensor '{name}' of type {tensors[name].codec.name} has {following - begin} bytes "
                f"in the file; expected {end - begin}, codes and one scale, so it is laid out in a "
                "way that is not known"
            )


def _codec(name: str, kind: int, names: Container[str]) -> Codec:
    # The number means MXFP4 elsewhere.
    is_tl2 = kind == TL2_NUMBER and name + TL2_SCALE in names
    codec = None if is_tl2 else GGUF.get(kind)
    if codec is None:
        type_name = TL2_NAME if is_tl2 else GGUF_UNSUPPORTED.get(kind, "unknown")
        raise UnsupportedError(
            f"tensor '{name}' has GGUF type {kind} ({type_name}); supported: {supported(GGUF)}; "
            "take a file of one of these, or the checkpoint that this one was made of"
        )
    return codec
