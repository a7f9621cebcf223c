"""What a deployment must know of a design: read from Vivado's hardware description (.hwh, .xsa)."""

from __future__ import annotations

import io
import re
import struct
import xml.etree.ElementTree as ElementTree
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgerun_hw.deploy.broker.board import settings
from edgerun_hw.deploy.broker.protocol import MAX_FILE_BYTES
from edgerun_hw.deploy.errors import PackageError
from edgerun_hw.overlay.register_map import VLNV

MAX_HWH_BYTES = 16 << 20
MAX_ENTRIES = 2000
NUMBER = re.compile("[0-9]{1,9}")
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What zipfile raises on broken archives: undocumented, found by damaging some.
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    EOFError,
    RuntimeError,
    ValueError,
    OSError,
    struct.error,
)
PROCESSORS = {"zynq_ultra_ps_e": "zynqmp", "processing_system7": "zynq7"}
ZYNQ7_SOURCES = {"IO PLL": "IO", "ARM PLL": "ARM", "DDR PLL": "DDR"}


@dataclass(frozen=True)
class Hardware:
    """A design.

    Attributes:
        base: bus address of the overlay's registers; None if the description does not say.
        clocks: as in the manifest.
        port_widths: as in the manifest.
        overlay: what ours was built with: numbers by the names of its parameters, such as
            ``ATTENTION``; empty if the description does not say.
    """

    base: int | None = None
    clocks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    port_widths: Mapping[str, int] = field(default_factory=dict)
    overlay: Mapping[str, int] = field(default_factory=dict)


