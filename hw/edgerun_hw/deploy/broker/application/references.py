"""What the nodes of a device tree overlay refer to, and how a refusal of one reads.

dtc leaves it in two nodes beside the fragments: ``__fixups__`` has the places to be filled with
phandles of the kernel's own tree, by label; ``__local_fixups__`` those with phandles of the overlay
(Linux: Documentation/devicetree/dynamic-resolution-notes.rst).
"""

from __future__ import annotations

import re
import struct

from ..errors import RefusalError
from ..formats.fdt import Node

UNRESOLVED = 0xFFFFFFFF  # what dtc writes where the kernel is to put a phandle
PLACE = re.compile(r"(/[^:]*):([^:]+):(0|[1-9][0-9]{0,5})", re.ASCII)

Place = tuple[str, str, int]
"""Path of a node, name of a property and byte in its value."""


def fixups(root: Node) -> dict[Place, str]:
    """Places that the kernel fills with the phandle of a labelled node of its own tree."""
    node = root.children.get("__fixups__", Node())
    require(not node.children, "/__fixups__", "its nodes")
    references: dict[Place, str] = {}
    for label, data in node.properties.items():
        require(data.endswith(b"\0"), "/__fixups__", f"its {label}")
        for text in data[:-1].decode("ascii", "replace").split("\0"):
            match = PLACE.fullmatch(text)
            if match is None:
                raise refusal("/__fixups__", f"its {label}")
            place = (match[1], match[2], int(match[3]))
            is_open = word_at(root, place) == UNRESOLVED and place not in references
            require(is_open, "/__fixups__", f"its {label}")
            references[place] = label
    return references


def local_fixups(root: Node) -> dict[Place, str]:
    """Places that hold the phandle of a node of the overlay."""
    handles: dict[int, str] = {}
    for path, node in root.walk():
        if "phandle" in node.properties:
            handle = int.from_bytes(node.properties["phandle"], "big")
            require(handle not in handles, path, "its phandle")
            handles[handle] = path
    references: dict[Place, str] = {}
    for path, node in root.children.get("__local_fixups__", Node()).walk():
        require(not path or node_at(root, path) is not None, "/__local_fixups__" + path, "a node")
        for name, data in node.properties.items():
            offsets = struct.unpack(f">{len(data) // 4}I", data) if len(data) % 4 == 0 else ()
            require(bool(offsets), "/__local_fixups__" + path, f"its {name}")
            for offset in offsets:
                target = handles.get(word_at(root, (path, name, offset)))
                if target is None:
                    raise refusal("/__local_fixups__" + path, f"its {name}")
                references[path, name, offset] = target
    return references


def node_at(root: Node, path: str) -> Node | None:
    """The node at a path, or None."""
    node: Node | None = root
    for name in path.split("/")[1:]:
        node = node.children.get(name) if node is not None else None
    return node if path.startswith("/") else None


def word_at(root: Node, place: Place) -> int:
    """The word at a place; -1 if there is none."""
    node = node_at(root, place[0])
    data = node.properties.get(place[1], b"") if node is not None else b""
    offset = place[2]
    inside = offset % 4 == 0 and 0 <= offset <= len(data) - 4
    return int.from_bytes(data[offset : offset + 4], "big") if inside else -1


def require(condition: bool, path: str, what: str) -> None:
    """Raises what ``refusal`` makes unless the condition holds."""
    if not condition:
        raise refusal(path, what)


def refusal(path: str, what: str) -> RefusalError:
    """What the helper says of a node that it does not allow."""
    return RefusalError(
        f"the overlay asks for something that is not allowed, at {path or '/'}: {what}; what is, "
        "is in docs/fpga-deploy.md"
    )
