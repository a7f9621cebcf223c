"""A part of a graph as a template that others are held against, node by node.

Of thousands of networks that differ in weights alone only one has to be matched with patterns: for
another it takes a look at each input of its nodes to see that it is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

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
    outputs = [node.outputs[0] for node in nodes]
    return Part(nodes, list(dict.fromkeys([*outputs, *(x for node in nodes for x in node.inputs)])))


class _Step(NamedTuple):
    """What is looked at when a node is compared; taken apart more quickly than a dataclass.

    Attributes:
        place: of the node among the nodes of its part.
        node: what the template has there.
        computed: its inputs, each with its place among the values, that other nodes compute and
            that no step before this has met.
        free: the same of its free constants.
        read: the names of all its inputs, given the values.
    """

    place: int
    node: Node
    computed: list[tuple[int, int]]
    free: list[tuple[int, int]]
    read: Callable[[list[str]], tuple[str, ...]]


class Template:
    """A part that others have to be like: the same nodes, connected in the same way."""

    def __init__(self, matcher: Matcher, part: Part, free: Collection[str]) -> None:
        """Takes a part, and the names of its constants that are others elsewhere."""
        self._constants, self._producers = matcher.graph.constants, matcher.producers
        self._places = {name: place for place, name in enumerate(part.values)}
        count = len(part.nodes)
        own = {*part.values[:count], *free}
        self._values = ["" if name in own else name for name in part.values]
        self._steps = []
        met = {part.values[count - 1]}
        for place in reversed(range(count)):
            node = part.nodes[place]
            slots = [self._places[name] for name in node.inputs]
            first = dict.fromkeys(name for name in node.inputs if name in own - met)
            pairs = [(node.inputs.index(name), self._places[name]) for name in first]
            computed = [pair for pair in pairs if pair[1] < count]
            rest = [pair for pair in pairs if pair[1] >= count]
            self._steps.append(_Step(place, node, computed, rest, _names_of(slots)))
            met.update(first)

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
        values = self._values.copy()
        for name, other in outside.items():
            values[self._places[name]] = other
        nodes = [last] * len(self._steps)
        values[len(nodes) - 1] = last.outputs[0]
        for place, model, computed, free, read in self._steps:
            node = nodes[place]
            inputs = node.inputs
            if len(inputs) != len(model.inputs) or node.op != model.op:
                return node
            # Those of a file share what is the same (``onnx_nodes.py``).
            is_same = node.attrs is model.attrs and node.metadata is model.metadata
            if not is_same and not _is_alike(node, model):
                return node
            for index, slot in computed:
                name = values[slot] = inputs[index]
                producer = self._producers.get(name)
                if producer is None or producer.outputs[0] != name:
                    return node
                nodes[slot] = producer
            for index, slot in free:
                name = values[slot] = inputs[index]
                if name not in self._constants:
                    return node
            if inputs != read(values):
                return node
        return Part(nodes, values) if len({*values}) == len(values) else last


def _names_of(slots: list[int]) -> Callable[[list[str]], tuple[str, ...]]:
    """What takes the names at some places of a list out of it."""
    if len(slots) > 1:
        return itemgetter(*slots)
    return lambda values: tuple(values[slot] for slot in slots)


def _is_alike(node: Node, model: Node) -> bool:
    """Whether two nodes of an op do the same."""
    return node.attrs == model.attrs and node.metadata == model.metadata


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
