"""ONNX's messages are the same with and without the package around them, and not too many."""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from edgerun.errors import BundleError
from edgerun.graph import onnx_reader, onnx_schema
from edgerun.graph.onnx_reader import read_graph
from tests.support.bundles import bundle_of

READ = """
import sys
{before}
from edgerun.graph.onnx_schema import onnx_messages
model = onnx_messages().ModelProto(ir_version=10)
alone = "onnx" not in sys.modules
import onnx
assert onnx.ModelProto is type(model)
assert onnx.load_from_string(model.SerializeToString()).ir_version == 10
print(alone)
"""


@pytest.mark.parametrize(("before", "alone"), [("", "True"), ("import onnx", "False")])
def test_messages_are_those_of_the_package(before: str, alone: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ.format(before=before)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == alone


def bundle_bytes(name: str = "llama") -> bytes:
    return (bundle_of(name, weights="int4") / "model.onnx").read_bytes()


def counts_of(message: Any) -> tuple[int, int]:
    """Messages in a message, and strings of lists, by asking protobuf."""
    parts = strings = 0
    for field, value in message.ListFields():
        values = list(value) if field.is_repeated else [value]
        if field.message_type is not None:
            inner = [counts_of(each) for each in values]
            parts += len(values) + sum(count for count, _ in inner)
            strings += sum(count for _, count in inner)
        elif field.is_repeated and field.cpp_type == field.CPPTYPE_STRING:
            strings += len(values)
    return parts, strings


def parts_of(message: Any) -> int:
    """What a message counts for."""
    parts, strings = counts_of(message)
    return parts + strings // 2


@pytest.mark.parametrize("name", ["llama", "olmoe", "qwen3_next", "granitemoehybrid-mamba"])
def test_parts_are_counted_as_protobuf_makes_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bundle_bytes(name)
    model = onnx_schema.onnx_messages().ModelProto()
    model.ParseFromString(data)
    monkeypatch.setattr(onnx_schema, "FREE_BYTES", 0)
    monkeypatch.setattr(onnx_schema, "MAX_PARTS", parts_of(model))
    onnx_schema.check_parts(data)
    monkeypatch.setattr(onnx_schema, "MAX_PARTS", parts_of(model) - 1)
    with pytest.raises(BundleError, match=f"has {parts_of(model)} parts"):
        onnx_schema.check_parts(data)


def test_models_are_far_from_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_schema, "FREE_BYTES", 1000)
    monkeypatch.setattr(onnx_schema, "LEAST_BYTES", 3 * onnx_schema.LEAST_BYTES)
    monkeypatch.setattr(onnx_schema, "MAX_INTEGERS", 1 << 12)
    for name in ("llama", "olmoe", "gpt_oss", "gemma3n_text", "qwen3_next"):
        onnx_schema.check_parts(bundle_bytes(name))


def field(number: int, content: bytes) -> bytes:
    """A field of some bytes."""
    length, size = len(content), b""
    while length > 0x7F:
        length, size = length >> 7, size + bytes([length & 0x7F | 0x80])
    return bytes([number << 3 | 2]) + size + bytes([length]) + content


def nested(content: bytes, depth: int) -> bytes:
    """A graph whose node's attribute is a graph, and so on."""
    for _ in range(depth):
        content = field(1, field(5, field(6, content)))
    return content


