"""Reads compiled device trees, as strictly as dtc writes them.

The format is chapter 5 of the Devicetree Specification 0.4. Stricter than the kernel on purpose:
what the kernel would read differently, or not at all, is refused before it sees it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..errors import RefusalError

MAGIC, VERSION, LAST_COMPATIBLE = 0xD00DFEED, 17, 16
HEADER = struct.Struct(">10I")
BEGIN_NODE, END_NODE, PROPERTY, END = 1, 2, 3, 9
NO_RESERVATION = bytes(16)
MAX_BYTES = 64 * 1024
MAX_DEPTH, MAX_NODES, MAX_PROPERTIES = 16, 256, 1024
NAME = re.compile(r"[A-Za-z0-9,._+?#-]{1,63}(@[A-Za-z0-9,._+-]{1,31})?", re.ASCII)


@dataclass
class Node:
    """A node.

    Attributes:
        properties: values by name.
        children: nodes by name, unit address included.
    """

    properties: dict[str, bytes] = field(default_factory=dict)
    children: dict[str, Node] = field(default_factory=dict)

    def walk(self, path: str = "") -> Iterator[tuple[str, Node]]:
        """This node and all below it, each with its path; the root's is empty."""
        yield path, self
        for name, child in self.children.items():
            yield from child.walk(f"{path}/{name}")


def read_tree(data: bytes) -> Node:
    """Reads a device tree blob.

    Returns:
        The root.

    Raises:
        RefusalError: it is none, is larger than ``MAX_BYTES``, or breaks a rule of the format.
    """
    if len(data) < HEADER.size or HEADER.unpack_from(data)[0] != MAGIC:
        raise RefusalError("the overlay is no compiled device tree (.dtbo)")
    _, total, structure, strings, reservations, version, last, cpu, strings_bytes, bytes_ = (
        HEADER.unpack_from(data)
    )
    _require(len(data) <= MAX_BYTES, f"it has more than {MAX_BYTES} bytes")
    _require(total == len(data), f"it has {len(data)} bytes of {total}: it is cut off or padded")
    _require((version, last, cpu) == (VERSION, LAST_COMPATIBLE, 0), "its version is unknown")
    _require(strings + strings_bytes <= total, "its strings lie outside it")
    _require(
        structure % 4 == bytes_ % 4 == 0 and structure + bytes_ <= total,
        "its structure lies outside it",
    )
    _require(
        reservations % 8 == 0 and reservations >= HEADER.size, "its reservations are misplaced"
    )
    _require(
        data[reservations : reservations + 16] == NO_RESERVATION, "it reserves memory of its own"
    )
    reader = _Reader(data[structure : structure + bytes_], data[strings : strings + strings_bytes])
    return reader.root()


class _Reader:
    """Goes through the structure block once, from its first word to its last."""

    def __init__(self, structure: bytes, strings: bytes) -> None:
        self._structure, self._strings, self._offset = structure, strings, 0
        self._nodes = self._properties = 0

    def root(self) -> Node:
        _require(self._word() == BEGIN_NODE and self._name() == "", "it has no root")
        root = self._node(1)
        _require(
            self._word() == END and self._offset == len(self._structure),
            "it goes on behind its end",
        )
        return root

    def _node(self, depth: int) -> Node:
        self._nodes += 1
        _require(depth <= MAX_DEPTH and self._nodes <= MAX_NODES, "it has too many nodes")
        node = Node()
        while (token := self._word()) != END_NODE:
            if token == PROPERTY:
                # The specification has properties stand before nodes.
                _require(not node.children, "a property stands behind a node")
                self._property(node)
            elif token == BEGIN_NODE:
                name = self._name()
                _require(bool(NAME.fullmatch(name)), f"it has a node {name!r}")
                _require(name not in node.children, f"node {name} stands in it twice")
                node.children[name] = self._node(depth + 1)
            else:
                raise RefusalError(f"the overlay is unusable: token {token} means nothing")
        return node

    def _property(self, node: Node) -> None:
        self._properties += 1
        _require(self._properties <= MAX_PROPERTIES, "it has too many properties")
        size, where = self._word(), self._word()
        end = self._strings.find(b"\0", where)
        _require(0 <= where <= end, "the name of a property is cut off")
        name = self._strings[where:end].decode("latin-1")
        _require(bool(NAME.fullmatch(name)), f"it has a property {name!r}")
        _require(name not in node.properties, f"property {name} stands in a node twice")
        node.properties[name] = self._take(size)

    def _name(self) -> str:
        end = self._structure.find(b"\0", self._offset)
        _require(end >= 0, "the name of a node is cut off")
        return self._take(end + 1 - self._offset)[:-1].decode("latin-1")

    def _word(self) -> int:
        return int.from_bytes(self._take(4), "big")

    def _take(self, size: int) -> bytes:
        """The next ``size`` bytes; what fills them up to whole words must be zero."""
        stop = self._offset + size
        padded = stop + 3 & ~3
        _require(padded <= len(self._structure), "it is cut off")
        data = self._structure[self._offset : stop]
        _require(not any(self._structure[stop:padded]), "it hides something between its values")
        self._offset = padded
        return data


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise RefusalError(f"the overlay is unusable: {otherwise}")
