"""Widths of the values of a lowered graph, and what their rows are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgerun.graph.ir import Graph, Node, ValueShape

Shapes = Mapping[str, ValueShape]


def value_shapes(graph: Graph) -> dict[str, ValueShape]:
    """Shapes of all values that nodes of the op schema make, by name."""
    known: dict[str, ValueShape] = dict(graph.shapes)
    for node in graph.nodes:
        shape = _SHAPES[node.op](graph, node, known) if node.op in _SHAPES else None
        if shape is not None:
            known.update(dict.fromkeys(node.outputs, shape))
    return known


def _embedding(graph: Graph, node: Node, known: Shapes) -> ValueShape:
    return ValueShape(int(graph.constants[node.inputs[1]].shape[1]))


def _linear(graph: Graph, node: Node, known: Shapes) -> ValueShape:
    source = known.get(node.inputs[0])
    width = int(graph.constants[node.inputs[1]].shape[0])
    return ValueShape(width, source is not None and source.selected)


def _attention(graph: Graph, node: Node, known: Shapes) -> ValueShape:
    return ValueShape(int(node.attrs["num_heads"]) * int(node.attrs["head_dim"]))


def _select_rows(graph: Graph, node: Node, known: Shapes) -> ValueShape | None:
    source = known.get(node.inputs[0])
    return None if source is None else ValueShape(source.width, selected=True)


def _as_input(graph: Graph, node: Node, known: Shapes) -> ValueShape | None:
    return known.get(node.inputs[0])


_SHAPES: dict[str, Callable[[Graph, Node, Shapes], ValueShape | None]] = {
    "embedding": _embedding,
    "linear": _linear,
    "attention": _attention,
    "select_rows": _select_rows,
    "rms_norm": _as_input,
    "rotary": _as_input,
    "gate": _as_input,
    "add": _as_input,
}
