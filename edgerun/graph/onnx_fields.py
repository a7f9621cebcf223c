"""The fields of ONNX's messages that the reader looks at; source: onnx-ml.proto, IR version 11."""

from __future__ import annotations

from edgerun.graph.protobuf import Field

ENTRY = {1: Field("key", "text"), 2: Field("value", "text")}
TENSOR = {
    1: Field("dims", "int", repeated=True),
    2: Field("data_type", "int"),
    4: Field("float_data", "float", repeated=True),
    5: Field("int32_data", "int", repeated=True),
    7: Field("int64_data", "int", repeated=True),
    8: Field("name", "text"),
    9: Field("raw_data", "bytes"),
    10: Field("double_data", "double", repeated=True),
    13: Field("external_data", "message", True, ENTRY),
    14: Field("data_location", "int"),
}
ATTRIBUTE = {
    1: Field("name", "text"),
    2: Field("f", "float"),
    3: Field("i", "int"),
    4: Field("s", "bytes"),
    7: Field("floats", "float", repeated=True),
    8: Field("ints", "int", repeated=True),
    20: Field("type", "int"),
}
NODE = {
    1: Field("input", "text", repeated=True),
    2: Field("output", "text", repeated=True),
    3: Field("name", "text"),
    4: Field("op_type", "text"),
    5: Field("attribute", "message", True, ATTRIBUTE),
    7: Field("domain", "text"),
    9: Field("metadata_props", "message", True, ENTRY),
}
VALUE = {1: Field("name", "text")}
GRAPH = {
    1: Field("node", "message", True, NODE),
    5: Field("initializer", "message", True, TENSOR),
    11: Field("input", "message", True, VALUE),
    12: Field("output", "message", True, VALUE),
}
MODEL = {7: Field("graph", "message", False, GRAPH)}
# Names of TensorProto.DataType, from 0 on.
TYPE_NAMES = (
    "undefined",
    "float",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "int32",
    "int64",
    "string",
    "bool",
    "float16",
    "double",
    "uint32",
    "uint64",
    "complex64",
    "complex128",
    "bfloat16",
    "float8e4m3fn",
    "float8e4m3fnuz",
    "float8e5m2",
    "float8e5m2fnuz",
    "uint4",
    "int4",
    "float4e2m1",
    "float8e8m0",
    "uint2",
    "int2",
)
