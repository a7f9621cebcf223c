"""A part of a graph as a template that others are held against, node by node.

Of thousands of networks that differ in weights alone only one has to be matched with patterns: for
another it takes a look at each input of its nodes to see that it is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from edgerun.graph.ir import Node
from edgerun.graph.match import Matcher


@dataclass(frozen=True, slots=True)
class Part:
    """A node and what it depends on.

    Attributes:
        nodes: each after those whose outputs it reads.
        values: names of all that they make and read, each once: first their first outputs.
    """

    nodes: list[Node]
    values: list[str]


def part_of(last: Node, producers: Mapping[str, Node], outside: Collection[str]) -> Part:
    """The part that ends with a node and begins with values from ``outside``."""
    nodes = list(_needed(last, producers, outside))
    made = [node.outputs[0] for node in nodes]
    return Part(nodes, list(dict.fromkeys([*made, *(x for node in nodes for x in node.inputs)])))


class Template:
    """A part that others have to be like: the same nodes, connected in the same way."""

    def __init__(self, matcher: Matcher, part: Part, free: Collection[str]) -> None:
        """Takes a part, and the names of its constants that are others elsewhere."""
        self._matcher, self._nodes = matcher, part.nodes
        self._places = {name: place for place, name in enumerate(part.values)}
        self._inputs = [tuple(map(self.place, node.inputs)) for node in part.nodes]
        others = part.values[len(part.nodes) :]
        self._fixed: list[str | None] = [None] * len(part.nodes)
        self._fixed += (None if name in free else name for name in others)

    def place(self, name: str) -> int:
        """Where a name of the template stands among the values of every part that is like it."""
        return self._places[name]

    def compare(self, last: Node, outside: Mapping[str, str]) -> Part | Node:
        """Holds the part that ends with a node against the template.

        Names are exchanged one for one: those of free constants, of what nodes make, and of what
        ``outside`` says. All others are the template's.

        Args:
            last: the node.
            outside: what it reads in place of values from outside of the template.

        Returns:
            the part, its nodes and values in the order of the template's; or a node that is not
            what the template has there.
        """
        values = self._fixed.copy()
        for name, other in outside.items():
            values[self._places[name]] = other
        values[len(self._nodes) - 1] = last.outputs[0]
        nodes, taken = [last] * len(self._nodes), set(values)
        for place in reversed(range(len(nodes))):
            node, slots = nodes[place], self._inputs[place]
            if not _is_alike(node, self._nodes[place]) or len(node.inputs) != len(slots):
                return node
            for slot, name in zip(slots, node.inputs, strict=True):
                if values[slot] == name:
                    continue
                is_free = values[slot] is None and name not in taken
                if not (is_free and self._admits(slot, name, nodes)):
                    return node
                values[slot] = name
                taken.add(name)
        return Part(nodes, [name for name in values if name is not None])

    def _admits(self, slot: int, name: str, nodes: list[Node]) -> bool:
        """Whether a name may stand in a place; notes the node that makes it."""
        if slot >= len(nodes):
            return name in self._matcher.graph.constants
        node = self._matcher.producers.get(name)
        if node is None or node.outputs[0] != name:
            return False
        nodes[slot] = node
        return True


def _is_alike(node: Node, model: Node) -> bool:
    """Whether two nodes do the same; those of a file share what is the same (``onnx_nodes.py``)."""
    return (
        node.op == model.op
        and (node.attrs is model.attrs or node.attrs == model.attrs)
        and (node.metadata is model.metadata or node.metadata == model.metadata)
    )


def _needed(last: Node, producers: Mapping[str, Node], outside: Collection[str]) -> Iterator[Node]:
    """The nodes that a node depends on, and itself, each after those it reads."""
    done: set[str] = set()
    waiting = [(last, False)]
    while waiting:
        node, is_ready = waiting.pop()
        if is_ready:
            yield node
        elif node.name not in done:
            done.add(node.name)
            waiting.append((node, True))
            names = [name for name in node.inputs if name not in outside]
            waiting += [(producers[name], False) for name in names if name in producers]
