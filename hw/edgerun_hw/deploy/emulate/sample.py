"""A small complete application, for tests, the fuzzer and people who try the tool out."""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgerun_hw.build.boards import load_board
from edgerun_hw.deploy.broker.application.overlay import FAMILIES
from edgerun_hw.deploy.broker.application.references import UNRESOLVED
from edgerun_hw.deploy.broker.board.boards import BOARDS
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
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.kernel import PLL_HZ
from edgerun_hw.deploy.package import DEFAULT_NAME, DEFAULT_SHELL, Sources, make_package
from edgerun_hw.overlay.register_map import VLNV

HERTZ, CLOCK = 100_000_000, "edgerun-clock0"
PROCESSORS = {"zynqmp": "zynq_ultra_ps_e", "zynq7": "processing_system7"}


def base_of(board: str) -> int:
    """Where the registers of our designs are on a board."""
    return load_board(board).control_address


def _parameters(family: str, hertz: int) -> dict[str, object]:
    """What a .hwh says of the first clock."""
    divisor = PLL_HZ[family] // hertz
    rate = f"{(hertz - 2) / 1e6:.6f}"  # as the PLLs of real boards make it
    if family == "zynq7":
        return {
            "PCW_FPGA_FCLK0_ENABLE": 1,
            "PCW_FCLK0_PERIPHERAL_DIVISOR0": divisor,
            "PCW_FCLK0_PERIPHERAL_DIVISOR1": 1,
            "PCW_FCLK0_PERIPHERAL_CLKSRC": "IO PLL",
            "PCW_ACT_FPGA0_PERIPHERAL_FREQMHZ": rate,
        }
    clock = "PSU__CRL_APB__PL0_REF_CTRL__"
    return {
        "PSU__FPGA_PL0_ENABLE": 1,
        f"{clock}DIVISOR0": divisor,
        f"{clock}DIVISOR1": 1,
        f"{clock}SRCSEL": "IOPLL",
        f"{clock}ACT_FREQMHZ": rate,
    }


def sample_hwh(board: str = "kv260", hertz: int = HERTZ) -> bytes:
    """A hardware description with what deployment looks at."""
    family, base = BOARDS[board].family, base_of(board)
    parameters = "".join(
        f'<PARAMETER NAME="{name}" VALUE="{value}"/>'
        for name, value in _parameters(family, hertz).items()
    )
    return (
        f'<EDKSYSTEM><MODULES><MODULE MODTYPE="{PROCESSORS[family]}">'
        f"<PARAMETERS>{parameters}</PARAMETERS>"
        f'<MEMORYMAP><MEMRANGE INSTANCE="tlmm" BASEVALUE="{base:#x}"/></MEMORYMAP></MODULE>'
        f'<MODULE INSTANCE="tlmm" VLNV="{VLNV}"/></MODULES></EDKSYSTEM>'
    ).encode()


def sample_tree(
    firmware: str = f"{DEFAULT_NAME}.bit.bin", board: str = "kv260", hertz: int = HERTZ
) -> Node:
    """An overlay like those in hw/boards: region, clock and registers of the design."""
    family, base = FAMILIES[BOARDS[board].family], base_of(board)
    space = {"#address-cells": _words(family.cells), "#size-cells": _words(family.cells)}
    address = base.to_bytes(4 * family.cells, "big") + 0x1000.to_bytes(4 * family.cells, "big")
    label, clocks = family.clocks
    clock = Node(
        {
            "#clock-cells": _words(0),
            "compatible": b"xlnx,fclk\0",
            "clocks": _words(UNRESOLVED, clocks[0]),
            "assigned-clocks": _words(UNRESOLVED, clocks[0]),
            "assigned-clock-rates": _words(hertz),
            "phandle": _words(1),
        }
    )
    registers = Node(
        {
            "compatible": b"edgerun,tlmm-1.0\0generic-uio\0",
            "reg": address,
            "clocks": _words(1),
        }
    )
    name, bus = f"edgerun-tlmm@{base:x}", "/fragment@1/__overlay__"
    region = Node({**space, "firmware-name": firmware.encode() + b"\0"})
    fixups = {
        "fpga_full": "/fragment@0:target:0",
        "amba": "/fragment@1:target:0",
        label: f"{bus}/{CLOCK}:clocks:0\0{bus}/{CLOCK}:assigned-clocks:0",
    }
    local = Node({}, {name: Node({"clocks": _words(0)})})
    return Node(
        {},
        {
            "fragment@0": _fragment(region),
            "fragment@1": _fragment(Node(space, {CLOCK: clock, name: registers})),
            "__symbols__": Node({"tlmm": f"{bus}/{name}\0".encode()}),
            "__fixups__": Node({key: f"{text}\0".encode() for key, text in fixups.items()}),
            "__local_fixups__": Node({}, {"fragment@1": Node({}, {"__overlay__": local})}),
        },
    )


def sample_overlay(
    firmware: str = f"{DEFAULT_NAME}.bit.bin", board: str = "kv260", hertz: int = HERTZ
) -> bytes:
    """The same as a file."""
    return write_tree(sample_tree(firmware, board, hertz))


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
    hertz: int = HERTZ,
) -> dict[str, bytes]:
    """The files of an application made of a .bit file."""
    overlay = sample_overlay(f"{name}.bit.bin", board, hertz)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / file for file in ("x.bit", "x.dtbo", "shell.json")]
        for path, data in zip(paths, (bit, overlay, shell), strict=True):
            path.write_bytes(data)
        (Path(folder) / "x.hwh").write_bytes(hwh or sample_hwh(board, hertz))
        sources = Sources(paths[0], board, paths[1], name, shell=paths[2], release=release)
        return dict(make_package(sources).files)


def main(arguments: Sequence[str]) -> int:
    """Writes an application to try deployment with, of a bitstream without a design."""
    parser = argparse.ArgumentParser(
        prog="python -m edgerun_hw.deploy.emulate.sample", description=main.__doc__
    )
    parser.add_argument("folder", type=Path, help="is made")
    parser.add_argument("--board", choices=tuple(BOARDS), default="kv260")
    parser.add_argument("--release", type=int, default=0)
    options = parser.parse_args(arguments)
    bit = example_bit(BOARDS[options.board], seed=options.release)
    files = sample_package(bit, board=options.board, release=options.release)
    try:
        options.folder.mkdir()
        for name, data in files.items():
            (options.folder / name).write_bytes(data)
    except OSError as error:
        sys.stderr.write(f"cannot write {error.filename}: {error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
