"""The reference back-end: interprets the graph with the NumPy definitions. Slow, and right.

It is what other back-ends are checked against (``EDGERUN_VALIDATE=1``) and the smallest example
of a back-end.
"""

from __future__ import annotations

from typing import Any

from edgerun.backends.base import (
    NO_VALUES,
    Backend,
    CompileOptions,
    Executable,
    Shape,
    Support,
    Values,
)
from edgerun.graph.ir import Graph, Node
from edgerun.graph.mapped_file import files_of
from edgerun.graph.shapes import node_work
from edgerun.ops.base import IDS, POSITIONS
from edgerun.ops.registry import OPS
from edgerun.state import Batch, SequenceStore

# NumPy with dequantisation; only the order of magnitude matters.
SECONDS_PER_MAC, SECONDS_A_NODE = 1e-9, 1e-3


class ReferenceExecutable(Executable):
    """A segment with its constants, interpreted node by node."""

    def __init__(self, segment: Graph) -> None:
        self._segment = segment
        self._files = files_of(segment.constants.values())

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs all nodes; see ``Executable``.

        Raises:
            BackendError: the file of weights was changed or cut off since it was opened.
        """
        for file in self._files:
            file.check()
        value_of: dict[str, Any] = {IDS: batch.ids, POSITIONS: batch.positions}
        value_of.update(values)
        constants = self._segment.constants
        for node in self._segment.nodes:
            inputs = [value_of.get(name, constants.get(name)) for name in node.inputs]
            outputs = OPS[node.op].evaluate(inputs, node.attrs, batch, cache)
            value_of.update(zip(node.outputs, outputs, strict=True))
        return {name: value_of[name] for name in self._segment.outputs}

    def close(self) -> None:
        """Nothing to release."""


class ReferenceBackend(Backend):
    """Runs every op by its definition."""

    name = "reference"

    def probe(self) -> Support:
        """NumPy is always there."""
        return Support(True)

    def supports(self, graph: Graph, node: Node, shape: Shape) -> Support:
        """Every op that has a definition."""
        if node.op in OPS:
            return Support(True)
        return Support(False, f"'{node.op}' is none of our ops")

    def cost(self, graph: Graph, node: Node, shape: Shape) -> float:
        """A deliberately high estimate."""
        macs = node_work(graph, node, graph.shapes).macs * shape.rows
        return macs * SECONDS_PER_MAC + SECONDS_A_NODE

    def compile(self, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
        """Wraps the segment."""
        return ReferenceExecutable(segment)


def make() -> ReferenceBackend:
    """Makes the back-end."""
    return ReferenceBackend()
