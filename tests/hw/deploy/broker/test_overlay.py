"""Overlays ask for what is allowed and for nothing else; damaged ones are refused."""

import dataclasses
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from edgerun_hw.deploy.broker.application.manifest import MANIFEST, Manifest, read_manifest
from edgerun_hw.deploy.broker.application.overlay import check_overlay
from edgerun_hw.deploy.broker.application.references import UNRESOLVED
from edgerun_hw.deploy.broker.board.boards import BOARDS
from edgerun_hw.deploy.broker.errors import RefusalError
from edgerun_hw.deploy.broker.formats.fdt import MAX_DEPTH, Node, read_tree
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.sample import sample_overlay, sample_package, sample_tree, write_tree
from tests.hw.deploy.harness import board, converse, deployment, digest_of, resealed, running

NAME = "edgerun-tlmm"
Change = Callable[[Node], None]


@pytest.fixture(scope="session", params=BOARDS.values(), ids=lambda board: board.name)
def manifest(request) -> Manifest:
    files = sample_package(example_bit(request.param), board=request.param.name)
    return read_manifest(files[MANIFEST])


@pytest.fixture(scope="session")
def kv260(first) -> Manifest:
    return read_manifest(first[MANIFEST])


def words(*values: int) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


def bus(root: Node) -> Node:
    return root.children["fragment@1"].children["__overlay__"]


def registers(root: Node) -> Node:
    return next(node for name, node in bus(root).children.items() if "tlmm@" in name)


def clock(root: Node) -> Node:
    return bus(root).children["edgerun-clock0"]


def region(root: Node) -> Node:
    return root.children["fragment@0"].children["__overlay__"]


def setting(where: Callable[[Node], Node], name: str, value: bytes) -> Change:
    return lambda root: where(root).properties.update({name: value})


def adding(name: str, **properties: bytes) -> Change:
    return lambda root: bus(root).children.update({name: Node(dict(properties))})


def fixups(label: str, value: bytes) -> Change:
    return lambda root: root.children["__fixups__"].properties.update({label: value})


def local_fixups(root: Node) -> dict[str, bytes]:
    node = root.children["__local_fixups__"].children["fragment@1"].children["__overlay__"]
    return next(iter(node.children.values())).properties


def renamed(label: str, to: str) -> Change:
    def change(root: Node) -> None:
        labels = root.children["__fixups__"].properties
        labels[to] = labels.pop(label)

    return change


def alone(change: Change) -> Change:
    """The change, where nothing refers to the overlay's own nodes."""

    def changed(root: Node) -> None:
        registers(root).properties.pop("clocks")
        root.children.pop("__local_fixups__")
        change(root)

    return changed


def test_tree_is_read_as_it_was_written() -> None:
    assert read_tree(sample_overlay()) == sample_tree()


def test_sample_of_every_board_is_allowed(manifest: Manifest) -> None:
    check_overlay(sample_overlay(board=manifest.board.name), manifest)


