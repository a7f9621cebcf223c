"""What a device tree overlay may ask the kernel for: a list of what is allowed, and nothing else.

An overlay is code for the kernel: ``generic-uio`` over any address hands that memory to whoever may
open the device, and a node of the name of one that is there changes that one. So an overlay may
name its own bitstream, set the port widths and clocks of the logic, and describe the registers of
our design inside the addresses of the logic. No interrupt: the driver polls, and a line that
somebody else's ``generic-uio`` holds, as Kria-PYNQ's does the first, cannot be had twice. All that
it refers to by label is in the tables below (Linux: ``zynqmp.dtsi``, ``zynq-7000.dtsi``; UG1085
table 10-1).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..board.settings import megahertz
from ..errors import RefusalError
from ..formats.fdt import Node, read_tree
from .manifest import REGISTER_BYTES, Manifest
from .references import UNRESOLVED, Place, fixups, local_fixups, node_at, refusal, require

REGION, BUS = "region", "bus"
TARGETS = {
    "fpga_full": REGION,
    "/fpga-full": REGION,
    "amba": BUS,
    "axi": BUS,
    "/amba": BUS,
    "/axi": BUS,
}
DESIGN = ("edgerun,tlmm-1.0", "generic-uio")
MAX_REGISTER_BYTES = 1 << 20
TEXT = re.compile(rb"[A-Za-z0-9_,.-]{1,31}\0")
LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,30}", re.ASCII)


@dataclass(frozen=True)
class Family:
    """What a processing system offers to an overlay.

    Attributes:
        cells: words of an address, and of a size.
        clocks: label of the clock controller and its numbers of the logic's clocks.
        resets: label of the reset controller and its numbers of the logic's resets.
        ports: base addresses of port width registers with nodes of their own; empty if there is
            one node for all.
    """

    cells: int
    clocks: tuple[str, range]
    resets: tuple[str, range]
    ports: tuple[int, ...] = ()


FAMILIES: Mapping[str, Family] = {
    "zynqmp": Family(
        cells=2,
        clocks=("zynqmp_clk", range(71, 75)),
        resets=("zynqmp_reset", range(116, 120)),
    ),
    "zynq7": Family(
        cells=1,
        clocks=("clkc", range(15, 19)),
        resets=("", range(0)),
        ports=(0xF8008000, 0xF8009000, 0xF800A000, 0xF800B000),
    ),
}


@dataclass
class Overlay:
    """An overlay whose references have been resolved.

    Attributes:
        root: the tree.
        references: label, or path of a node of the overlay, by path, property and byte.
        manifest: of the application.
        family: of its board.
        used: references that a rule has looked at.
    """

    root: Node
    references: Mapping[Place, str]
    manifest: Manifest
    family: Family
    used: set[Place] = field(default_factory=set)


@dataclass(frozen=True)
class Value:
    """A property's value where it stands."""

    overlay: Overlay
    path: str
    name: str
    data: bytes

    def words(self, count: int | None = None) -> tuple[int, ...] | None:
        """The value as 32-bit words; None if it is not (so many of) them."""
        if len(self.data) % 4 or count is not None and len(self.data) != 4 * count:
            return None
        return struct.unpack(f">{len(self.data) // 4}I", self.data)

    def target(self, index: int) -> str | None:
        """What word ``index`` refers to, as in ``Overlay.references``."""
        place = (self.path, self.name, 4 * index)
        self.overlay.used.add(place)
        return self.overlay.references.get(place)

    def pairs(self) -> list[tuple[str | None, int]] | None:
        """The value as references with a number each; None if it is not that."""
        words = self.words()
        if not words or len(words) % 2:
            return None
        return [(self.target(i), words[i + 1]) for i in range(0, len(words), 2)]


Rule = Callable[[Value], bool]


def _is(data: bytes) -> Rule:
    return lambda value: value.data == data


def _cells(value: Value) -> bool:
    return value.words(1) == (value.overlay.family.cells,)


def _bitstream(value: Value) -> bool:
    expected = value.overlay.manifest.bitstream
    if value.data != expected.encode() + b"\0":
        shown = value.data.rstrip(b"\0").decode("ascii", "replace")[:64]
        raise RefusalError(
            f"the overlay's firmware-name is {shown} and must be {expected}: change it, or give "
            "the package the other name with --name"
        )
    return True


def _numbered(which: Callable[[Family], tuple[str, range]]) -> Rule:
    """References to one controller, with numbers that belong to the logic."""

    def rule(value: Value) -> bool:
        label, numbers = which(value.overlay.family)
        pairs = value.pairs()
        return bool(pairs) and all(t == label and n in numbers for t, n in pairs or ())

    return rule


