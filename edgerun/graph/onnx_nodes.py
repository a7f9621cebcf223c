"""Reads the nodes of an ONNX graph.

A mixture of experts has 90,000 of them, but of some twenty kinds: the nodes of a kind are the same
byte by byte but for names. What is the same is parsed and checked once; of a node only its names
are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from edgerun.errors import BundleError
from edgerun.graph.external_data import ExternalFiles, check_node_tensors
from edgerun.graph.ir import Body, Node

# By onnx.AttributeProto.AttributeType.
ATTRIBUTE_READERS: Mapping[int, Callable[[Any], Any]] = {
    1: lambda attribute: attribute.f,
    2: lambda attribute: attribute.i,
    3: lambda attribute: attribute.s.decode("utf-8", "replace"),
    6: lambda attribute: tuple(attribute.floats),
    7: lambda attribute: tuple(attribute.ints),
}
GRAPH = 5  # the type of an attribute that is one
DEFAULT_DOMAINS = ("", "ai.onnx")
LONGEST_NAME = 1000
LONGEST_KIND = 1 << 12  # bytes; a node with a large tensor is not kept for others
# By ONNX op, how many inputs a node has at least (operator specifications of ONNX, opset 23, and of
# onnxruntime), of those that passes ask for by number.
LEAST_INPUTS: Mapping[str, int] = {
    **dict.fromkeys(("Cast", "Concat", "ReduceSum", "Shape", "Split", "Transpose"), 1),
    **dict.fromkeys(("Add", "Conv", "Div", "Gather", "MatMul", "Mul", "Reshape", "Sub"), 2),
    **{"RMSNormalization": 2, "com.microsoft.MatMulNBits": 3},
}
OWN_FIELDS = ("name", "input", "output")
# Op, attributes and metadata of a node.
Kind: TypeAlias = tuple[str, Mapping[str, Any], Mapping[str, str]]


def read_nodes(protos: Iterable[Any], files: ExternalFiles) -> list[Node]:
    """The nodes, under different names: ONNX demands none of them, and nothing depends on them.

    Args:
        protos: ``NodeProto`` each; they lose their names and those of their values.
        files: where tensors in their attributes may lie.

    Raises:
        BundleError: an attribute is there twice, a tensor in one points outside of the model's
            files, or a name cannot be shown.
    """
    kinds: dict[bytes, Kind] = {}
    nodes: list[Node] = []
    names: set[str] = set()
    for index, proto in enumerate(protos):
        name, inputs, outputs = proto.name, tuple(proto.input[:]), tuple(proto.output[:])
        for field in OWN_FIELDS:
            proto.ClearField(field)
        encoded = proto.SerializeToString()
        kind = kinds.get(encoded)
        if kind is None:
            kind = _kind(proto, name, files)
            if len(encoded) <= LONGEST_KIND:
                kinds[encoded] = kind
        name = name or f"node_{index}"
        while name in names:
            name += f"#{index}"
        names.add(name)
        op, attributes, metadata = kind
        nodes.append(Node(op, name, inputs, outputs, attributes, metadata))
    return nodes


def check_names(names: Collection[str]) -> None:
    """Names go into messages: they are short, and have nothing that a terminal would obey.

    Raises:
        BundleError: one is not so.
    """
    if "".join(names).isprintable() and max(map(len, names), default=0) <= LONGEST_NAME:
        return  # as nearly always, and quickly
    for name in names:
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise BundleError(
                f"the graph has a name that cannot be shown, {name[:40]!r}...; expected at most "
                f"{LONGEST_NAME} printable characters"
            )


def check_values(nodes: Sequence[Node], given: Iterable[str]) -> None:
    """Every value is made once, and before a node reads it, as ONNX demands.

    Args:
        nodes: of a graph, in the order of its file.
        given: names of what no node makes: inputs and constants.

    Raises:
        BundleError: it is not so, or a name cannot be shown.
    """
    check_names([node.name for node in nodes])
    check_names([name for node in nodes for name in node.outputs])
    available = {"", *given}  # the empty name stands for an input that is absent
    for node in nodes:
        if not available.issuperset(node.inputs):
            name = next(name for name in node.inputs if name not in available)
            check_names([name])
            raise BundleError(
                f"node '{node.name}' ({node.op}) reads '{name}', which nothing before it makes"
            )
        for name in node.outputs:
            if name and name in available:
                raise BundleError(
                    f"node '{node.name}' ({node.op}) makes '{name}', which is there already"
                )
            available.add(name)


def check_counts(nodes: Iterable[Node]) -> None:
    """Nodes have the inputs that their op demands, and make something.

    Raises:
        BundleError: one has fewer.
    """
    for node in nodes:
        least = LEAST_INPUTS.get(node.op, 0)
        if len(node.inputs) < least or not all(node.inputs[:least]):
            raise BundleError(
                f"node '{node.name}' ({node.op}) has {sum(map(bool, node.inputs[:least]))} of the "
                f"{least} inputs that it needs: copy the model or export it again"
            )
        if not node.outputs:
            raise BundleError(
                f"node '{node.name}' ({node.op}) makes nothing: copy the model or export it again"
            )


def _kind(proto: Any, name: str, files: ExternalFiles) -> Kind:
    """What a node has in common with others; ``name`` is its own, for messages."""
    check_names((name, proto.op_type, proto.domain, *(each.name for each in proto.attribute)))
    check_node_tensors(proto, files)
    attributes = {
        attribute.name: _body(attribute.g) if attribute.type == GRAPH else _attribute(attribute)
        for attribute in proto.attribute
    }
    if len(attributes) != len(proto.attribute):
        raise BundleError(f"node '{name}' ({proto.op_type}) has an attribute twice")
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    return _op(proto), attributes, metadata


def _op(proto: Any) -> str:
    domain = "" if proto.domain in DEFAULT_DOMAINS else f"{proto.domain}."
    return f"{domain}{proto.op_type}"


def _body(graph: Any) -> Body:
    """A graph in an attribute; those within it are left out, as nothing reads any."""
    nodes = [
        Node(
            _op(proto),
            proto.name,
            tuple(proto.input[:]),
            tuple(proto.output[:]),
            {each.name: _attribute(each) for each in proto.attribute},
        )
        for proto in graph.node
    ]
    inputs, outputs = (tuple(v.name for v in values) for values in (graph.input, graph.output))
    is_plain = not (graph.initializer or graph.sparse_initializer) and all(
        len(node.attrs) == len(proto.attribute)
        for node, proto in zip(nodes, graph.node, strict=True)
    )
    return Body(tuple(nodes), inputs, outputs, is_plain)


def _attribute(attribute: Any) -> Any:
    """Value of a scalar, string or list attribute; None for tensors and graphs."""
    reader = ATTRIBUTE_READERS.get(attribute.type)
    return reader(attribute) if reader else None