def read_xsa(content: bytes) -> tuple[bytes, bytes | None]:
    """Takes the bitstream and the hardware description out of an .xsa archive.

    Nothing is written to disk, so that names in the archive cannot reach anywhere.

    Raises:
        PackageError: it is no archive, has no bitstream or several, or would unpack to too much.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_ENTRIES:
                raise PackageError(f"the archive has more than {MAX_ENTRIES} entries")
            bits = [entry for entry in entries if entry.filename.endswith(".bit")]
            descriptions = [entry for entry in entries if entry.filename.endswith(".hwh")]
            if len(bits) != 1:
                raise PackageError(
                    f"the .xsa has {len(bits)} bitstreams and must have one: write it with "
                    "write_hw_platform -fixed -include_bit"
                )
            # The description of a whole design stands first; those of its parts follow.
            hwh = _extract(archive, descriptions[0], MAX_HWH_BYTES) if descriptions else None
            return _extract(archive, bits[0], MAX_FILE_BYTES), hwh
    except UNREADABLE as error:
        raise PackageError(f"the .xsa is no readable archive: {error}") from None


def _extract(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, limit: int) -> bytes:
    if entry.compress_type not in METHODS:
        raise PackageError(f"{entry.filename} in the .xsa is packed in an unusual way")
    with archive.open(entry) as stream:
        data = stream.read(limit + 1)  # what the entry claims to be is not believed
    if len(data) > limit:
        raise PackageError(f"{entry.filename} in the .xsa has more than {limit} bytes")
    return data


def read_hwh(content: bytes, family: str) -> Hardware:
    """Reads a .hwh.

    Args:
        content: the XML.
        family: "zynqmp" or "zynq7", of the board.

    Raises:
        PackageError: it is no such description, or is of another family.
    """
    _check_text(content)
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise PackageError(f"the .hwh is broken: {error}") from None
    modules = list(root.iter("MODULE"))
    processor = next((m for m in modules if m.get("MODTYPE", "") in PROCESSORS), None)
    if processor is None:
        raise PackageError("the .hwh has no processing system: it is not of a Zynq design")
    if PROCESSORS[processor.get("MODTYPE", "")] != family:
        raise PackageError(f"the .hwh has a {processor.get('MODTYPE')}, which the board has not")
    overlays = [module for module in modules if module.get("VLNV") == VLNV]
    names = {module.get("INSTANCE", "") for module in overlays}
    parameters = _parameters(processor)
    reader = _zynqmp if family == "zynqmp" else _zynq7
    try:
        return Hardware(_base(processor, names), *reader(parameters), _built(overlays))
    except KeyError as error:
        raise PackageError(f"the .hwh lacks the processing system's {error.args[0]}") from None
    except (ValueError, OverflowError) as error:
        raise PackageError(f"the .hwh has a value that is no number: {error}") from None


def _check_text(content: bytes) -> None:
    """Refuses what the parser must not see.

    Raises:
        PackageError: it is too large, declares entities, or is in an encoding that would hide that.
    """
    if len(content) > MAX_HWH_BYTES or b"<!" in content.replace(b"<!--", b""):
        raise PackageError("the .hwh is too large or declares entities, which Vivado never does")
    try:
        is_plain = "\0" not in content.decode("utf-8")
    except UnicodeDecodeError:
        is_plain = False
    if not is_plain:
        raise PackageError("the .hwh is not in UTF-8, as Vivado writes it")


def _parameters(module: ElementTree.Element) -> dict[str, str]:
    return {p.get("NAME", ""): p.get("VALUE", "") for p in module.iter("PARAMETER")}


def _built(overlays: list[ElementTree.Element]) -> dict[str, int]:
    """Parameters of the overlay that are numbers."""
    return {
        name.upper(): int(value)
        for module in overlays
        for name, value in _parameters(module).items()
        if NUMBER.fullmatch(value)
    }


def _base(processor: ElementTree.Element, names: set[str]) -> int | None:
    ranges = [r for r in processor.iter("MEMRANGE") if r.get("INSTANCE") in names]
    bases = {int(r.get("BASEVALUE", ""), 16) for r in ranges}
    if len(bases) > 1:
        raise PackageError("the design has several overlays of ours: which one is not clear")
    return bases.pop() if bases else None


def _zynqmp(values: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, int]]:
    clocks, widths = {}, {}
    for i in range(4):
        prefix = f"PSU__CRL_APB__PL{i}_REF_CTRL__"
        if values.get(f"PSU__FPGA_PL{i}_ENABLE") == "1" and f"{prefix}DIVISOR0" in values:
            divisors = [int(values[f"{prefix}DIVISOR{k}"]) for k in (0, 1)]
            source, rate = values[f"{prefix}SRCSEL"], values[f"{prefix}ACT_FREQMHZ"]
            clocks[f"pl{i}"] = _clock(source, divisors, rate)
    for kind, ports in (("M", settings.MASTERS), ("S", settings.SLAVES)):
        for i, port in enumerate(ports):
            width = values.get(f"C_{kind}AXIGP{i}_DATA_WIDTH")
            if width and values.get(f"PSU__USE__{kind}_AXI_GP{i}") == "1":
                widths[port] = int(width)
    return clocks, widths


def _clock(source: str, divisors: list[int], megahertz: str) -> dict[str, Any]:
    return {"source": source, "divisors": divisors, "hertz": round(float(megahertz) * 1e6)}


def _zynq7(values: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, int]]:
    clocks, widths = {}, {}
    for i in range(4):
        prefix = f"PCW_FCLK{i}_PERIPHERAL_"
        if values.get(f"PCW_FPGA_FCLK{i}_ENABLE") == "1" and f"{prefix}DIVISOR0" in values:
            divisors = [int(values[f"{prefix}DIVISOR{k}"]) for k in (0, 1)]
            source = values.get(f"{prefix}CLKSRC", "IO PLL")
            rate = values[f"PCW_ACT_FPGA{i}_PERIPHERAL_FREQMHZ"]
            clocks[f"pl{i}"] = _clock(ZYNQ7_SOURCES.get(source, source), divisors, rate)
    for i in range(4):
        width = values.get(f"C_S_AXI_HP{i}_DATA_WIDTH")
        if width and values.get(f"PCW_USE_S_AXI_HP{i}") == "1":
            widths[f"S_AXI_HP{i}"] = int(width)
    return clocks, widths
