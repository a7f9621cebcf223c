"""A small complete application, for tests, the fuzzer and people who try the tool out."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

from edgerun_hw.deploy.broker.application.overlay import FAMILIES
from edgerun_hw.deploy.broker.application.references import UNRESOLVED
from edgerun_hw.deploy.broker.board.boards import BY_NAME
from edgerun_hw.deploy.broker.formats.fdt import (
    BEGIN_NODE,
    END,
    END_NODE,
    HEADER,
    LAST_COMPATIBLE,
    MAGIC,
    NO_RESERVATION,
    PROPERTY,
    VERSION,
    Node,
)
from edgerun_hw.deploy.package import DEFAULT_NAME, DEFAULT_SHELL, Sources, make_package

BASES = {"kv260": 0xA000_0000, "ultra96v2": 0xA000_0000, "pynq-z2": 0x43C0_0000}


def sample_tree(firmware: str = f"{DEFAULT_NAME}.bit.bin", board: str = "kv260") -> Node:
    """An overlay like those in hw/boards: region, clock and registers of the design."""
    family, base = FAMILIES[BY_NAME[board].family], BASES[board]
    space = {"#address-cells": _words(family.cells), "#size-cells": _words(family.cells)}
    address = base.to_bytes(4 * family.cells, "big") + 0x1000.to_bytes(4 * family.cells, "big")
    controller, interrupts = family.interrupts
    label, clocks = family.clocks
    clock = Node(
        {
            "#clock-cells": _words(0),
            "compatible": b"xlnx,fclk\0",
            "clocks": _words(UNRESOLVED, clocks[0]),
            "assigned-clocks": _words(UNRESOLVED, clocks[0]),
            "assigned-clock-rates": _words(100_000_000),
            "phandle": _words(1),
        }
    )
    registers = Node(
        {
            "compatible": b"edgerun,tlmm-1.0\0generic-uio\0",
            "reg": address,
            "interrupt-parent": _words(UNRESOLVED),
            "interrupts": _words(0, interrupts[0][0], 4),
            "clocks": _words(1),
        }
    )
    name, bus = f"tlmm@{base:x}", "/fragment@1/__overlay__"
    region = Node({**space, "firmware-name": firmware.encode() + b"\0"})
    fixups = {
        "fpga_full": "/fragment@0:target:0",
        "amba": "/fragment@1:target:0",
        label: f"{bus}/clocking0:clocks:0\0{bus}/clocking0:assigned-clocks:0",
        controller: f"{bus}/{name}:interrupt-parent:0",
    }
    local = Node({}, {name: Node({"clocks": _words(0)})})
    return Node(
        {},
        {
            "fragment@0": _fragment(region),
            "fragment@1": _fragment(Node(space, {"clocking0": clock, name: registers})),
            "__symbols__": Node({"tlmm": f"{bus}/{name}\0".encode()}),
            "__fixups__": Node({key: f"{text}\0".encode() for key, text in fixups.items()}),
            "__local_fixups__": Node({}, {"fragment@1": Node({}, {"__overlay__": local})}),
        },
    )


def sample_overlay(firmware: str = f"{DEFAULT_NAME}.bit.bin", board: str = "kv260") -> bytes:
    """The same as a file."""
    return write_tree(sample_tree(firmware, board))


def write_tree(root: Node) -> bytes:
    """Writes a device tree blob as dtc would."""
    names: dict[str, int] = {}

    def node(name: str, content: Node) -> bytes:
        out = struct.pack(">I", BEGIN_NODE) + _padded(name.encode() + b"\0")
        for key, value in content.properties.items():
            where = names.setdefault(key, sum(len(text) + 1 for text in names))
            out += struct.pack(">3I", PROPERTY, len(value), where) + _padded(value)
        for key, child in content.children.items():
            out += node(key, child)
        return out + struct.pack(">I", END_NODE)

    structure = node("", root) + struct.pack(">I", END)
    strings = b"".join(name.encode() + b"\0" for name in names)
    start = HEADER.size + len(NO_RESERVATION)
    behind = start + len(structure)
    header = HEADER.pack(
        MAGIC,
        behind + len(strings),
        start,
        behind,
        HEADER.size,
        VERSION,
        LAST_COMPATIBLE,
        0,
        len(strings),
        len(structure),
    )
    return header + NO_RESERVATION + structure + strings


def _fragment(content: Node) -> Node:
    return Node({"target": _words(UNRESOLVED)}, {"__overlay__": content})


def _words(*values: int) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def sample_package(
    bit: bytes,
    shell: bytes = DEFAULT_SHELL,
    board: str = "kv260",
    hwh: bytes | None = None,
    release: int = 0,
    name: str = DEFAULT_NAME,
) -> dict[str, bytes]:
    """The files of an application made of a .bit file."""
    overlay = sample_overlay(f"{name}.bit.bin", board)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / file for file in ("x.bit", "x.dtbo", "shell.json")]
        for path, data in zip(paths, (bit, overlay, shell), strict=True):
            path.write_bytes(data)
        if hwh is not None:
            (Path(folder) / "x.hwh").write_bytes(hwh)
        sources = Sources(
            paths[0],
            board,
            paths[1],
            name,
            shell=paths[2],
            base=BASES[board],
            release=release,
        )
        return dict(make_package(sources).files)
