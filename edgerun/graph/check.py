"""Whether a lowered graph is one that can be run: the wall in front of every back-end.

Kernels are machine code that trusts sizes, so nothing may reach them that does not fit together.
What each op demands is data in its file in ``ops/``; here it is compared with every node and
constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph.attributes import is_unread
from edgerun.graph.constants import check_constant
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.graph.shapes import ALTERED, output_shapes
from edgerun.ops.base import IDS, LOGITS, POSITIONS, Kind, Operand
from edgerun.ops.registry import OPS

CONSTANTS = (Kind.VECTOR, Kind.MATRIX, Kind.STACK)


def check(graph: Graph) -> Mapping[str, ValueShape]:
    """Checks a lowered graph: names, attributes, constants, and how all sizes fit together.

    Returns:
        shapes of all values.

    Raises:
        BundleError: something is missing, of another type or size, or contradicts the rest.
        UnsupportedError: an op, an attribute of an ONNX op or a weight format is not known.
    """
    _check_ops(graph)
    shapes: dict[str, ValueShape] = {}
    checked: set[tuple[str, Operand]] = set()
    names: set[str] = set()
    for node in graph.nodes:
        if node.name in names:
            raise BundleError(f"two nodes are called '{node.name}': {ALTERED}")
        names.add(node.name)
        _check_attributes(node)
        _check_inputs(graph, node, shapes)
        for name, operand in _constants(node):
            if (name, operand) not in checked:
                check_constant(name, graph.constants[name], operand)
                checked.add((name, operand))
        _check_outputs(graph, node, shapes)
        shapes.update(output_shapes(graph, node, shapes))
    _check_ends(graph, shapes)
    _check_head_vectors(graph, shapes)
    return shapes


def _check_ops(graph: Graph) -> None:
    """There are nodes, and each is of an op that we have."""
    if not graph.nodes:
        raise UnsupportedError("the model's graph computes nothing: its outputs are constants")
    unknown = [node for node in graph.nodes if node.op not in OPS]
    if unknown:
        # A node with an attribute that no pass reads is why its neighbours are not known either.
        node = min(unknown, key=lambda node: not is_unread(node))
        raise UnsupportedError(
            f"node '{node.name}' is '{node.op}', for which edgerun has neither an op nor a form "
            "to make one of"
        )


def _check_attributes(node: Node) -> None:
    rules = OPS[node.op].attributes
    if set(node.attrs) != set(rules):
        raise BundleError(
            f"node '{node.name}' ({node.op}) has the attributes {_listed(node.attrs)}; expected "
            f"{_listed(rules)}"
        )
    for name, rule in rules.items():
        if not rule.allows(node.attrs[name]):
            raise BundleError(
                f"node '{node.name}' ({node.op}) has {name} = {node.attrs[name]!r}; expected {rule}"
            )


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "none"


def _check_inputs(graph: Graph, node: Node, shapes: Mapping[str, ValueShape]) -> None:
    """Every operand is there, and what its kind demands: made before, or a constant."""
    operands = OPS[node.op].inputs
    needed = sum(not operand.optional for operand in operands)
    if not needed <= len(node.inputs) <= len(operands):
        raise BundleError(
            f"node '{node.name}' ({node.op}) has {len(node.inputs)} inputs; expected {needed} to "
            f"{len(operands)}"
        )
    sources = {
        Kind.ROWS: (shapes, "a value that an earlier node makes"),
        Kind.BATCH: ((IDS, POSITIONS), "an input of the model"),
        Kind.VECTOR: (graph.constants, "a constant"),
        Kind.MATRIX: (graph.constants, "a constant"),
        Kind.STACK: (graph.constants, "a constant"),
    }
    for operand, name in zip(operands, node.inputs, strict=False):
        source, description = sources[operand.kind]
        absent = operand.optional and not name
        if not absent and (name not in source or _misplaced(operand, name)):
            raise BundleError(
                f"node '{node.name}' ({node.op}) reads '{name}' as {operand.name}; expected "
                f"{description}"
            )
        if operand.kind is Kind.ROWS and not absent and shapes[name].dtype != operand.dtype:
            raise BundleError(
                f"node '{node.name}' ({node.op}) reads '{name}', which is {shapes[name].dtype}, as "
                f"{operand.name}; expected {operand.dtype}: {ALTERED}"
            )


def _misplaced(operand: Operand, name: str) -> bool:
    """Whether the ids stand where positions belong, or the other way round."""
    return operand.kind is Kind.BATCH and name != operand.name


def _constants(node: Node) -> list[tuple[str, Operand]]:
    """The constants that a node reads."""
    pairs = zip(node.inputs, OPS[node.op].inputs, strict=False)
    return [pair for pair in pairs if pair[0] and pair[1].kind in CONSTANTS]


def _check_outputs(graph: Graph, node: Node, shapes: Mapping[str, ValueShape]) -> None:
    """A node makes the values of its op, which nothing else makes."""
    count = len(OPS[node.op].outputs)
    others = ({"", IDS, POSITIONS}, shapes, graph.constants)
    own = {name for name in node.outputs if not any(name in names for names in others)}
    if len(node.outputs) != count or len(own) != count:
        expected = f"{count} values" if count > 1 else "one value"
        raise BundleError(
            f"node '{node.name}' ({node.op}) makes {', '.join(node.outputs) or 'nothing'}; "
            f"expected {expected} that nothing else makes: {ALTERED}"
        )


def _check_ends(graph: Graph, shapes: Mapping[str, ValueShape]) -> None:
    """The graph makes logits of the wanted rows, and nothing else goes in or out."""
    logits = shapes.get(LOGITS)
    if list(graph.outputs) != [LOGITS] or logits is None or not logits.selected:
        raise BundleError(
            f"the graph gives {', '.join(graph.outputs) or 'nothing'}; expected {LOGITS}, made by "
            f"a linear layer, bounded or not: {ALTERED}"
        )
    if graph.inputs:
        raise BundleError(f"the graph reads {', '.join(graph.inputs)}, which nothing provides")


def _check_head_vectors(graph: Graph, shapes: Mapping[str, ValueShape]) -> None:
    """A norm is as long as a row; as a head only where heads are what is read next, or before."""
    readers, makers = graph.consumers(), graph.producers()
    for node in graph.nodes:
        for name, operand in _constants(node):
            width, size = shapes[node.outputs[0]].width, graph.constants[name].shape[0]
            heads = {reader.attrs.get("head_dim") for reader in readers.get(node.outputs[0], [])}
            maker = makers.get(node.inputs[0])
            of_heads = None if maker is None else maker.attrs.get("value_dim")
            if operand.of_heads and size != width and heads != {size} and of_heads != size:
                raise BundleError(
                    f"node '{node.name}' ({node.op}) treats rows of {width} by a {operand.name} of "
                    f"{size}; expected {width}: {ALTERED}"
                )
