"""Mutations of GGUF files: the header is taken apart, changed and written again.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from typing import Any

from tests.fuzz.mutate.values import EDGES, damage, integer, number, small, text

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9
HEADER_BYTES = 4000


@dataclass
class Entry:
    """A metadata key: its type, and for arrays that of the elements; values as Python's."""

    key: bytes
    kind: int
    value: Any
    element: int = 0
    count: int | None = None  # written instead of the array's length


@dataclass
class TensorEntry:
    """A line of the table of tensors."""

    name: bytes
    dims: list[int]
    kind: int
    offset: int


@dataclass
class GgufFile:
    """A whole file."""

    version: int
    entries: list[Entry]
    tensors: list[TensorEntry]
    data: bytes


def mutate_gguf(data: bytes, draw: random.Random) -> bytes:
    """One to three changes of metadata and tensors; sometimes plain damage to the header."""
    if draw.random() < 0.2:
        return damage(data, draw, HEADER_BYTES)
    file = parse(data)
    for _ in range(draw.choice((1, 1, 2, 3))):
        (_change_entry if draw.random() < 0.6 else _change_tensor)(file, draw)
    if draw.random() < 0.05:
        file.version = draw.choice(EDGES)
    return write(file)


def _change_entry(file: GgufFile, draw: random.Random) -> None:
    index = draw.randrange(len(file.entries))
    entry = file.entries[index]
    how = draw.randrange(14)
    if how == 0:
        del file.entries[index]
    elif how == 1:
        file.entries.append(Entry(entry.key, entry.kind, entry.value, entry.element))
    elif how == 2:
        names = [other.key for other in file.entries] + [text(draw).encode()]
        entry.key = draw.choice(names)
    elif how == 3:
        entry.kind, entry.value = draw.choice(
            ((4, integer(draw)), (6, number(draw)), (STRING, text(draw).encode()), (10, 2**63))
        )
    elif entry.kind == ARRAY:
        change_array(entry, draw)
    elif entry.kind == STRING:
        entry.value = draw.choice((text(draw).encode(), entry.value * 3, b"\xff\xfe"))
    elif entry.kind in (6, 12):
        entry.value = number(draw)
    else:
        entry.value = integer(draw, int(entry.value))


def change_array(entry: Entry, draw: random.Random) -> None:
    """Changes a value of an array, how many there are, or their type."""
    values = list(entry.value)
    how = draw.randrange(5)
    if how == 0 and values:
        index = draw.randrange(len(values))
        if isinstance(values[index], bytes):  # whatever the array's type has become
            values[index] = draw.choice((values[0], b"", b"\xff", text(draw).encode()))
        elif isinstance(values[index], float):
            values[index] = number(draw)
        else:
            values[index] = integer(draw, int(values[index]))
    elif how == 1:
        values = values[: draw.randrange(len(values) + 1)]
    elif how == 2:
        values = values * 2
    elif how == 3:
        entry.count = draw.choice(EDGES)
    else:
        entry.element = draw.choice((*SCALARS, STRING, ARRAY, 13, 99))
    entry.value = values


def _change_tensor(file: GgufFile, draw: random.Random) -> None:
    index = draw.randrange(len(file.tensors))
    tensor = file.tensors[index]
    how = draw.randrange(6)
    if how == 0:
        del file.tensors[index]
    elif how == 1:
        names = [other.name for other in file.tensors] + [b"blk.0.attn_q.bias", b"extra.weight"]
        tensor.name = draw.choice((*names, text(draw).encode()))
    elif how == 2 and tensor.dims:
        axis = draw.randrange(len(tensor.dims))
        tensor.dims[axis] = draw.choice((small, integer))(draw, tensor.dims[axis])
    elif how == 3:
        tensor.dims = draw.choice((tensor.dims[::-1], tensor.dims * 2, [], tensor.dims[:1]))
    elif how == 4:
        tensor.kind = draw.choice((*range(40), *EDGES))
    else:
        tensor.offset = draw.choice((small, integer))(draw, tensor.offset)


def parse(data: bytes) -> GgufFile:
    """Takes a valid file apart."""
    reader = _Reader(data)
    _, version, tensor_count, key_count = reader.unpack("4sIQQ")
    entries = [reader.entry() for _ in range(key_count)]
    tensors = [reader.tensor() for _ in range(tensor_count)]
    return GgufFile(version, entries, tensors, data[-(-reader.at // 32) * 32 :])


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def unpack(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + form, self._data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def string(self) -> bytes:
        (size,) = self.unpack("Q")
        (value,) = self.unpack(f"{size}s")
        return bytes(value)

    def value(self, kind: int) -> Any:
        return self.string() if kind == STRING else self.unpack(SCALARS[kind])[0]

    def entry(self) -> Entry:
        key = self.string()
        (kind,) = self.unpack("I")
        if kind != ARRAY:
            return Entry(key, kind, self.value(kind))
        element, count = self.unpack("IQ")
        return Entry(key, kind, [self.value(element) for _ in range(count)], element)

    def tensor(self) -> TensorEntry:
        name = self.string()
        (axes,) = self.unpack("I")
        dims = list(self.unpack(f"{axes}Q"))
        kind, offset = self.unpack("IQ")
        return TensorEntry(name, dims, kind, offset)


def write(file: GgufFile) -> bytes:
    """Puts a file together; numbers are cut to the width of their type."""
    version = file.version % 2**32
    out = struct.pack("<4sIQQ", b"GGUF", version, len(file.tensors), len(file.entries))
    for entry in file.entries:
        out += _string(entry.key) + struct.pack("<I", entry.kind % 2**32)
        if entry.kind == ARRAY:
            count = len(entry.value) if entry.count is None else entry.count
            out += struct.pack("<IQ", entry.element % 2**32, count % 2**64)
            out += b"".join(_value(entry.element, value) for value in entry.value)
        else:
            out += _value(entry.kind, entry.value)
    for tensor in file.tensors:
        dims = [dim % 2**64 for dim in tensor.dims]
        out += _string(tensor.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        out += struct.pack("<IQ", tensor.kind % 2**32, tensor.offset % 2**64)
    return out + bytes(-len(out) % 32) + file.data


def _string(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _string(value if isinstance(value, bytes) else str(value).encode())
    form = SCALARS.get(kind, "Q")
    if form in "fd":
        return struct.pack("<" + form, value if isinstance(value, float) else 1.0)
    whole = int.from_bytes(value[:8], "little") if isinstance(value, bytes) else value
    whole = int(whole) if whole == whole and abs(whole) < 1e300 else 0
    width = struct.calcsize("<" + form)
    return (whole % 256**width).to_bytes(width, "little")