ALL_MEMORY = words(0, 0, 0xFFFF_FFFF, 0xFFFF_FFFF)
UIO = b"generic-uio\0"
REFUSED: dict[str, Change] = {
    "all memory": setting(registers, "reg", ALL_MEMORY),
    "memory of the system": setting(registers, "reg", words(0, 0x1000_0000, 0, 0x1000)),
    "registers elsewhere in the logic": setting(registers, "reg", words(0, 0xA001_0000, 0, 0x1000)),
    "more than its registers": setting(registers, "reg", words(0, 0xA000_0000, 0, 0x1000_0000)),
    "two ranges": setting(registers, "reg", words(0, 0xA000_0000, 0, 0x1000) + ALL_MEMORY),
    "half a range": setting(registers, "reg", words(0, 0xA000_0000, 0)),
    "no range": lambda root: registers(root).properties.pop("reg") and None,
    "a driver of its own choice": setting(registers, "compatible", b"mmio-sram\0"),
    "a driver behind ours": setting(
        registers, "compatible", b"edgerun,tlmm-1.0\0generic-uio\0xlnx,zocl\0"
    ),
    "an interrupt": setting(registers, "interrupts", words(0, 89, 4)),
    "a handle by number": setting(registers, "clocks", words(5)),
    "an unknown property": setting(registers, "dma-ranges", b""),
    "disabled": setting(registers, "status", b"disabled\0"),
    "a node in the device": lambda root: registers(root).children.update(x=Node()),
    "a clock that is too fast": setting(clock, "assigned-clock-rates", words(1_500_000_000)),
    "a clock of the processors": setting(clock, "clocks", words(UNRESOLVED, 0)),
    "a clock that is too slow": setting(clock, "assigned-clock-rates", words(24_000_000)),
    "another clock than the design's": setting(clock, "assigned-clock-rates", words(250_000_000)),
    "several rates": setting(clock, "assigned-clock-rates", words(1, 1)),
    "a name that is no text": setting(clock, "clock-output-names", b"\x1b[2J\0"),
    "memory without a driver's name": adding("tlmm@fffc0000", compatible=UIO),
    "a second device": adding("x@b0000000", compatible=UIO, reg=words(0, 0xB000_0000, 0, 0x1000)),
    "a part of the board": adding("mmc@ff170000", status=b"okay\0"),
    "a name without an address": adding("tlmm", compatible=UIO),
    "a node of Xilinx' generator": adding("afi0", compatible=b"xlnx,afi-fpga\0"),
    "its clock": adding("clocking1", compatible=b"xlnx,fclk\0", clocks=words(1)),
    "a port that there is not": adding(
        "edgerun-afi", **{"compatible": b"xlnx,afi-fpga\0", "config-afi": words(16, 0)}
    ),
    "a width that there is not": adding(
        "edgerun-afi", **{"compatible": b"xlnx,afi-fpga\0", "config-afi": words(0, 4)}
    ),
    "the board's own bus": setting(bus, "status", b"disabled\0"),
    "cells of another size": setting(bus, "#address-cells", words(1)),
    "partial configuration": setting(region, "partial-fpga-config", b""),
    "an encrypted bitstream": setting(region, "encrypted-fpga-config", b""),
    "a bridge": setting(region, "fpga-bridges", words(UNRESOLVED)),
    "two bitstreams": setting(region, "firmware-name", f"{NAME}.bit.bin\0x\0".encode()),
    "another bus": renamed("amba", "amba_apu"),
    "another region": renamed("fpga_full", "fpga_pr"),
    "another clock controller": renamed("zynqmp_clk", "gpu"),
    "an interrupt controller": fixups("gic", b"/fragment@1/__overlay__/edgerun-clock0:clocks:0\0"),
    "a target by path": lambda root: root.children["fragment@1"].properties.update(
        {"target-path": b"/\0"}
    ),
    "a property of the root": lambda root: root.properties.update(compatible=b"xlnx,zynqmp\0"),
    "a node of the root": lambda root: root.children.update(chosen=Node()),
    "a second node in a fragment": lambda root: root.children["fragment@1"].children.update(
        x=Node()
    ),
    "no region": lambda root: root.children.pop("fragment@0") and None,
    "a reference to nothing": fixups("x", b"/fragment@1/__overlay__:nothing:0\0"),
    "a reference into a value": fixups("x", b"/fragment@1/__overlay__/edgerun-clock0:clocks:2\0"),
    "a reference in no form": fixups("x", b"anywhere\0"),
    "a handle in no node": lambda root: root.children["__local_fixups__"].children.update(x=Node()),
    "a label without a place": fixups("x", b""),
    "a label with an empty place": fixups("x", b"\0"),
    "a label with half a place": fixups("x", b"abcdefgh"),
    # The kernel would add to the rate what it adds to handles.
    "a number to be changed like a handle": lambda root: (
        clock(root).properties.update({"assigned-clock-rates": words(1)}),
        local_fixups(root).update({"assigned-clock-rates": words(0)}),
    )[0],
    "another driver for the ports": adding("edgerun-afi", compatible=b"xlnx,axi-dma-1.00.a\0"),
    "another driver for the clock": alone(setting(clock, "compatible", b"fixed-clock\0")),
    "a clock with arguments": setting(clock, "#clock-cells", words(1)),
    "another clock to be set": setting(clock, "assigned-clocks", words(UNRESOLVED, 0)),
    "a clock by its number": alone(setting(registers, "clocks", words(UNRESOLVED, 71))),
    "a clock's name that is no text": setting(registers, "clock-names", b"\0"),
    "addresses of another size": setting(region, "#address-cells", words(1)),
    "sizes of another size": setting(region, "#size-cells", words(1)),
    "sizes of another size on the bus": setting(bus, "#size-cells", words(0)),
    "resets of something else": setting(region, "resets", words(5, 116)),
    "addresses that are translated": setting(region, "ranges", words(0, 0, 0, 0, 0, 0x1000)),
    "a handle that is none": setting(registers, "phandle", words(0)),
    "a label of the board's": lambda root: root.children["__symbols__"].properties.update(
        gic=b"/axi\0"
    ),
    "a label of nothing": lambda root: root.children["__symbols__"].properties.update(
        x=b"/fragment@1/__overlay__/x\0"
    ),
    "a handle twice": lambda root: registers(root).properties.update(phandle=words(1)),
    "a handle of nothing": lambda root: clock(root).properties.pop("phandle") and None,
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_refused(case: str, kv260: Manifest) -> None:
    root = sample_tree()
    REFUSED[case](root)
    assert root != sample_tree()
    with pytest.raises(RefusalError, match="overlay"):
        check_overlay(write_tree(root), kv260)


def test_rate_is_within_the_boards_bounds_where_the_designs_is_not_known(kv260: Manifest) -> None:
    unknown = dataclasses.replace(kv260, clocks={})
    for hertz in (25_000_000, 100_000_000, 400_000_000):
        check_overlay(sample_overlay(hertz=hertz), unknown)
    for hertz in (24_999_999, 400_000_001):
        with pytest.raises(RefusalError, match="its assigned-clock-rates"):
            check_overlay(sample_overlay(hertz=hertz), unknown)


def test_port_widths_and_resets_are_allowed(kv260: Manifest) -> None:
    root = sample_tree()
    bus(root).children["edgerun-afi"] = Node(
        {"compatible": b"xlnx,afi-fpga\0", "config-afi": words(0, 0, 4, 1, 14, 0xA00)}
    )
    region(root).properties["resets"] = words(UNRESOLVED, 116, UNRESOLVED, 119)
    fixups("zynqmp_reset", b"/fragment@0/__overlay__:resets:0\0/fragment@0/__overlay__:resets:8\0")(
        root
    )
    check_overlay(write_tree(root), kv260)
    region(root).properties["resets"] = words(UNRESOLVED, 116, UNRESOLVED, 46)  # a part of the SoC
    with pytest.raises(RefusalError, match="its resets"):
        check_overlay(write_tree(root), kv260)


ZYNQ7_PORT = {
    "compatible": b"xlnx,afi-fpga\0",
    "reg": words(0xF8008000, 0x1000),
    "xlnx,afi-width": words(0),
}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("edgerun-afi@f8008000", {}, None),
        (
            "edgerun-afi@f8009000",
            {"reg": words(0xF8009000, 0x1000), "xlnx,afi-width": words(1)},
            None,
        ),
        ("edgerun-afi@f8000000", {"reg": words(0xF8000000, 0x1000)}, "its reg"),  # system control
        ("edgerun-afi@f8008000", {"reg": words(0xF8008000, 0x8000)}, "its reg"),
        ("edgerun-afi@f8009000", {}, "its reg"),
        ("edgerun-afi@f8008000", {"xlnx,afi-width": words(2)}, "its xlnx,afi-width"),
        ("edgerun-afi@f8008000", {"config-afi": words(0, 0)}, "its config-afi"),
    ],
)
def test_ports_of_a_zynq_7000_have_nodes_of_their_own(
    name: str, change: dict[str, bytes], message: str | None
) -> None:
    zynq7 = next(board for board in BOARDS.values() if board.family == "zynq7")
    files = sample_package(example_bit(zynq7), board=zynq7.name)
    root = sample_tree(board=zynq7.name)
    bus(root).children[name] = Node({**ZYNQ7_PORT, **change})
    if message is None:
        check_overlay(write_tree(root), read_manifest(files[MANIFEST]))
        return
    with pytest.raises(RefusalError, match=message):
        check_overlay(write_tree(root), read_manifest(files[MANIFEST]))


