"""Protocol Buffers by a table of fields, beside Google's library."""

from __future__ import annotations

import random

import onnx
import pytest
from onnx import TensorProto, helper

from edgerun.graph.onnx_fields import MODEL, TYPE_NAMES
from edgerun.graph.protobuf import Field, WireError, read_message

INNER = {1: Field("name", "text"), 2: Field("ids", "int", True)}
OUTER = {
    1: Field("number", "int"),
    2: Field("real", "float"),
    3: Field("wide", "double"),
    4: Field("text", "text"),
    5: Field("raw", "bytes"),
    6: Field("inner", "message", False, INNER),
    7: Field("many", "message", True, INNER),
    8: Field("reals", "float", True),
}
TWO_PARTS = {"inner": {"name": "a", "ids": [5, 6, 7]}}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", {}),
        (b"\x08\x96\x01", {"number": 150}),
        (b"\x08" + b"\xff" * 9 + b"\x01", {"number": -1}),
        (b"\x08\x01\x08\x02", {"number": 2}),  # the last one counts
        (b"\x15\x00\x00\xc0\x3f", {"real": 1.5}),
        (b"\x19" + b"\0" * 6 + b"\xf8\x3f", {"wide": 1.5}),
        (b"\x22\x02\xc3\xa9", {"text": "é"}),
        (b"\x2a\x02\xff\x00", {"raw": b"\xff\0"}),
        # A message in two parts is one; lists go on, packed or not.
        (b"\x32\x03\x0a\x01a\x32\x02\x10\x05\x32\x04\x12\x02\x06\x07", TWO_PARTS),
        (b"\x3a\x00\x3a\x03\x0a\x01b", {"many": [{}, {"name": "b"}]}),
        (b"\x42\x04\x00\x00\x80\x3f\x45\x00\x00\x00\x40", {"reals": [1.0, 2.0]}),
        # Unknown fields, and known ones of a type they cannot have, are skipped.
        (b"\x7a\x01x\x78\x01\x7d1234\x7912345678", {}),
        (b"\x0a\x01x\x20\x01\x35abcd", {}),
    ],
)  # fmt: skip
def test_values(data: bytes, expected: dict[str, object]) -> None:
    found = read_message(data, OUTER)
    for name, value in found.items():
        assert type(value) is type(expected[name]) or list(value) == expected[name]
    if "inner" in found and "ids" in found["inner"]:
        found["inner"]["ids"] = list(found["inner"]["ids"])
    assert {name: list(v) if name == "reals" else v for name, v in found.items()} == expected


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",  # no value
        b"\x08\x80",  # half a number
        b"\x08" + b"\xff" * 10 + b"\x01",  # a number of more than 64 bits
        b"\x22\x05ab",  # a text longer than the message
        b"\x22\xff\xff\xff\xff\x7f",
        b"\x15\x00\x00",  # half a float
        b"\x42\x03abc",  # a list that ends inside a number
        b"\x32\x02\x12\x05",  # a list longer than its message
        b"\x32\x02\x12\x01\x80",
        b"\x0b\x0c",  # a group
        b"\x0f",  # no such wire type
        b"\x00\x00",  # no such field
        b"\x22\x01\xff",  # no UTF-8
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_message(data, OUTER)


def model() -> bytes:
    nodes = [
        helper.make_node("MatMulNBits", ["x", "w", ""], ["y"], domain="com.microsoft", K=-6, s="é"),
        helper.make_node("Clip", ["y"], ["z"], floats=[0.5, -1.5], ints=[1, -(2**40)], alpha=2.5),
    ]  # fmt: skip
    tensors = [
        helper.make_tensor("a", TensorProto.FLOAT, [2], [1.5, 2.5]),
        helper.make_tensor("b", TensorProto.INT64, [3], [-1, 0, 2**40]),
        helper.make_tensor("c", TensorProto.UINT8, [2], b"\1\2", raw=True),
        helper.make_tensor("d", TensorProto.DOUBLE, [1], [0.25]),
        helper.make_tensor("e", TensorProto.INT32, [2], [-7, 7]),
    ]
    outputs = [helper.make_tensor_value_info("z", TensorProto.FLOAT, [None, 2])]
    made = helper.make_model(helper.make_graph(nodes, "graph", [], outputs, tensors))
    return bytes(made.SerializeToString())


def test_a_model_reads_as_the_library_reads_it() -> None:
    data = model()
    graph, expected = read_message(data, MODEL)["graph"], onnx.load_from_string(data).graph
    assert [value["name"] for value in graph["output"]] == ["z"]
    for node, other in zip(graph["node"], expected.node, strict=True):
        assert (node["op_type"], node.get("domain", "")) == (other.op_type, other.domain)
        assert (node["input"], node["output"]) == (list(other.input), list(other.output))
        for one, same in zip(node["attribute"], other.attribute, strict=True):
            assert (one["name"], one["type"]) == (same.name, same.type)
            assert (one.get("i", 0), one.get("f", 0.0), one.get("s", b"")) == (
                same.i,
                same.f,
                same.s,
            )
            assert list(one.get("ints", ())) == list(same.ints)
            assert list(one.get("floats", ())) == list(same.floats)
    for tensor, like in zip(graph["initializer"], expected.initializer, strict=True):
        assert (tensor["name"], tensor["data_type"]) == (like.name, like.data_type)
        assert list(tensor["dims"]) == list(like.dims)
        assert tensor.get("raw_data", b"") == like.raw_data
        for name in ("float_data", "int32_data", "int64_data", "double_data"):
            assert list(tensor.get(name, ())) == list(getattr(like, name))


def test_damaged_models_end_in_a_value_error_or_a_message() -> None:
    data, chance = model(), random.Random(1)
    for _ in range(3000):
        broken = bytearray(data)
        for _ in range(chance.choice((1, 2, 4))):
            broken[chance.randrange(len(data))] = chance.randrange(256)
        try:
            read_message(bytes(broken), MODEL)
        except ValueError as error:
            assert isinstance(error, WireError | UnicodeDecodeError)  # noqa: PT017


def test_names_of_types_are_onnxs() -> None:
    known = {number: name.lower() for name, number in TensorProto.DataType.items()}
    for number, name in known.items():
        if number < len(TYPE_NAMES):
            assert TYPE_NAMES[number] == name