_clock_numbers = _numbered(lambda family: family.clocks)
_resets = _numbered(lambda family: family.resets)


def _clock(value: Value) -> bool:
    """A clock of the logic, or the overlay's own node that stands for one."""
    if len(value.data) == 4:
        target = value.target(0)
        node = node_at(value.overlay.root, target or "")
        return node is not None and node.properties.get("compatible") == b"xlnx,fclk\0"
    return _clock_numbers(value)


def _rates(value: Value) -> bool:
    """One rate: that which the logic was built for, or any of the board's where that is unknown."""
    rates, manifest = value.words(1), value.overlay.manifest
    if rates is None or not manifest.board.accepts_clock(rates[0]):
        return False
    node = node_at(value.overlay.root, value.path)
    numbers = node.properties.get("assigned-clocks", b"") if node is not None else b""
    first = value.overlay.family.clocks[1].start
    name = f"pl{int.from_bytes(numbers[4:8], 'big') - first}"
    clock = manifest.clocks.get(name)
    if clock is not None and not clock.agrees(rates[0]):
        raise RefusalError(
            f"the overlay sets clock {name} to {megahertz(rates[0])}, and the design was built "
            f"for {megahertz(clock.hertz)}: leave the overlay to `edgerun fpga package`, or "
            "change its assigned-clock-rates"
        )
    return True


def _registers(value: Value) -> bool:
    """The design's registers: where the manifest says, and inside the addresses of the logic."""
    cells, manifest = value.overlay.family.cells, value.overlay.manifest
    if value.words(2 * cells) is None:
        return False
    base = int.from_bytes(value.data[: 4 * cells], "big")
    size = int.from_bytes(value.data[4 * cells :], "big")
    return (
        base == manifest.base
        and REGISTER_BYTES <= size <= MAX_REGISTER_BYTES
        and size % REGISTER_BYTES == 0
        and manifest.board.has_window(base, size)
        and value.path.endswith(f"@{base:x}")
    )


def _port_registers(value: Value) -> bool:
    words = value.words(2)
    if words is None:
        return False
    base, size = words
    is_port = base in value.overlay.family.ports and size == REGISTER_BYTES
    return is_port and value.path.endswith(f"@{base:x}")


def _port_widths(value: Value) -> bool:
    """Numbers and contents of the width registers: 0 to 13 of ports, 14 and 15 of HPM0 to LPD."""
    words = value.words()
    if not words or len(words) % 2 or value.overlay.family.ports:
        return False
    masks = [3] * 14 + [0xF00, 0x300]
    pairs = zip(words[::2], words[1::2], strict=True)
    return all(number < len(masks) and not content & ~masks[number] for number, content in pairs)


def _design(value: Value) -> bool:
    return value.data in (_strings(DESIGN), _strings(DESIGN[:1]), _strings(DESIGN[1:]))


def _strings(texts: tuple[str, ...]) -> bytes:
    return b"".join(text.encode() + b"\0" for text in texts)


def _text(value: Value) -> bool:
    return TEXT.fullmatch(value.data) is not None


def _phandle(value: Value) -> bool:
    words = value.words(1)
    return words is not None and 0 < words[0] < UNRESOLVED


SPACE: Mapping[str, Rule] = {"#address-cells": _cells, "#size-cells": _cells}
TARGET_RULES: Mapping[str, Mapping[str, Rule]] = {
    REGION: {**SPACE, "firmware-name": _bitstream, "resets": _resets, "ranges": _is(b"")},
    BUS: SPACE,
}
COMMON: Mapping[str, Rule] = {"phandle": _phandle, "status": _is(b"okay\0")}
PORTS: Mapping[str, Rule] = {
    "compatible": _is(b"xlnx,afi-fpga\0"),
    "config-afi": _port_widths,
    "reg": _port_registers,
    "xlnx,afi-width": lambda value: value.words(1) in ((0,), (1,)),
}
CLOCKS: Mapping[str, Rule] = {
    "compatible": _is(b"xlnx,fclk\0"),
    "#clock-cells": _is(bytes(4)),
    "clocks": _clock_numbers,
    "assigned-clocks": _clock_numbers,
    "assigned-clock-rates": _rates,
    "clock-output-names": _text,
}
REGISTERS: Mapping[str, Rule] = {
    "compatible": _design,
    "reg": _registers,
    "clocks": _clock,
    "clock-names": _text,
}
# By the node's name, so that none can have the name, and change, one of the board's own. Names that
# Xilinx' generator gives (afi0, clocking0) are not ours: Kria-PYNQ keeps an afi0 applied, and a
# second one would change that node instead of making a device.
DEVICES: tuple[tuple[re.Pattern[str], Mapping[str, Rule], frozenset[str]], ...] = (
    (re.compile(r"edgerun-afi(@[0-9a-f]{8})?"), PORTS, frozenset({"compatible"})),
    (re.compile(r"edgerun-clock[0-3]"), CLOCKS, frozenset({"compatible", "clocks"})),
    (
        re.compile(r"[a-z][a-z0-9_-]{0,30}@[0-9a-f]{8,9}"),
        REGISTERS,
        frozenset({"compatible", "reg"}),
    ),
)