OVERLAY = sample_overlay()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no compiled device tree"),
        (b"/dts-v1/;" + bytes(100), "no compiled device tree"),
        (OVERLAY[:-1], "cut off"),
        (OVERLAY + b"x", "cut off or padded"),
        (OVERLAY + bytes(1 << 16), "more than 65536 bytes"),
        (OVERLAY.replace(b"__overlay__\0", b"__overlax__\0"), "no __overlay__ node"),
        (OVERLAY.replace(b"firmware-name", b"firmware-nama"), "no firmware-name"),
        (sample_overlay("b.bit.bin"), f"firmware-name is b.bit.bin and must be {NAME}.bit.bin"),
        (OVERLAY[:40] + b"\1" + OVERLAY[41:], "reserves memory"),
        (OVERLAY[:23] + b"\x12" + OVERLAY[24:], "version"),
        (OVERLAY[:35] + bytes(1) + OVERLAY[36:], "name of a property is cut off"),
        (write_tree(Node({}, {"a b": Node()})), "node 'a b'"),
    ],
)
def test_file_that_is_no_overlay_is_refused(data: bytes, message: str, kv260: Manifest) -> None:
    with pytest.raises(RefusalError, match=message):
        check_overlay(data, kv260)


def nested(depth: int) -> Node:
    return Node({}, {"x": nested(depth - 1)} if depth else {})


