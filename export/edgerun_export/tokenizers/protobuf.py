"""The little of protocol buffers that a sentencepiece model needs.

Encoding: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from edgerun.errors import CheckpointError

_FIXED = {1: 8, 5: 4}


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Walk the fields of a message.

    Args:
        data: an encoded message.

    Yields:
        Field number and value: an ``int`` for varints, ``bytes`` for all else (4 or 8 of them for
        fixed-width numbers).

    Raises:
        CheckpointError: the message is truncated or uses groups.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in _FIXED:
            size = _FIXED[wire]
        else:
            raise CheckpointError(f"the sentencepiece model has a field of wire type {wire}")
        if size > len(data) - at:
            raise CheckpointError("the sentencepiece model is truncated")
        yield number, data[at : at + size]
        at += size


def float32(value: int | bytes) -> float:
    """Read a ``float`` field; anything else than 4 bytes is an error."""
    if not isinstance(value, bytes) or len(value) != 4:
        raise CheckpointError("the sentencepiece model has a score that is no float")
    number: float = struct.unpack("<f", value)[0]
    return number


def signed(value: int | bytes) -> int:
    """Read an ``int32`` field, which stands as a 64-bit two's complement varint."""
    if not isinstance(value, int):
        raise CheckpointError("the sentencepiece model has text where a number was expected")
    return value - (1 << 64) if value >> 63 else value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise CheckpointError("the sentencepiece model is truncated")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
    raise CheckpointError("the sentencepiece model has a number of more than 10 bytes")
