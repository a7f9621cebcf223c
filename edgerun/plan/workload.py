"""How much a model has to multiply and to read, from its graph alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from edgerun.graph.ir import Graph, ValueShape
from edgerun.graph.shapes import node_work, value_shapes
from edgerun.ops.registry import OPS
from edgerun.plan.early_rows import select_early

MAX_VALUE_BYTES = 64 << 20
MAX_HELD_BYTES = 512 << 20  # of all values at a time


@dataclass(frozen=True, slots=True)
class Workload:
    """Work of one call, by what it grows with.

    Attributes:
        row_macs: multiply-adds of the linear layers for every token row.
        logit_macs: multiply-adds of those that see only the rows whose logits are wanted.
        attention_macs: multiply-adds for every token row and token it attends to.
        layers: attention layers.
    """

    row_macs: int = 0
    logit_macs: int = 0
    attention_macs: int = 0
    layers: int = 0

    def macs(self, rows: int, logit_rows: int, start: int) -> int:
        """Multiply-adds of ``rows`` tokens of one sequence that begin at position ``start``.

        Row i attends to ``start + i + 1`` tokens; windows are not taken into account.
        """
        seen = rows * start + rows * (rows + 1) // 2
        return self.row_macs * rows + self.logit_macs * logit_rows + self.attention_macs * seen


def workload(graph: Graph) -> Workload:
    """Counts the multiply-adds of a lowered graph, as prompts need them."""
    graph = select_early(graph)
    late, shapes = logit_nodes(graph), value_shapes(graph)
    row = logit = attention = layers = 0
    for node in () if graph.refusal else graph.nodes:
        work = node_work(graph, node, shapes)
        if node.name in late:
            logit += work.macs
        else:
            row += work.macs
        attention += work.cached_macs
        layers += work.cached_macs > 0
    return Workload(row, logit, attention, layers)


def logit_nodes(graph: Graph) -> set[str]:
    """Names of the nodes that see only the rows whose logits are wanted."""
    selected: set[str] = set()
    names = set()
    for node in graph.nodes:
        selects = node.op in OPS and OPS[node.op].selects
        if selects or selected.intersection(node.inputs):
            selected.update(node.outputs)
            names.add(node.name)
    return names


def affordable_rows(graph: Graph) -> int:
    """Rows for which the widest value of a graph takes at most ``MAX_VALUE_BYTES``, at least 1.

    A small file can describe layers of very many, very short rows, and very many of them, whose
    values together take at most ``MAX_HELD_BYTES``. What a layer keeps to itself counts like a
    value. Logits do not: a prompt needs those of one row.
    """
    shapes = value_shapes(graph)
    inside = (node_work(graph, node, shapes).row_elements for node in graph.nodes if node.op in OPS)
    widths = (shape.width for shape in shapes.values() if not shape.selected)
    widest = max((1, *widths, *inside))
    held = max(1, _held_elements(graph, shapes))
    return max(1, min(MAX_VALUE_BYTES // (4 * widest), MAX_HELD_BYTES // (4 * held)))


def _held_elements(graph: Graph, shapes: Mapping[str, ValueShape]) -> int:
    """Elements a row of all buffers, which later values of the same width take over."""
    last = {name: index for index, node in enumerate(graph.nodes) for name in node.inputs}
    held, most = Counter[int](), Counter[int]()
    widths = {name: shape.width for name, shape in shapes.items() if not shape.selected}
    for index, node in enumerate(graph.nodes):
        for name in node.outputs:
            if name in widths:
                held[widths[name]] += 1
                most[widths[name]] = max(most[widths[name]], held[widths[name]])
        for name in {*node.inputs, *node.outputs}:
            if name in widths and last.get(name, index) == index:
                held[widths[name]] -= 1
    return sum(width * count for width, count in most.items())
