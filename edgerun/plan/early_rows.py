"""Drops the rows of a prompt that nobody asked for as early as they can be dropped.

Of the last layer, other rows need keys and values alone: a prompt multiplies its queries, its
output and its feed-forward layers for one row, as a rule. Which rows a node sees changes no bit of
what it makes of them.
"""

from __future__ import annotations

from edgerun.graph.ir import FreeNames, Graph, Node
from edgerun.graph.shapes import value_shapes
from edgerun.ops.base import Kind
from edgerun.ops.registry import OPS

# Cheaper to compute again for a few rows than to be kept for all and selected.
COMPUTED_AGAIN = frozenset({"rms_norm", "layer_norm"})


def select_early(graph: Graph) -> Graph:
    """Moves ``select_rows`` up to the values that more than wanted logits depend on.

    Args:
        graph: lowered; one that selects no rows, or that nobody could lower, is given back.
    """
    chosen = [node for node in graph.nodes if node.op == "select_rows"]
    if graph.refusal or len(chosen) != 1:
        return graph
    late = _late_nodes(graph, chosen[0])
    if late == {chosen[0].name}:
        return graph
    changed = graph.with_nodes(_Selecting(graph, chosen[0], late).nodes())
    changed.shapes = {name: graph.shapes[name] for name in graph.inputs if name in graph.shapes}
    changed.shapes = value_shapes(changed)
    return changed


def _late_nodes(graph: Graph, chosen: Node) -> set[str]:
    """Names of the nodes that nothing but wanted logits depends on, ``chosen`` among them."""
    consumers, late = graph.consumers(), {chosen.name}
    end = graph.nodes.index(chosen)
    for node in reversed(graph.nodes[:end]):
        readers = [(name, reader) for name in node.outputs for reader in consumers.get(name, [])]
        if (
            readers
            and not set(node.outputs).intersection(graph.outputs)
            and _followed(node)
            and all(reader.name in late and name in _followed(reader) for name, reader in readers)
        ):
            late.add(node.name)
    return late


def _followed(node: Node) -> list[str]:
    """The values whose rows are those of a node's outputs; of ``select_rows``, its input."""
    op = OPS[node.op]
    return [
        name
        for operand, name in zip(op.inputs, node.inputs, strict=False)
        if name and operand.kind is Kind.ROWS and (op.selects or not operand.every_row)
    ]


class _Selecting:
    """Gives nodes that nothing but wanted logits depends on inputs with these rows alone."""

    def __init__(self, graph: Graph, chosen: Node, late: set[str]) -> None:
        self._graph, self._late = graph, late
        self._source, self._output = chosen.inputs[0], chosen.outputs[0]
        self._producers, self._free = graph.producers(), FreeNames(graph)
        self._names: dict[str, str] = {}  # of values with wanted rows alone, by those with all
        self._nodes: list[Node] = []

    def nodes(self) -> list[Node]:
        """All nodes in order, with selections where they are needed now."""
        for node in self._graph.nodes:
            if node.outputs[0] == self._output:
                continue
            followed = _followed(node) if node.name in self._late else ()
            inputs = tuple(
                self._selected(name) if name in followed else name for name in node.inputs
            )
            inputs = tuple(self._source if name == self._output else name for name in inputs)
            self._nodes.append(node.replace(inputs=inputs))
        return self._nodes

    def _selected(self, name: str) -> str:
        """What a value is called where it has wanted rows alone; adds what makes it."""
        producer = self._producers.get(name)
        if producer is not None and producer.name in self._late:
            return name
        if name not in self._names:
            output = self._names[name] = self._free.take(f"{name}/selected")
            if producer is not None and producer.op in COMPUTED_AGAIN:
                inputs = (self._selected(producer.inputs[0]), *producer.inputs[1:])
                again = self._free.take(f"{producer.name}/selected")
                node = producer.replace(name=again, inputs=inputs, outputs=(output,))
            else:
                node = Node("select_rows", output, (name,), (output,))
            self._nodes.append(node)
        return self._names[name]