def check_overlay(data: bytes, manifest: Manifest) -> None:
    """Checks the overlay of an application, down to its last property.

    Raises:
        RefusalError: it is no overlay, or asks for something that is not allowed.
    """
    root = read_tree(data)
    fragments = {name: node for name, node in root.children.items() if name.startswith("fragment@")}
    if not any("__overlay__" in node.children for node in fragments.values()):
        raise RefusalError(
            "the device tree has no __overlay__ node: it is a whole tree and not an overlay; begin "
            "its source with /dts-v1/; /plugin/;"
        )
    extra = root.children.keys() - fragments.keys()
    require(extra <= {"__symbols__", "__fixups__", "__local_fixups__"}, "/", "its nodes")
    require(not root.properties, "/", "its properties")
    references = {**fixups(root), **local_fixups(root)}
    overlay = Overlay(root, references, manifest, FAMILIES[manifest.board.family])
    regions = sum(_check_fragment(overlay, name, node) for name, node in fragments.items())
    require(regions == 1, "/", "the number of its regions")
    _check_symbols(root)
    unused = sorted(references.keys() - overlay.used)
    require(not unused, unused[0][0] if unused else "", "a reference")


def _check_fragment(overlay: Overlay, name: str, node: Node) -> bool:
    """Returns whether it is about the region that holds the bitstream."""
    path = f"/{name}"
    require(set(node.children) == {"__overlay__"}, path, "its nodes")
    kind = _target(overlay, path, node)
    content, path = node.children["__overlay__"], f"{path}/__overlay__"
    if kind == REGION and "firmware-name" not in content.properties:
        raise RefusalError(
            "the overlay has no firmware-name: xmutil then loads no bitstream; add firmware-name = "
            f'"{overlay.manifest.bitstream}";'
        )
    _check_properties(overlay, path, content, TARGET_RULES[kind])
    for child, device in content.children.items():
        _check_device(overlay, f"{path}/{child}", child, device)
    return kind == REGION


def _target(overlay: Overlay, path: str, node: Node) -> str:
    target: str | None = None
    if set(node.properties) == {"target"} and len(node.properties["target"]) == 4:
        target = Value(overlay, path, "target", node.properties["target"]).target(0)
    elif set(node.properties) == {"target-path"}:
        target = node.properties["target-path"].rstrip(b"\0").decode("ascii", "replace")
    kind = TARGETS.get(target or "")
    if kind is None:
        raise refusal(path, f"its target {target or 'that has no name'}")
    return kind


def _check_device(overlay: Overlay, path: str, name: str, node: Node) -> None:
    for pattern, rules, required in DEVICES:
        if pattern.fullmatch(name):
            require(required <= node.properties.keys(), path, "what it leaves out")
            require(not node.children, path, "its nodes")
            _check_properties(overlay, path, node, {**COMMON, **rules})
            return
    raise refusal(path, "a node of this name")


def _check_properties(overlay: Overlay, path: str, node: Node, rules: Mapping[str, Rule]) -> None:
    for name, data in node.properties.items():
        rule = rules.get(name)
        require(rule is not None and rule(Value(overlay, path, name, data)), path, f"its {name}")


def _check_symbols(root: Node) -> None:
    """Labels for overlays after this one; they may name nodes of this one only."""
    node = root.children.get("__symbols__", Node())
    require(not node.children, "/__symbols__", "its nodes")
    for label, data in node.properties.items():
        path = data[:-1].decode("ascii", "replace")
        inside = data.endswith(b"\0") and "/__overlay__" in path and node_at(root, path) is not None
        require(inside and bool(LABEL.fullmatch(label)), "/__symbols__", f"its {label}")
