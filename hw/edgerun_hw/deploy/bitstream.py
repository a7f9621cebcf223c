"""Reads .bit files, checks what is in them, and turns them into what the FPGA manager takes.

A .bit file is a header (the field letters of the tools' own format, as in "Xilinx .bit files" of
the FPGA FAQ 0026) and a configuration stream (``broker/formats/configuration.py``). The FPGA
manager wants the stream alone, each 32-bit word with its bytes reversed;
``bootgen -process_bitstream bin`` and pynq's ``bit2bin`` write the same.

The CRC of the stream runs over the register's address and each word written to it: 37 bits, low bit
first, polynomial 0x82F63B78 (CRC-32C, reflected). Found to hold on 18 bitstreams that Vivado 2014.4
to 2022.1 made for 7 series and UltraScale+ devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgerun_hw.deploy.broker.formats import configuration
from edgerun_hw.deploy.broker.protocol import MAX_FILE_BYTES
from edgerun_hw.deploy.errors import PackageError

HEADER = bytes.fromhex("00090ff00ff00ff00ff0000001")
FIELDS = {b"a": "design", b"b": "part", b"c": "date", b"d": "time"}
MAX_FIELD_BYTES = 1024
POLYNOMIAL = 0x82F63B78
WORD_BITS, ADDRESS_BITS = 32, 5
MIN_PARALLEL_WORDS = 4096


@dataclass(frozen=True)
class Bitstream:
    """A .bit file.

    Attributes:
        design: name and options, such as ``tlmm;UserID=0XFFFFFFFF;Version=2024.1``.
        part: such as ``xck26-sfvc784-2LV-c``, or ``7z020clg400`` for 7 series.
        date: as the tool wrote it, ``2026/01/31``.
        time: likewise, ``12:34:56``.
        data: the configuration stream, words with their most significant byte first.
    """

    design: str
    part: str
    date: str
    time: str
    data: bytes


@dataclass(frozen=True)
class Configuration:
    """What a configuration stream says about itself.

    Attributes:
        idcode: of the device that it is for.
        checksums: how many CRCs it holds, all of which are right; 0 if it was made without.
    """

    idcode: int
    checksums: int


def parse_bit(content: bytes) -> Bitstream:
    """Takes a .bit file apart.

    Raises:
        PackageError: it is none, is cut off or has more behind its end.
    """
    if not content.startswith(HEADER):
        raise PackageError("the bitstream has no .bit header: pass the .bit file that Vivado wrote")
    offset, fields = len(HEADER), dict.fromkeys(FIELDS.values(), "")
    while True:
        letter = content[offset : offset + 1]
        if letter == b"e":
            break
        if letter not in FIELDS:
            raise PackageError(f"the .bit header has an unknown field {letter!r} at byte {offset}")
        size = int.from_bytes(content[offset + 1 : offset + 3], "big")
        raw = content[offset + 3 : offset + 3 + size]
        if not 0 < size <= MAX_FIELD_BYTES or len(raw) != size or raw[-1:] != b"\0":
            raise PackageError(f"field {letter.decode()!r} of the .bit header is cut off")
        fields[FIELDS[letter]] = _text(raw[:-1], letter)
        offset += 3 + size
    size = int.from_bytes(content[offset + 1 : offset + 5], "big")
    data = content[offset + 5 :]
    if len(data) != size:
        raise PackageError(
            f"the bitstream has {len(data)} bytes where its header says {size}: it is cut off or "
            "has been changed"
        )
    if size % 4 or not 0 < size <= MAX_FILE_BYTES:
        raise PackageError(f"a bitstream of {size} bytes is not whole words or too large")
    return Bitstream(fields["design"], fields["part"], fields["date"], fields["time"], data)


def to_bin(data: bytes) -> bytes:
    """The stream as the FPGA manager takes it; its own inverse.

    Raises:
        PackageError: it is not whole words.
    """
    try:
        return configuration.swap_words(data)
    except configuration.ConfigurationError as error:
        raise PackageError(f"the bitstream is unusable: {error}") from None


def check(data: bytes) -> Configuration:
    """Walks through a configuration stream and computes its checksums.

    Args:
        data: the stream, most significant byte first.

    Raises:
        PackageError: it is no stream, is incomplete, or a checksum is wrong.
    """
    words = np.frombuffer(data, ">u4").astype(np.uint32)
    crc, checksums, idcode, has_frames = 0, 0, 0, False
    try:
        for register, start, stop in configuration.writes(data):
            values = words[start // 4 : stop // 4]
            if not len(values):
                continue  # only names the register that a longer packet writes to
            if register == configuration.REGISTER_CRC:
                if values[0] != crc:
                    raise PackageError(
                        f"the bitstream is damaged: its checksum is {crc:#010x} and should be "
                        f"{values[0]:#010x}"
                    )
                crc, checksums = 0, checksums + 1
                continue
            crc = update_crc(crc, register, values)
            if register == configuration.REGISTER_CMD and values[-1] == configuration.COMMAND_RCRC:
                crc = 0
            elif register == configuration.REGISTER_IDCODE:
                idcode = int(values[0])
            has_frames |= register == configuration.REGISTER_FDRI
    except configuration.ConfigurationError as error:
        raise PackageError(f"the bitstream is unusable: {error}") from None
    if not idcode or not has_frames:
        raise PackageError("the bitstream has no IDCODE or no frames: it configures nothing")
    return Configuration(idcode, checksums)


def update_crc(crc: int, register: int, values: npt.NDArray[np.uint32]) -> int:
    """The checksum after writing ``values`` to ``register``.

    Long writes are cut into equal lanes that advance together. The checksum is linear in what was
    before, so that each lane starts from zero and they are joined by a matrix over GF(2).
    """
    lanes = int(len(values) ** 0.5) if len(values) >= MIN_PARALLEL_WORDS else 0
    length = len(values) // lanes if lanes else 0
    if lanes:
        state = np.zeros(lanes, np.uint32)
        state[0] = crc
        for column in np.ascontiguousarray(values[: lanes * length].reshape(lanes, length).T):
            state = _advance(state ^ column, register)
        power = _power(length)
        crc = int(state[0])
        for end in state[1:].tolist():
            crc = _apply(power, crc) ^ end
    for value in values[lanes * length :].tolist():
        crc = int(_advance_one(crc ^ value, register))
    return crc


def _advance_one(state: int, register: int) -> int:
    for _ in range(4):
        state = _BYTES[state & 255] ^ state >> 8
    return _ADDRESSES[(state ^ register) & 31] ^ state >> ADDRESS_BITS


def _advance(state: npt.NDArray[np.uint32], register: int) -> npt.NDArray[np.uint32]:
    for _ in range(4):
        state = _BYTES_ARRAY[state & 255] ^ state >> 8
    state = _ADDRESSES_ARRAY[(state ^ register) & 31] ^ state >> ADDRESS_BITS
    return state


def _power(words: int) -> list[int]:
    """Images of the 32 bits of a state after ``words`` zero words written to register 0."""
    result = [1 << bit for bit in range(WORD_BITS)]
    square = [_advance_one(1 << bit, 0) for bit in range(WORD_BITS)]
    while words:
        if words & 1:
            result = [_apply(square, image) for image in result]
        square = [_apply(square, image) for image in square]
        words >>= 1
    return result


def _apply(matrix: list[int], state: int) -> int:
    result = 0
    while state:
        low = state & -state
        result ^= matrix[low.bit_length() - 1]
        state ^= low
    return result


def _table(bits: int) -> list[int]:
    table = list(range(1 << bits))
    for _ in range(bits):
        table = [value >> 1 ^ (POLYNOMIAL if value & 1 else 0) for value in table]
    return table


_BYTES, _ADDRESSES = _table(8), _table(ADDRESS_BITS)
_BYTES_ARRAY = np.array(_BYTES, np.uint32)
_ADDRESSES_ARRAY = np.array(_ADDRESSES, np.uint32)


def _text(raw: bytes, letter: bytes) -> str:
    text = raw.decode("ascii", "replace")
    if not text.isprintable() or "\ufffd" in text:
        raise PackageError(f"field {letter.decode()!r} of the .bit header is no text")
    return text
