"""Checks device tree overlays (.dtbo) and has the device tree compiler make them.

The format is chapter 5 of the Devicetree Specification 0.4.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from edgerun.errors import MissingDependencyError
from edgerun_hw.deploy.errors import PackageError

MAGIC, VERSION = 0xD00DFEED, 17
HEADER_BYTES = 40
BEGIN_NODE, END_NODE, PROPERTY, NOP, END = 1, 2, 3, 4, 9
MAX_DEPTH = 64
OVERLAY_NODE = "__overlay__"
COMPILE_S = 30


class Property(NamedTuple):
    """A property: the names of the nodes around it, its own name and its bytes."""

    path: tuple[str, ...]
    name: str
    value: bytes


def check_overlay(data: bytes, bitstream: str) -> None:
    """Checks an overlay that is to load the bitstream file ``bitstream``.

    Raises:
        PackageError: it is no device tree, changes nothing, or names another bitstream.
    """
    properties = list(read_properties(data))
    if not any(OVERLAY_NODE in found.path for found in properties):
        raise PackageError(
            "the device tree has no __overlay__ node: it is a whole tree and not an overlay; "
            "begin its source with /dts-v1/; /plugin/;"
        )
    names = [
        found.value.rstrip(b"\0").decode("utf-8", "replace")
        for found in properties
        if found.name == "firmware-name"
    ]
    if not names:
        raise PackageError(
            f"the overlay has no firmware-name: xmutil then loads no bitstream; add firmware-name "
            f'= "{bitstream}";'
        )
    if names != [bitstream]:
        raise PackageError(
            f"the overlay's firmware-name is {', '.join(names)} and must be {bitstream}: change "
            "it, or give the package the other name with --name"
        )


def read_properties(data: bytes) -> Iterator[Property]:
    """Walks through a flattened device tree.

    Raises:
        PackageError: anything points outside or is cut off.
    """
    if len(data) < HEADER_BYTES or _cell(data, 0) != MAGIC:
        raise PackageError("the overlay is no compiled device tree (.dtbo)")
    total, structure, strings = (_cell(data, 4 * i) for i in (1, 2, 3))
    version, compatible_with = _cell(data, 20), _cell(data, 24)
    strings_size, structure_size = _cell(data, 32), _cell(data, 36)
    if total != len(data) or version < VERSION or compatible_with > VERSION:
        raise PackageError(
            f"the overlay has {len(data)} bytes of {total} and version {version}: it is cut off or "
            "of an unknown version"
        )
    if strings + strings_size > total or structure + structure_size > total or structure % 4:
        raise PackageError("the overlay's parts lie outside it")
    names = data[strings : strings + strings_size]
    yield from _walk(data[structure : structure + structure_size], names)


def _walk(structure: bytes, names: bytes) -> Iterator[Property]:
    offset, path = 0, list[str]()
    while offset + 4 <= len(structure):
        token = _cell(structure, offset)
        offset += 4
        if token == BEGIN_NODE and len(path) < MAX_DEPTH:
            name = _string(structure, offset)
            path.append(name)
            offset += len(name) + 4 & ~3
        elif token == END_NODE and path:
            path.pop()
        elif token == PROPERTY and path and offset + 8 <= len(structure):
            size, where = _cell(structure, offset), _cell(structure, offset + 4)
            offset += 8
            if offset + size > len(structure):
                break
            yield Property(tuple(path), _string(names, where), structure[offset : offset + size])
            offset += size + 3 & ~3
        elif token == END and not path:
            return
        elif token != NOP:
            break
    raise PackageError("the overlay's structure is broken or cut off")


def _cell(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "big")


def _string(data: bytes, offset: int) -> str:
    end = data.find(b"\0", offset)
    if offset >= len(data) or end < 0:
        raise PackageError("a name in the overlay is cut off")
    return data[offset:end].decode("latin-1")


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
            "device-tree-compiler, or compile the overlay elsewhere and pass --dtbo"
        )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "overlay.dtbo"
        done = subprocess.run(
            [compiler, "-@", "-I", "dts", "-O", "dtb", "-o", str(out), str(source.resolve())],
            capture_output=True,
            text=True,
            timeout=COMPILE_S,
            check=False,
        )
        if done.returncode or not out.exists():
            errors = [line for line in done.stderr.splitlines() if "rror" in line]
            raise PackageError(
                f"dtc refuses {source}: {errors[0] if errors else 'it says nothing'}"
            )
        return out.read_bytes()
