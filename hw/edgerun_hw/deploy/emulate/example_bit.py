"""Small bitstreams for tests and the emulator: right in form and checksum, without a design."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgerun_hw.deploy import bitstream
from edgerun_hw.deploy.broker.board.boards import Board
from edgerun_hw.deploy.broker.formats import configuration
from edgerun_hw.overlay.register_map import ID_VALUE, VERSION_VALUE

# Their frames begin with this and two words: what ID and VERSION will read.
MARK = 0x5445_5354


def example_bit(
    board: Board,
    seed: int = 0,
    words: int = 600,
    identity: int = ID_VALUE,
    part: str | None = None,
    version: int = VERSION_VALUE,
) -> bytes:
    """A small .bit file for tests: right in form and checksum, without a design in it."""
    generator = np.random.default_rng(seed)
    frames = generator.integers(0, 1 << 32, words, np.uint32)
    frames[:3] = MARK, identity, version
    stream = [0xFFFFFFFF] * 8 + [configuration.BUS_WIDTH, 0x11220044, 0xFFFFFFFF]
    stream += [configuration.SYNC, 0x20000000]
    crc = 0

    def write(register: int, values: Sequence[int]) -> None:
        nonlocal crc
        stream.append(0x30000000 | register << 13 | (len(values) if len(values) < 2048 else 0))
        if len(values) >= 2048:
            stream.append(0x50000000 | len(values))
        stream.extend(values)
        crc = bitstream.update_crc(crc, register, np.array(values, np.uint32))

    write(configuration.REGISTER_CMD, [configuration.COMMAND_RCRC])
    crc = 0
    write(configuration.REGISTER_IDCODE, [board.idcode])
    write(configuration.REGISTER_FDRI, frames.tolist())
    write(configuration.REGISTER_CRC, [crc])
    write(configuration.REGISTER_CMD, [configuration.COMMAND_DESYNC])
    stream += [0x20000000] * 4
    data = np.array(stream, ">u4").tobytes()
    fields = ("tlmm;UserID=0XFFFFFFFF;Version=test", part or board.device, "2026/01/02", "03:04:05")
    header = bitstream.HEADER
    for letter, text in zip("abcd", fields, strict=True):
        header += letter.encode() + (len(text) + 1).to_bytes(2, "big") + text.encode() + b"\0"
    return header + b"e" + len(data).to_bytes(4, "big") + data


def registers_of(data: bytes) -> list[int]:
    """What ID and VERSION read: as marked in a test bitstream, else as any overlay of ours."""
    for write in configuration.writes(data):
        if write.register == configuration.REGISTER_FDRI and write.stop - write.start >= 12:
            first = [configuration.word(data, write.start + 4 * i) for i in range(3)]
            if first[0] == MARK:
                return first[1:]
    return [ID_VALUE, VERSION_VALUE]
