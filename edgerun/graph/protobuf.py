"""Reads Protocol Buffers' wire format by a table of fields.

Enough for model files, in place of libraries whose import takes longer than reading a graph does.
What the tables do not name is skipped; groups, which ONNX never had, are refused.

Source: Protocol Buffers documentation, "Encoding".
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
WIDTHS = {FIXED64: 8, FIXED32: 4}
MAX_FIELD = (1 << 29) - 1
WORD, SIGN = 1 << 64, 1 << 63
MAX_VARINT_BYTES = 10

Message: TypeAlias = dict[str, Any]


class WireError(ValueError):
    """The bytes are no message."""


class Field(NamedTuple):
    """One field of a message.

    Attributes:
        name: its name.
        kind: ``"int"``, ``"float"``, ``"double"``, ``"text"``, ``"bytes"`` or ``"message"``.
        repeated: whether it holds a list.
        fields: of the message, by number.
    """

    name: str
    kind: str
    repeated: bool = False
    fields: Mapping[int, Field] = MappingProxyType({})


# Of numbers: wire type of a single one, and what a list of them is an array of.
WIRE = {"int": VARINT, "float": FIXED32, "double": FIXED64}
CODES = {"int": "q", "float": "f", "double": "d"}


def read_message(data: bytes, fields: Mapping[int, Field]) -> Message:
    """Reads a whole message.

    Absent fields are absent from the result, repeated ones included. Lists of numbers are arrays.

    Raises:
        WireError: the data is truncated or no message.
    """
    try:
        return _message(data, 0, len(data), fields)
    except IndexError:
        raise WireError("the message is truncated") from None


def _message(data: bytes, place: int, end: int, fields: Mapping[int, Field]) -> Message:
    """Reads one message; written out in one piece, since it is called for every small thing."""
    found: Message = {}
    while place < end:
        tag = data[place]
        place += 1
        if tag > 127:
            tag, place = _varint(data, place - 1)
        start, place = _extent(data, place, tag & 7)
        if place > end:
            raise WireError("the message is truncated")
        field = fields.get(tag >> 3)
        if field is None:
            if not 0 < tag >> 3 <= MAX_FIELD:
                raise WireError(f"there is no field {tag >> 3}")
        elif tag & 7 != BYTES or field.kind in WIRE:
            _add_number(found, field, tag & 7, data, start, place)
        else:
            _add(found, field, data, start, place)
    return found


def _extent(data: bytes, place: int, wire: int) -> tuple[int, int]:
    """Where the value of a field begins and ends."""
    if wire == BYTES:
        size = data[place]
        if size < 128:
            return place + 1, place + 1 + size
        size, place = _varint(data, place)
        return place, place + size
    if wire == VARINT:
        return place, _varint(data, place)[1]
    if wire in WIDTHS:
        return place, place + WIDTHS[wire]
    raise WireError(f"a field has the wire type {wire}")


def _add(found: Message, field: Field, data: bytes, start: int, end: int) -> None:
    """Adds a text, bytes or a message."""
    value: Any
    if field.kind == "message":
        value = _message(data, start, end, field.fields)
    else:
        value = data[start:end].decode() if field.kind == "text" else data[start:end]
    if field.repeated:
        if field.name in found:
            found[field.name].append(value)
        else:
            found[field.name] = [value]
    elif field.kind == "message" and field.name in found:
        _merge(found[field.name], value, field.fields)
    else:
        found[field.name] = value


def _add_number(found: Message, field: Field, wire: int, data: bytes, start: int, end: int) -> None:
    """Adds a number or a list of them; what cannot be one in this place is skipped."""
    if field.kind not in WIRE:
        return
    if wire == WIRE[field.kind]:
        value = _number(data, start, field.kind)
        if not field.repeated:
            found[field.name] = value
        else:
            found.setdefault(field.name, array(CODES[field.kind])).append(value)
    elif wire == BYTES and field.repeated:
        values = _packed(data, start, end, field.kind)
        found.setdefault(field.name, array(CODES[field.kind])).extend(values)


def _merge(into: Message, other: Message, fields: Mapping[int, Field]) -> None:
    """What a second occurrence of a message means: its fields replace, lists go on."""
    for field in fields.values():
        if field.name not in other:
            continue
        if field.repeated and field.name in into:
            into[field.name].extend(other[field.name])
        elif field.kind == "message" and field.name in into:
            _merge(into[field.name], other[field.name], field.fields)
        else:
            into[field.name] = other[field.name]


def _packed(data: bytes, start: int, end: int, kind: str) -> array[Any]:
    values = array(CODES[kind])
    if kind != "int":
        if (end - start) % values.itemsize:
            raise WireError("a list of numbers ends inside one")
        values.frombytes(data[start:end])
        return values
    if data[start:end].isascii():  # numbers of one byte
        values.extend(data[start:end])
        return values
    while start < end:
        value, start = _varint(data, start)
        values.append(value - WORD if value & SIGN else value)
    if start > end:
        raise WireError("a list of numbers ends inside one")
    return values


def _number(data: bytes, start: int, kind: str) -> int | float:
    if kind == "int":
        value, _ = _varint(data, start)
        return value - WORD if value & SIGN else value
    (real,) = struct.unpack_from(f"<{CODES[kind]}", data, start)
    return float(real)


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """An unsigned number of 64 bits, and where it ends."""
    byte = data[place]
    if byte < 128:
        return byte, place + 1
    value = byte & 127
    for count in range(1, MAX_VARINT_BYTES):
        byte = data[place + count]
        value |= (byte & 127) << 7 * count
        if byte < 128:
            return value % WORD, place + count + 1
    raise WireError("a number is too long")
