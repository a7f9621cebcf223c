"""Graph, Node and Constant: what passes rewrite, plans place and back-ends compile."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct, field, structs
from numpy.typing import NDArray

from edgerun.errors import BundleError
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import ExpertStack, Matrix

Constant: TypeAlias = NDArray[Any] | PackedWeight | ExpertStack


class Node(Struct, frozen=True):
    """One operation; a ``Struct``, for files have up to 90,000 and dataclasses are slow to make.

    Attributes:
        op: name in ``ops/`` or, before the passes ran, the ONNX op type
            (``"com.microsoft.MatMulNBits"`` for the contrib domain).
        name: unique name, for messages and placement.
        inputs: value or constant names; ``""`` for an absent optional input.
        outputs: value names.
        attrs: attributes, plain Python or NumPy values.
        metadata: what the file's author noted about the node; it changes no result.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    def replace(self, **changes: Any) -> Node:
        """A copy with other values of some fields."""
        return structs.replace(self, **changes)


class Body(Struct, frozen=True):
    """The graph that a node runs for each of something, as the file has it.

    Attributes:
        nodes: in their order, with the attributes that are neither tensors nor graphs.
        inputs: names of what it is given.
        outputs: names of what it gives.
        is_plain: whether it has no constants of its own, and no attribute twice.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    is_plain: bool

    def __repr__(self) -> str:
        return f"a graph of {len(self.nodes)} nodes"


@dataclass(frozen=True, slots=True)
class ValueShape:
    """What is known of a value before anything runs.

    Attributes:
        width: elements a row.
        selected: whether it has a row for each wanted logit row of the batch, not for each token.
        dtype: type of the elements, ``"float32"`` or ``"int32"``.
    """

    width: int
    selected: bool = False
    dtype: str = "float32"


@dataclass(slots=True)
class Graph:
    """Nodes in topological order.

    Attributes:
        nodes: the operations.
        inputs: names fed from outside.
        outputs: names read from outside.
        constants: weights and other constants by name; arrays are views of mapped files.
        source: the ONNX file it was read from, for back-ends that run that file.
        shapes: of the inputs, if this is a part of another graph; of all values, once checked.
        refusal: why the graph could not be lowered, if it is still the file's; then only a back-end
            that reads the file itself may run it.
    """

    nodes: list[Node]
    inputs: list[str]
    outputs: list[str]
    constants: dict[str, Constant]
    source: Path | None = None
    shapes: Mapping[str, ValueShape] = dataclasses.field(default_factory=dict)
    refusal: str = ""

    def producers(self) -> dict[str, Node]:
        """Maps each value to the node that writes it."""
        return {output: node for node in self.nodes for output in node.outputs if output}

    def consumers(self) -> dict[str, list[Node]]:
        """Maps each value or constant to the nodes that read it."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    readers.setdefault(name, []).append(node)
        return readers

    def matrix(self, name: str) -> Matrix:
        """Returns a constant that must be a matrix, packed or plain.

        Raises:
            KeyError: there is no such constant, or it is a stack of them.
        """
        constant = self.constants[name]
        if isinstance(constant, ExpertStack):
            raise KeyError(name)
        return constant

    def array(self, name: str) -> NDArray[Any]:
        """Returns a constant that must be a plain array.

        Raises:
            KeyError: there is no such constant, or it is a packed weight or a stack.
        """
        constant = self.matrix(name)
        if isinstance(constant, PackedWeight):
            raise KeyError(name)
        return constant

    def add_constant(self, name: str, constant: Constant) -> None:
        """Adds a constant that a pass made of others.

        Raises:
            BundleError: there is something else under this name.
        """
        if name in self.constants:
            raise BundleError(f"two different constants of the graph would be called '{name}'")
        self.constants[name] = constant

    def with_nodes(self, nodes: Iterable[Node]) -> Graph:
        """Returns a copy with other nodes, without constants that nothing reads any more."""
        nodes = list(nodes)
        used = {*self.outputs, *chain.from_iterable(node.inputs for node in nodes)}
        constants = {name: value for name, value in self.constants.items() if name in used}
        return replace(self, nodes=nodes, constants=constants)


class FreeNames:
    """Gives names that nothing of a graph has: no input, constant, value or node.

    A file may call anything whatever it likes, so what is added to its graph looks first.
    """

    def __init__(self, graph: Graph) -> None:
        """Begins with the names that are there."""
        self._taken = {"", *graph.inputs, *graph.outputs, *graph.constants}
        for node in graph.nodes:
            self._taken.update((node.name, *node.outputs))

    def take(self, name: str) -> str:
        """This name or, if it is taken, the first free one with ``#2``, ``#3`` and so on behind."""
        numbered = chain((name,), (f"{name}#{number}" for number in count(2)))
        free = next(candidate for candidate in numbered if candidate not in self._taken)
        self._taken.add(free)
        return free
