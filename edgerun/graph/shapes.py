"""Sizes in a lowered graph, from what its ops say: widths of values, and what their rows are."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.errors import BundleError
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.ops.base import Kind, Operand, Work
from edgerun.ops.registry import OPS
from edgerun.values import whole_number

Shapes = Mapping[str, ValueShape]
ALTERED = "the model is damaged or altered, copy or export it again"


def value_shapes(graph: Graph) -> dict[str, ValueShape]:
    """Shapes of all values that the nodes of a lowered graph make, by name.

    Raises:
        BundleError: the sizes of a node's inputs, constants and attributes contradict each other.
    """
    shapes: dict[str, ValueShape] = dict(graph.shapes)
    for node in graph.nodes:
        if not shapes.keys() >= set(node.outputs):
            shapes.update(output_shapes(graph, node, shapes))
    return shapes


def input_shapes(graph: Graph) -> dict[str, ValueShape]:
    """Shapes of a graph's inputs: those that it states, else what the nodes that read them say.

    Raises:
        KeyError: nothing says how wide an input is.
    """
    shapes = {name: graph.shapes[name] for name in graph.inputs if name in graph.shapes}
    for node in graph.nodes if len(shapes) < len(graph.inputs) else ():
        sizes = node_sizes(graph, node, shapes)
        for operand, name in zip(OPS[node.op].inputs, node.inputs, strict=False):
            width = sizes.value(operand.sizes[0]) if operand.kind is Kind.ROWS else None
            if name in graph.inputs and width is not None:
                shapes.setdefault(name, ValueShape(width, dtype=operand.dtype))
    return {name: shapes[name] for name in graph.inputs}


def output_shapes(graph: Graph, node: Node, shapes: Shapes) -> dict[str, ValueShape]:
    """Shapes of a node's outputs by name, without those of which too little is known.

    Raises:
        BundleError: the sizes of the node contradict each other.
    """
    op = OPS.get(node.op)
    if op is None:
        return {}
    sizes = node_sizes(graph, node, shapes)
    values = [
        (operand.every_row, shapes[name].selected)
        for operand, name in zip(op.inputs, node.inputs, strict=False)
        if operand.kind is Kind.ROWS and name in shapes
    ]
    selected = {is_selected for every_row, is_selected in values if not every_row}
    if len(selected) > 1 or (True, True) in values:
        raise BundleError(
            f"node '{node.name}' ({node.op}) mixes rows of all tokens with those whose logits are "
            f"wanted: {ALTERED}"
        )
    outputs = {}
    for operand, name in zip(op.outputs, node.outputs, strict=False):
        width = sizes.value(operand.sizes[0])
        if width is not None:
            outputs[name] = ValueShape(width, op.selects or True in selected, operand.dtype)
    return outputs


def node_sizes(graph: Graph, node: Node, shapes: Shapes) -> Sizes:
    """What the operands and attributes of a node say of the sizes that its op names.

    Raises:
        BundleError: they contradict each other.
    """
    op, sizes = OPS[node.op], Sizes(node)
    for operand, name in zip(op.inputs, node.inputs, strict=False):
        operand_sizes = _operand_sizes(graph, operand, name, shapes)
        for expression, size in zip(operand.sizes, operand_sizes, strict=False):
            sizes.unify(expression, size, f"{operand.name} '{name}'")
    sizes.compare_products()
    sizes.relate(op.equal, op.divides, op.at_most)
    return sizes


def node_work(graph: Graph, node: Node, shapes: Shapes) -> Work:
    """What a node has to multiply and to read; a constant of two operands is read for the first."""
    op, nbytes, seen = OPS[node.op], {}, set()
    for operand, name in zip(op.inputs, node.inputs, strict=False):
        if name in graph.constants:
            nbytes[operand.name] = 0 if name in seen else graph.constants[name].nbytes
            seen.add(name)
    return op.work(node_sizes(graph, node, shapes).named(), nbytes)


def _operand_sizes(graph: Graph, operand: Operand, name: str, shapes: Shapes) -> tuple[int, ...]:
    """Sizes of an operand as far as they are known."""
    if operand.kind is Kind.ROWS:
        return (shapes[name].width,) if name in shapes else ()
    constant = graph.constants.get(name)
    return () if constant is None else tuple(int(size) for size in constant.shape)


class Sizes:
    """The sizes that one node speaks of, by name, and who said so first."""

    def __init__(self, node: Node) -> None:
        """Begins with the node's attributes."""
        self._node = node
        self._sizes = {
            name: (value, f"its attribute {name}")
            for name, value in node.attrs.items()
            if type(value) is int
        }

    def named(self) -> dict[str, int]:
        """The sizes by name, of those that are known."""
        return {name: size for name, (size, _) in self._sizes.items()}

    def value(self, expression: str) -> int | None:
        """The value of a name, a number, a product or a sum; None if a part of it is not known."""
        total = 0
        for term in expression.split("+"):
            size = self._product(term)
            if size is None:
                return None
            total += size
        return total

    def _product(self, expression: str) -> int | None:
        product = 1
        for factor in expression.split("*"):
            size = self._sizes[factor][0] if factor in self._sizes else whole_number(factor)
            if size is None:
                return None
            product *= size
        return product

    def unify(self, expression: str, size: int, origin: str) -> None:
        """Learns a size, or compares it with what is known.

        Raises:
            BundleError: it is another.
        """
        expected = self.value(expression)
        if expected is None:
            self._sizes[expression] = (size, origin)
        elif size != expected:
            raise BundleError(
                f"{self._name()}: {origin} has {expression} = {size}, and "
                f"{self._origin(expression)} makes it {expected}: {ALTERED}"
            )

    def compare_products(self) -> None:
        """Compares products with their factors, which a later operand may have said.

        Raises:
            BundleError: they are others.
        """
        for expression, (size, origin) in list(self._sizes.items()):
            self.unify(expression, size, origin)

    def relate(
        self,
        equal: tuple[tuple[str, str], ...],
        divides: tuple[tuple[str, str], ...],
        at_most: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Compares the sizes that must be equal, multiples or no larger.

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
        for less, limit in at_most:
            a, b = self.value(less), self.value(limit)
            if a is not None and b is not None and a > b:
                raise BundleError(
                    f"{self._name()}: {less} is {a} of no more than {limit} = {b}: {ALTERED}"
                )

    def _name(self) -> str:
        return f"node '{self._node.name}' ({self._node.op})"

    def _origin(self, expression: str) -> str:
        factors = [f for term in expression.split("+") for f in term.split("*") if not f.isdigit()]
        return " and ".join(dict.fromkeys(self._sizes[factor][1] for factor in factors))
