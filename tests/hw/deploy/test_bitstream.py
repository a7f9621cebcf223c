"""Bitstreams are read, checked and converted; broken ones are refused."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from edgerun_hw.deploy import bitstream
from edgerun_hw.deploy.broker.board.boards import BOARDS
from edgerun_hw.deploy.broker.formats import configuration
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.errors import PackageError

KV260 = BOARDS["kv260"]
BIT = example_bit(KV260)


def reference_crc(crc: int, register: int, values: list[int]) -> int:
    """Bit by bit: address and data as 37 bits, low bit first."""
    for value in values:
        message = register << 32 | value
        for _ in range(37):
            crc = crc >> 1 ^ (0x82F63B78 if (crc ^ message) & 1 else 0)
            message >>= 1
    return crc


def test_header_and_stream_are_taken_apart() -> None:
    parsed = bitstream.parse_bit(BIT)
    assert (parsed.part, parsed.date, parsed.time) == ("xck26-sfvc784", "2026/01/02", "03:04:05")
    assert parsed.design.startswith("tlmm;")
    assert BIT.endswith(parsed.data) and configuration.find_sync(parsed.data) == 48


@pytest.mark.parametrize("count", [0, 1, 5, 4095, 4096, 4097, 5000, 20_011])
def test_checksum_is_the_one_computed_bit_by_bit(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 1 << 32, count, np.uint32)
    checksum = bitstream.update_crc(0x1234_5678, 2, values)
    assert checksum == reference_crc(0x1234_5678, 2, values.tolist())


def test_every_shorter_file_is_refused() -> None:
    for size in [*range(200), *range(200, len(BIT), 97)]:
        with pytest.raises(PackageError):
            bitstream.check(bitstream.parse_bit(BIT[:size]).data)


def test_every_changed_bit_of_what_configures_is_found() -> None:
    data = bitstream.parse_bit(BIT).data
    start, stop = configuration.find_sync(data), len(data) - 4 * 4
    generator = np.random.default_rng(3)
    for bit in generator.choice(8 * (stop - start), 400, replace=False).tolist():
        changed = bytearray(data)
        changed[start + bit // 8] ^= 1 << bit % 8
        if changed[start + bit // 8 & ~3 : (start + bit // 8 & ~3) + 4] == data[start : start + 4]:
            continue
        try:
            checked = bitstream.check(bytes(changed))
        except PackageError:
            continue
        # What neither is written nor carries a checksum: the unused bits of a no-operation.
        word = start + bit // 8 & ~3
        assert data[word : word + 4] == bytes.fromhex("20000000"), (bit, checked)


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.name)
def test_idcode_is_the_boards(board) -> None:
    data = bitstream.parse_bit(example_bit(board)).data
    assert board.accepts_idcode(bitstream.check(data).idcode)
    assert configuration.idcode(data) == board.idcode


def test_conversion_reverses_the_bytes_of_each_word() -> None:
    data = bitstream.parse_bit(BIT).data
    expected = np.frombuffer(data, "i4").byteswap().tobytes()  # as pynq's bit2bin does
    assert bitstream.to_bin(data) == expected
    assert bitstream.to_bin(expected) == data


@pytest.mark.skipif(not shutil.which("bootgen"), reason="bootgen is not installed")
@pytest.mark.parametrize(("name", "arch"), [("kv260", "zynqmp"), ("pynq-z2", "zynq")])
def test_conversion_agrees_with_bootgen(tmp_path: Path, name: str, arch: str) -> None:
    parts = {"kv260": "xck26-sfvc784-2LV-c", "pynq-z2": "7z020clg400"}
    bit = example_bit(BOARDS[name], part=parts[name])
    (tmp_path / "x.bit").write_bytes(bit)
    (tmp_path / "x.bif").write_text("all:\n{\n x.bit\n}\n")
    command = ["bootgen", "-image", "x.bif", "-arch", arch, "-process_bitstream", "bin", "-w"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    ours = bitstream.to_bin(bitstream.parse_bit(bit).data)
    theirs = (tmp_path / "x.bit.bin").read_bytes()
    # For Zynq-7000 bootgen fills up with no-operations.
    assert theirs[: len(ours)] == ours
    assert set(theirs[len(ours) :]) <= {0x00, 0x20}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b"PK" + b[2:], "no .bit header"),
        (lambda b: b[:13] + b"z" + b[14:], "unknown field"),
        (lambda b: b[:13] + b"a\xff\xff" + b[16:], "cut off"),
        (lambda b: b + b"\0", "header says"),
        (lambda b: b.replace(bytes.fromhex("aa995566"), bytes(4)), "and not padding"),
        (lambda b: b.replace(b"xck26-sfvc784\0", b"xck26\xffsfvc784\0"), "no text"),
    ],
)
def test_message_says_what_is_wrong(change, message: str) -> None:
    with pytest.raises(PackageError, match=message):
        bitstream.check(bitstream.parse_bit(change(BIT)).data)


def test_stream_that_ends_without_desync_is_refused() -> None:
    data = bitstream.parse_bit(BIT).data
    with pytest.raises(PackageError, match="DESYNC"):
        bitstream.check(data[: -4 * 6])


@pytest.mark.parametrize("register", [0, 2, 4, 12])
def test_writes_of_nothing_change_nothing(register: int) -> None:
    """CRC, FDRI, CMD and IDCODE."""
    data = bitstream.parse_bit(BIT).data
    start = configuration.find_sync(data)
    packet = (1 << 29 | 2 << 27 | register << 13).to_bytes(4, "big")
    changed = data[:start] + packet + data[start:]
    assert bitstream.check(changed) == bitstream.check(data)


@pytest.mark.pynq
def test_conversion_agrees_with_pynq(tmp_path: Path) -> None:
    (tmp_path / "x.bit").write_bytes(BIT)
    code = (
        "import sys; from pynq.pl_server.embedded_device import bit2bin;"
        "sys.stdout.buffer.write(bit2bin(open(sys.argv[1], 'rb').read()))"
    )
    python = os.environ["EDGERUN_PYNQ_PYTHON"]
    command = [python, "-c", code, str(tmp_path / "x.bit")]
    done = subprocess.run(command, capture_output=True, check=True, cwd=tmp_path)
    assert done.stdout == bitstream.to_bin(bitstream.parse_bit(BIT).data)
