"""Sizes in a lowered graph, from the op schema: widths of values, and what their rows are."""

from __future__ import annotations

import math
from collections.abc import Mapping

from edgerun.errors import BundleError
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.graph.ops import SCHEMAS, Kind, Operand

Shapes = Mapping[str, ValueShape]
ALTERED = "the model is damaged or altered, copy or export it again"


def value_shapes(graph: Graph) -> dict[str, ValueShape]:
    """Shapes of all values that nodes of the op schema make, by name.

    Raises:
        BundleError: the sizes of a node's inputs, constants and attributes contradict each other.
    """
    known: dict[str, ValueShape] = dict(graph.shapes)
    for node in graph.nodes:
        shape = output_shape(graph, node, known)
        if shape is not None:
            known.update(dict.fromkeys(node.outputs, shape))
    return known


def output_shape(graph: Graph, node: Node, known: Shapes) -> ValueShape | None:
    """Shape of a node's output, or None if it is of another op or too little is known.

    Raises:
        BundleError: the sizes of the node contradict each other.
    """
    schema = SCHEMAS.get(node.op)
    if schema is None:
        return None
    sizes = Sizes(node)
    selected: set[bool] = set()
    for operand, name in zip(schema.inputs, node.inputs, strict=False):
        for expression, size in zip(
            operand.sizes, _sizes(graph, operand, name, known), strict=False
        ):
            sizes.unify(expression, size, f"{operand.name} '{name}'")
        if operand.kind is Kind.ROWS and name in known:
            selected.add(known[name].selected)
    sizes.relate(schema.equal, schema.divides)
    if len(selected) > 1 or (schema.every_row and True in selected):
        raise BundleError(
            f"node '{node.name}' ({node.op}) mixes rows of all tokens with those whose logits are "
            f"wanted: {ALTERED}"
        )
    width = sizes.value(schema.width)
    return None if width is None else ValueShape(width, schema.selects or True in selected)


def _sizes(graph: Graph, operand: Operand, name: str, known: Shapes) -> tuple[int, ...]:
    """Sizes of an operand as far as they are known."""
    if operand.kind is Kind.ROWS:
        return (known[name].width,) if name in known else ()
    constant = graph.constants.get(name)
    return () if constant is None else tuple(int(size) for size in constant.shape)


class Sizes:
    """The sizes that one node speaks of, by name, and who said so first."""

    def __init__(self, node: Node) -> None:
        """Begins with the node's attributes."""
        self._node = node
        self._known = {
            name: (value, f"its attribute {name}")
            for name, value in node.attrs.items()
            if type(value) is int
        }

    def value(self, expression: str) -> int | None:
        """The value of a name, a number or a product ``a*b``; None if a factor is not known."""
        factors = expression.split("*")
        if not all(factor.isdigit() or factor in self._known for factor in factors):
            return None
        return math.prod(
            int(factor) if factor.isdigit() else self._known[factor][0] for factor in factors
        )

    def unify(self, expression: str, size: int, origin: str) -> None:
        """Learns a size, or compares it with what is known.

        Raises:
            BundleError: it is another.
        """
        expected = self.value(expression)
        if expected is None:
            self._known[expression] = (size, origin)
        elif size != expected:
            raise BundleError(
                f"{self._name()}: {origin} has {expression} = {size}, and "
                f"{self._origin(expression)} makes it {expected}: {ALTERED}"
            )

    def relate(
        self, equal: tuple[tuple[str, str], ...], divides: tuple[tuple[str, str], ...]
    ) -> None:
        """Compares the sizes that must be equal or multiples.

        Raises:
            BundleError: they are not.
        """
        for left, right in equal:
            a, b = self.value(left), self.value(right)
            if a is not None and b is not None and a != b:
                raise BundleError(
                    f"{self._name()}: {left} is {a} and {right} is {b}, not the same: {ALTERED}"
                )
        for part, whole in divides:
            a, b = self.value(part), self.value(whole)
            if a is not None and b is not None and (a < 1 or b % a):
                raise BundleError(
                    f"{self._name()}: {whole} {b} is no multiple of {part} {a}: {ALTERED}"
                )

    def _name(self) -> str:
        return f"node '{self._node.name}' ({self._node.op})"

    def _origin(self, expression: str) -> str:
        factors = [factor for factor in expression.split("*") if not factor.isdigit()]
        return " and ".join(self._known[factor][1] for factor in factors)
