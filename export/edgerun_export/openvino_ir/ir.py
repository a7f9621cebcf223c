"""Writes OpenVINO's format (IR): the same bytes every time, constants where we want them."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import openvino
from numpy.typing import NDArray

from edgerun_export.graph.external_data import DataWriter, Stored

# What OpenVINO calls nodes that nobody named, and what they are called here. The latter is met
# again because some constants are shared by all models of a process.
_NAMELESS = re.compile(r"\w+[_.]\d+")

# More than an XML has, which takes 144 KB a layer at BitNet-2B-4T's shape.
_LARGEST = 1 << 25


class Constants:
    """The constants of an IR in a data file, each content once."""

    def __init__(self, data: DataWriter, stored: Iterable[Stored] = ()) -> None:
        """Appends to ``data``, where the pieces ``stored`` lie already."""
        self._data = data
        self._offsets: dict[bytes, int] = {}
        data.flush()
        for where in stored:
            piece = np.memmap(data.path, np.uint8, "r", where.offset, (where.length,))
            self._offsets.setdefault(_digest(piece), where.offset)

    def place(self, value: NDArray[np.uint8]) -> int:
        """Returns the offset of these bytes ``[length]``.

        Raises:
            OSError: the file cannot be written.
        """
        digest = _digest(value)
        if digest not in self._offsets:
            self._offsets[digest] = self._data.append([value], value.nbytes)
        return self._offsets[digest]


def write_ir(model: Any, path: Path, constants: Constants) -> None:
    """Writes the XML of a model, whose constants lie in the file named like it, ``.bin``.

    Raises:
        OSError: a file cannot be written.
    """
    name_nodes(model)
    tree = _serialised(model, path)
    nodes = {node.get_friendly_name(): node for *_, node in _all_nodes(model)}
    for layer in tree.iter("layer"):
        where = layer.find("data")
        if layer.get("type") == "Const" and where is not None:
            value = _memory(nodes[layer.attrib["name"]], int(where.attrib["size"]))
            where.set("offset", str(constants.place(value)))
    tree.write(path, "utf-8", xml_declaration=True)


def name_nodes(model: Any) -> None:
    """Gives every node, and every value with a name, one that is the same in every process.

    OpenVINO numbers nameless nodes in the order of their making, over the life of a process.
    """
    seen: set[str] = set()
    for path, index, node in _all_nodes(model):
        name = node.get_friendly_name()
        if _NAMELESS.fullmatch(name) or name in seen:
            name = f"{path}{node.get_type_name()}.{index}"
            node.set_friendly_name(name)
        seen.add(name)
        for output in node.outputs():
            names = output.get_names()
            if any(map(_NAMELESS.fullmatch, names)):
                named = {label for label in names if not _NAMELESS.fullmatch(label)}
                output.get_tensor().set_names(named or {name})


def _all_nodes(model: Any, path: str = "") -> Iterator[tuple[str, int, Any]]:
    """Nodes with their numbers, those of loops behind the loop and by its name."""
    for index, node in enumerate(model.get_ordered_ops()):
        yield path, index, node
        if hasattr(node, "get_function"):
            yield from _all_nodes(node.get_function(), f"{node.get_friendly_name()}/")


def _serialised(model: Any, path: Path) -> Any:
    """The XML as OpenVINO writes it; its constants go nowhere."""
    # By a link of our own, for OpenVINO deletes both of its files when it cannot write one:
    # given /dev/null itself, a full disk and root's rights, it takes that from the machine.
    nowhere = path.with_suffix(".nowhere")
    nowhere.symlink_to(os.devnull)
    try:
        openvino.serialize(model, path, nowhere)
        return ElementTree.parse(path)
    except (RuntimeError, ElementTree.ParseError) as error:
        raise _reason(path) from error
    finally:
        nowhere.unlink(missing_ok=True)


def _reason(path: Path) -> OSError:
    """Why OpenVINO could not write a file: it does not say, so the system is asked again."""
    try:
        with path.open("wb") as file:
            file.write(bytes(_LARGEST))
    except OSError as error:
        return error
    return OSError(errno.EIO, f"OpenVINO failed to write '{path.name}'")


def _memory(constant: Any, size: int) -> NDArray[np.uint8]:
    """The bytes of a constant, packed codes as they are; an empty one takes a byte in the file."""
    value = np.ascontiguousarray(constant.data).reshape(-1).view(np.uint8)
    return value if value.nbytes else np.zeros(size, np.uint8)


def _digest(value: NDArray[np.uint8]) -> bytes:
    return hashlib.sha256(value.data).digest()