def test_deep_and_wide_trees_are_refused() -> None:
    read_tree(write_tree(nested(MAX_DEPTH - 1)))
    for root in (
        nested(MAX_DEPTH),
        Node({}, {f"n{i}": Node() for i in range(300)}),
        Node({f"p{i}": b"" for i in range(1100)}),
    ):
        with pytest.raises(RefusalError, match="too many"):
            read_tree(write_tree(root))


@pytest.mark.parametrize(
    "count",
    [pytest.param(3000, id="share"), pytest.param(100_000, id="all", marks=pytest.mark.slow)],
)
def test_damaged_overlays_are_refused_or_say_the_same(count: int, kv260: Manifest) -> None:
    """What is accepted after damage differs in numbers that are within their bounds, if at all."""
    generator, good, accepted = random.Random(count), dict(sample_tree().walk()), 0
    free = {"reg", "assigned-clock-rates", "phandle", "clocks", "assigned-clocks"}

    def fixed(node: Node) -> dict[str, bytes]:
        return {name: value for name, value in node.properties.items() if name not in free}

    for _ in range(count):
        data = bytearray(OVERLAY)
        for _ in range(generator.randrange(1, 4)):
            data[generator.randrange(len(data))] = generator.choice((0, 1, 3, 9, 64, 97, 255))
        try:
            check_overlay(bytes(data), kv260)
        except RefusalError:
            continue
        accepted += data != OVERLAY
        root = read_tree(bytes(data))
        address, size = struct.unpack(">QQ", registers(root).properties["reg"])
        assert address == kv260.base and size <= 1 << 20
        for path, node in root.walk():
            assert path == "/__symbols__" or fixed(node) == fixed(good[path])
    assert accepted < count // 20


def test_board_itself_refuses_an_overlay_whose_digest_is_right(
    tmp_path: Path, first, second
) -> None:
    """The helper's own check: whoever sends this has changed the tool."""
    root = board(tmp_path, True, first)
    for change in (REFUSED["all memory"], REFUSED["a part of the board"]):
        tree = sample_tree()
        change(tree)
        files = resealed(second, {f"{NAME}.dtbo": write_tree(tree)})
        result = converse(root, deployment(files))
        assert result.error and result.error["code"] == "refused"
        assert "not allowed" in result.error["message"]
        assert running(root) == digest_of(first)
    files = resealed(second, {f"{NAME}.dtbo": b"garbage"})
    assert converse(root, deployment(files)).error
    assert json.loads(files[MANIFEST])["files"][f"{NAME}.dtbo"]["size"] == 7
