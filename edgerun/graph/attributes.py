"""Which attributes the passes read of each ONNX op, and what an absent one means.

A node with an attribute that no pass reads computes something else than the op that a pass would
make of it, so no pass may recognise it. It gets a name of its own, such as
``Attention with softmax_precision=11``, for which no back-end has a kernel: the refusal then says
why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from edgerun.errors import BundleError
from edgerun.graph.ir import Body, Graph, Node

WITH = " with "
_TYPES = {int: "a whole number", float: "a number", str: "text", tuple: "a list", Body: "a graph"}


@dataclass(frozen=True, slots=True)
class Read:
    """An attribute that a pass or a pattern compares or uses.

    Attributes:
        kind: its exact type.
        default: what an absent one means; None if there is no such value.
        needed: whether it must be there.
    """

    kind: type
    default: Any = None
    needed: bool = False


Rules: TypeAlias = Mapping[str, Any]  # a Read, or the one value that changes nothing


def read_attributes(graph: Graph, table: Mapping[str, Rules]) -> Graph:
    """Writes defaults out, drops what changes nothing, and renames nodes that no pass may read.

    Args:
        graph: as it was read from a file.
        table: which attributes are read, by op; of other ops none is.

    Raises:
        BundleError: an attribute has another type than its op demands, or is missing.
    """
    # Nodes of a kind share their attributes (``onnx_nodes.py``), which are looked at once.
    kinds: dict[tuple[str, int], Node] = {}
    nodes = []
    for node in graph.nodes:
        key = node.op, id(node.attrs)
        kind = kinds.get(key)
        if kind is None:
            kind = kinds[key] = _read(node, table.get(node.op, {}))
        if kind.attrs is not node.attrs:
            node = node.replace(op=kind.op, attrs=kind.attrs)
        nodes.append(node)
    return replace(graph, nodes=nodes, constants={**graph.constants})


def is_unread(node: Node) -> bool:
    """Whether a node has an attribute that no pass reads."""
    return WITH in node.op


def _read(node: Node, rules: Rules) -> Node:
    defaults = {
        name: rule.default
        for name, rule in rules.items()
        if isinstance(rule, Read) and rule.default is not None
    }
    unread = []
    given = {}
    for name, value in node.attrs.items():
        rule = rules.get(name)
        if isinstance(rule, Read):
            given[name] = _typed(node, name, value, rule.kind)
        elif rule is None or type(value) is not type(rule) or value != rule:
            unread.append(f"{name}={value!r}")
    missing = [
        name
        for name, rule in rules.items()
        if isinstance(rule, Read) and rule.needed and name not in given
    ]
    if missing:
        raise BundleError(f"node '{node.name}' ({node.op}) has no {', '.join(missing)}")
    if given.keys() >= defaults.keys() and len(given) == len(node.attrs):
        return node  # as most nodes of a large model are
    op = node.op + (WITH + ", ".join(unread) if unread else "")
    return node.replace(op=op, attrs=defaults | given)


def _typed(node: Node, name: str, value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise BundleError(
            f"node '{node.name}' ({node.op}) has {name} = {value!r}; expected {_TYPES[kind]}"
        )
    return value
