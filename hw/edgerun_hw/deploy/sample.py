"""A small complete application, for tests, the fuzzer and people who try the tool out."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

from edgerun_hw.deploy.devicetree import BEGIN_NODE, END, END_NODE, MAGIC, PROPERTY, VERSION
from edgerun_hw.deploy.package import DEFAULT_NAME, DEFAULT_SHELL, Sources, make_package

BASES = {"kv260": 0xA000_0000, "ultra96v2": 0xA000_0000, "pynq-z2": 0x43C0_0000}


def sample_overlay(firmware: str = f"{DEFAULT_NAME}.bit.bin") -> bytes:
    """A device tree overlay that does nothing but name a bitstream, as dtc would write it."""
    names = b"target-path\0firmware-name\0"
    body = b""
    for name in ("", "fragment@0"):
        body += struct.pack(">I", BEGIN_NODE) + _padded(name.encode() + b"\0")
    body += _property(0, b"/\0")
    body += struct.pack(">I", BEGIN_NODE) + _padded(b"__overlay__\0")
    body += _property(len(b"target-path\0"), firmware.encode() + b"\0")
    body += struct.pack(">4I", END_NODE, END_NODE, END_NODE, END)
    start = 40 + 16
    sizes = (start + len(body) + len(names), start, start + len(body), 40, VERSION, 16, 0)
    header = struct.pack(">10I", MAGIC, *sizes, len(names), len(body))
    return header + bytes(16) + body + names


def _property(name: int, value: bytes) -> bytes:
    return struct.pack(">3I", PROPERTY, len(value), name) + _padded(value)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def sample_package(
    bit: bytes, shell: bytes = DEFAULT_SHELL, board: str = "kv260", hwh: bytes | None = None
) -> dict[str, bytes]:
    """The files of an application made of a .bit file."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("x.bit", "x.dtbo", "shell.json")]
        for path, data in zip(paths, (bit, sample_overlay(), shell), strict=True):
            path.write_bytes(data)
        if hwh is not None:
            (Path(folder) / "x.hwh").write_bytes(hwh)
        sources = Sources(paths[0], board, paths[1], shell=paths[2], base=BASES[board])
        return dict(make_package(sources).files)
