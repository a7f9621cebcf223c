"""Walks the packets of a Xilinx configuration stream (UG470 chapter 5, UG570 chapter 9)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

SYNC = 0xAA995566
BUS_WIDTH = 0x000000BB
REGISTER_CRC, REGISTER_FDRI, REGISTER_CMD, REGISTER_IDCODE = 0, 2, 4, 12
COMMAND_RCRC, COMMAND_DESYNC = 7, 13
RESERVED = 0x07FC1800  # of a packet's header: a register's number has five bits of fourteen
SEARCH_BYTES = 4096  # the stream synchronises within its first words
_PADDING = (0xFFFFFFFF, BUS_WIDTH, 0x11220044)


class ConfigurationError(ValueError):
    """The bytes are no configuration stream."""


class Write(NamedTuple):
    """Words written to a register: bytes ``start`` to ``stop`` of the stream."""

    register: int
    start: int
    stop: int


def word(data: bytes | memoryview, offset: int) -> int:
    """The 32-bit word at ``offset``, most significant byte first."""
    return int.from_bytes(data[offset : offset + 4], "big")


def find_sync(data: bytes | memoryview) -> int:
    """Offset of the first word after the synchronisation word.

    Raises:
        ConfigurationError: it is not among the first words.
    """
    for offset in range(0, min(len(data) - 3, SEARCH_BYTES), 4):
        value = word(data, offset)
        if value == SYNC:
            return offset + 4
        if value not in _PADDING:
            raise ConfigurationError(f"word {offset // 4} is {value:#010x} and not padding")
    raise ConfigurationError("there is no synchronisation word")


def writes(data: bytes | memoryview) -> Iterator[Write]:
    """The register writes of a stream in byte order, up to and with its DESYNC command.

    Raises:
        ConfigurationError: a packet is of no known kind or is longer than the stream; or the stream
            ends without DESYNC.
    """
    offset, register = find_sync(data), -1
    while offset + 4 <= len(data):
        header = word(data, offset)
        kind, operation = header >> 29, header >> 27 & 3
        offset += 4
        if kind == 1 and not header & RESERVED:
            register, count = header >> 13 & 31, header & 0x7FF
        elif kind == 2 and register >= 0:
            count = header & 0x7FFFFFF
        else:
            raise ConfigurationError(
                f"word {offset // 4 - 1} is {header:#010x}, which is no packet"
            )
        if operation != 2:
            if count:
                raise ConfigurationError(f"word {offset // 4 - 1} is not a write")
            continue
        if offset + 4 * count > len(data):
            raise ConfigurationError(
                f"the packet at word {offset // 4 - 1} is longer than the rest"
            )
        yield Write(register, offset, offset + 4 * count)
        offset += 4 * count
        if register == REGISTER_CMD and count and word(data, offset - 4) == COMMAND_DESYNC:
            return
    raise ConfigurationError("it ends before its DESYNC command")


def idcode(data: bytes | memoryview) -> int:
    """The IDCODE that the stream is made for.

    Raises:
        ConfigurationError: there is none before the first frame.
    """
    for write in writes(data):
        if write.register == REGISTER_IDCODE and write.stop > write.start:
            return word(data, write.start)
        if write.register == REGISTER_FDRI and write.stop > write.start:
            break
    raise ConfigurationError("there is no IDCODE before its first frame")


def swap_words(data: bytes) -> bytes:
    """Reverses the bytes of each 32-bit word: .bit order to FPGA manager order, and back.

    Raises:
        ConfigurationError: the bytes are not whole words.
    """
    if len(data) % 4:
        raise ConfigurationError(f"its {len(data)} bytes are not whole words")
    swapped = bytearray(len(data))
    for byte in range(4):
        swapped[byte::4] = data[3 - byte :: 4]
    return bytes(swapped)
