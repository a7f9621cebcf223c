"""Writes device tree overlays, has dtc compile them, and checks them as the board will."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from edgerun.errors import MissingDependencyError
from edgerun_hw.deploy.broker.application import overlay
from edgerun_hw.deploy.broker.application.manifest import REGISTER_BYTES, Manifest
from edgerun_hw.deploy.broker.board import settings
from edgerun_hw.deploy.broker.errors import RefusalError
from edgerun_hw.deploy.errors import PackageError

COMPILE_S = 30
# What xlnx,afi-fpga calls the registers of the masters' widths; those of the other ports come
# first, a read and a write half for each (Linux: xilinx-afi.c).
AFI_MASTERS = {0xFD615000: 14, 0xFF419000: 15}


def write_overlay(manifest: Manifest) -> str:
    """Writes the source of an application's overlay: bitstream, clocks, port widths, registers.

    Rates, widths and addresses are those of the design, as the manifest has them from the .hwh.
    Every node has a name of our own, so that it is none that is there already, and none asks for an
    interrupt: the driver polls, and Kria-PYNQ's own overlay holds the first.

    Raises:
        PackageError: the design's clocks are not known.
    """
    if not manifest.clocks:
        raise PackageError(
            "at which rate the design's clock must run is not known: pass the .hwh of the same "
            "build with --hwh, or a device tree overlay with --overlay"
        )
    family = overlay.FAMILIES[manifest.board.family]
    cells = [f"#address-cells = <{family.cells}>;", f"#size-cells = <{family.cells}>;"]
    label, numbers = family.resets
    resets = ", ".join(f"<&{label} {number}>" for number in numbers)
    region = [f'firmware-name = "{manifest.bitstream}";', *([f"resets = {resets};"] * bool(resets))]
    nodes = [*_ports(manifest, family), *_clocks(manifest, family), _registers(manifest, family)]
    bus = [line for node in nodes for line in ["", *node]]
    return "\n".join(
        [
            "// SPDX-License-Identifier: Apache-2.0",
            f"// Overlay of the table-lookup engine on {manifest.board.title}, written by",
            "// `edgerun fpga package` from the design's .hwh.",
            *("/dts-v1/;", "/plugin/;", ""),
            *_node("&fpga_full", [*cells, *region]),
            "",
            *_node("&amba", [*cells, *bus]),
            "",
        ]
    )


def _node(name: str, lines: list[str]) -> list[str]:
    return [f"{name} {{", *(f"\t{line}" if line else "" for line in lines), "};"]


def _ports(manifest: Manifest, family: overlay.Family) -> list[list[str]]:
    widths, driver = manifest.port_widths, 'compatible = "xlnx,afi-fpga";'
    if family.ports:
        return [
            _node(
                f"edgerun-afi@{base:x}",
                [
                    driver,
                    f"reg = <{base:#x} {REGISTER_BYTES:#x}>;",
                    f"xlnx,afi-width = <{int(widths[f'S_AXI_HP{number}'] == 32)}>;",
                ],
            )
            for number, base in enumerate(family.ports)
            if f"S_AXI_HP{number}" in widths
        ]
    pairs: dict[int, int] = {}
    for number, port in enumerate(settings.SLAVES):
        if port in widths:
            code = settings.SLAVE_CODES[widths[port]]
            pairs |= {2 * number: code, 2 * number + 1: code}
    for port, (address, lsb) in settings.MASTERS.items():
        if port in widths:
            number = AFI_MASTERS[address]
            pairs[number] = pairs.get(number, 0) | settings.MASTER_CODES[widths[port]] << lsb
    text = ", ".join(f"<{number} {value:#x}>" for number, value in sorted(pairs.items()))
    return [_node("edgerun-afi", [driver, f"config-afi = {text};"])] if pairs else []


def _clocks(manifest: Manifest, family: overlay.Family) -> list[list[str]]:
    controller, numbers = family.clocks
    nodes = []
    for name, clock in sorted(manifest.clocks.items()):
        index = settings.CLOCKS.index(name)
        source = f"<&{controller} {numbers[index]}>"
        lines = [
            "#clock-cells = <0>;",
            'compatible = "xlnx,fclk";',
            f"clocks = {source};",
            f"assigned-clocks = {source};",
            f"assigned-clock-rates = <{clock.hertz}>;",
            f'clock-output-names = "edgerun_{name}";',
        ]
        nodes.append(_node(f"edgerun_{name}: edgerun-clock{index}", lines))
    return nodes


def _registers(manifest: Manifest, family: overlay.Family) -> list[str]:
    high = "0x0 " * (family.cells - 1)
    first = min(manifest.clocks)
    return _node(
        f"edgerun-tlmm@{manifest.base:x}",
        [
            'compatible = "edgerun,tlmm-1.0", "generic-uio";',
            f"reg = <{high}{manifest.base:#x} {high}{REGISTER_BYTES:#x}>;",
            f"clocks = <&edgerun_{first}>;",
        ],
    )


def check_overlay(data: bytes, manifest: Manifest) -> None:
    """Checks the overlay of an application with the rules of the board's helper.

    Raises:
        PackageError: the board would refuse it.
    """
    try:
        overlay.check_overlay(data, manifest)
    except RefusalError as error:
        raise PackageError(str(error)) from None


def compile_overlay(source: Path) -> bytes:
    """Compiles a .dts with ``dtc``.

    Raises:
        MissingDependencyError: there is no dtc.
        PackageError: the source has errors; the message is the compiler's first.
    """
    compiler = shutil.which("dtc")
    if compiler is None:
        raise MissingDependencyError(
            "the device tree compiler dtc is not installed: install the package "
            "device-tree-compiler, or pass a compiled overlay with --overlay FILE.dtbo"
        )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "overlay.dtbo"
        process = subprocess.run(
            [compiler, "-@", "-I", "dts", "-O", "dtb", "-o", str(out), str(source.resolve())],
            capture_output=True,
            text=True,
            timeout=COMPILE_S,
            check=False,
        )
        if process.returncode or not out.exists():
            errors = [line for line in process.stderr.splitlines() if "rror" in line]
            raise PackageError(
                f"dtc refuses {source}: {errors[0] if errors else 'it says nothing'}"
            )
        return out.read_bytes()
