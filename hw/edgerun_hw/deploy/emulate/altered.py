"""Alters applications in ways that a digest cannot tell, for the fuzzer and the tests."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable

from edgerun_hw.deploy.broker.application.manifest import MANIFEST
from edgerun_hw.deploy.broker.formats import configuration
from edgerun_hw.deploy.broker.formats.fdt import Node, read_tree
from edgerun_hw.deploy.emulate.sample import write_tree
from edgerun_hw.deploy.package import DEFAULT_NAME

Alteration = Callable[[random.Random, bytes], bytes]


def other_device(generator: random.Random, data: bytes) -> bytes:
    """A bitstream for another device: another IDCODE in the stream."""
    good = configuration.swap_words(data)
    stream = bytearray(good)
    for write in configuration.writes(good):
        if write.register == configuration.REGISTER_IDCODE:
            stream[write.start + generator.randrange(1, 4)] ^= 1 << generator.randrange(8)
            break
    return configuration.swap_words(bytes(stream))


def other_head(generator: random.Random, data: bytes) -> bytes:
    """A bitstream that does not begin as one: cut, or its first words overwritten."""
    if generator.random() < 0.5:
        return data[: generator.randrange(1, 48)]
    at = 4 * generator.randrange(12)
    return data[:at] + generator.randbytes(4) + data[at + 4 :]


def other_overlay(generator: random.Random, data: bytes) -> bytes:
    """An overlay that asks for something else: another value, property, node or target."""
    root = read_tree(data)
    # What the overlay calls its own nodes is up to it.
    places = [node for path, node in root.walk() if node.properties and path != "/__symbols__"]
    node = generator.choice(places)
    name = generator.choice(list(node.properties))
    how = generator.randrange(4)
    if how == 0:
        node.properties[name] = generator.randbytes(4 * generator.randrange(1, 6)) + b"\1"
    elif how == 1:
        node.properties[f"{name}x"] = node.properties.pop(name)
    elif how == 2:
        node.children[f"x{generator.randrange(100)}@{generator.getrandbits(32):x}"] = Node()
    else:
        node.properties["generic"] = generator.randbytes(8)
    return write_tree(root)


def broken_overlay(generator: random.Random, data: bytes) -> bytes:
    """An overlay that is cut off, or has something behind its end."""
    if generator.random() < 0.5:
        return data[: generator.randrange(1, len(data))]
    return data + generator.randbytes(generator.randrange(1, 9))


ALTERATIONS: tuple[tuple[str, Alteration], ...] = (
    (f"{DEFAULT_NAME}.bit.bin", other_device),
    (f"{DEFAULT_NAME}.bit.bin", other_head),
    (f"{DEFAULT_NAME}.dtbo", other_overlay),
    (f"{DEFAULT_NAME}.dtbo", broken_overlay),
)


def alter(generator: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
    """Alters the bitstream or the overlay, and makes the manifest right about it."""
    name, how = generator.choice(ALTERATIONS)
    data = files[name]
    while data == files[name]:
        data = how(generator, files[name])
    manifest = json.loads(files[MANIFEST])
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return {**files, name: data, MANIFEST: json.dumps(manifest).encode()}