MANY = 200_000
GRAPHS = {
    "nodes": field(1, b"") * MANY,
    "tensors": field(5, b"") * MANY,
    "values": field(13, b"") * MANY,
    "attributes": field(1, field(5, b"") * MANY),
    "attributes of small nodes": field(1, field(5, b"") * 30) * (MANY // 30),
    "tensors in attributes": field(1, field(5, field(10, b"") * 30)) * (MANY // 30),
    "notes": field(1, field(9, b"") * MANY),
    "nodes of graphs in nodes": nested(field(1, b"") * MANY, 3),
    "places of data": field(5, field(13, b"") * MANY),
    "inputs": field(1, field(1, b"") * MANY),
    "outputs of small nodes": field(1, field(2, b"") * 30) * (MANY // 30),
    "strings of attributes": field(1, field(5, field(9, b"") * 30) * (MANY // 30)),
    "strings in tensors": field(5, field(6, b"") * MANY),
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_many_small_parts_are_refused_before_they_are_made(
    graph: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(onnx_reader, "onnx_messages")
    data = field(7, graph) + field(7, field(5, field(9, bytes(1 << 20))))
    with pytest.raises(BundleError, match="parts in its first .* bytes, data of tensors left out"):
        read_graph(Path("model.onnx"), data)


@pytest.mark.parametrize(
    "graph",
    [
        field(5, field(5, bytes((1 << 24) + 1))),
        field(5, field(7, bytes(1 << 23))) * 3,
        field(1, field(5, field(8, bytes((1 << 24) + 1)))),
    ],
)
def test_lists_of_integers_are_short(graph: bytes) -> None:
    with pytest.raises(BundleError, match="bytes of integers in lists"):
        onnx_schema.check_parts(field(7, graph))


def test_lists_of_floats_are_as_long_as_in_memory() -> None:
    onnx_schema.check_parts(field(7, field(5, field(4, bytes((1 << 24) + 4)))))


ONE_BY_ONE = {
    "small dimensions": field(5, b"\x08\x07" * 5000),
    "large elements": field(5, b"\x38\xff\x7f" * 2500),
    "attributes": field(1, field(5, b"\x40\x07" * 5000)),
    "attributes of many nodes": field(1, field(5, b"\x40\x07" * 30)) * 200,
}


@pytest.mark.parametrize("graph", ONE_BY_ONE.values(), ids=ONE_BY_ONE)
def test_integers_that_lie_one_by_one_count_as_those_of_a_list(
    graph: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_schema, "FREE_BYTES", 1000)
    monkeypatch.setattr(onnx_schema, "MAX_INTEGERS", 6000)
    onnx_schema.check_parts(field(7, graph))
    monkeypatch.setattr(onnx_schema, "MAX_INTEGERS", 4999)
    with pytest.raises(BundleError, match="more than 4999 bytes of integers in lists"):
        onnx_schema.check_parts(field(7, graph))


def test_a_node_with_too_many_names_is_not_read_to_its_end() -> None:
    node = field(1, b"") * 2 * MANY + bytes([3])  # which no field begins with
    with pytest.raises(BundleError, match="parts in its first"):
        onnx_schema.check_parts(field(7, field(1, node)))


def test_lengths_may_end_in_any_byte_below_128(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_schema, "FREE_BYTES", 0)
    notes = field(6, bytes(0x7F << 7)) + field(6, bytes(0x7F))
    onnx_schema.check_parts(notes + field(7, field(1, b"")) + field(6, bytes(100)))


def test_a_tensor_with_too_many_integers_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onnx_schema, "FREE_BYTES", 1000)
    monkeypatch.setattr(onnx_schema, "MAX_INTEGERS", 4999)
    tensor = b"\x08\x07" * 5000 + bytes([3])  # which no field begins with
    with pytest.raises(BundleError, match="integers in lists"):
        onnx_schema.check_parts(field(7, field(5, tensor)))


def test_parts_in_parts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_schema, "FREE_BYTES", 0)
    with pytest.raises(BundleError, match="parts in parts, 100 deep"):
        onnx_schema.check_parts(field(7, nested(field(1, b"") + bytes(1000), 40)))


def test_a_file_that_is_cut_or_altered_is_refused_or_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onnx_schema, "FREE_BYTES", 0)
    data, draw = bundle_bytes()[:6000], random.Random(0)
    for end in range(0, len(data), 7):
        altered = bytearray(data[:end] if end % 2 else data)
        if altered:
            altered[draw.randrange(len(altered))] = draw.randrange(256)
        with suppress(BundleError):
            onnx_schema.check_parts(bytes(altered))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x08\xff", "ends in the middle of a number"),
        (field(7, b"")[:-1], "ends in the middle of a number"),
        (field(7, bytes(9))[:-1], "ends in the middle of a part"),
        (field(7, b"\x0a\x05") + bytes(9), "ends in the middle of a part"),
        (b"\x0b", "a field of the unknown kind 3"),
        (b"\xff" * 11, "a number of more than ten bytes"),
    ],
)
def test_what_is_no_message_is_refused(
    data: bytes, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_schema, "FREE_BYTES", 0)
    with pytest.raises(BundleError, match=f"the model file .*{says}"):
        onnx_schema.check_parts(data)
