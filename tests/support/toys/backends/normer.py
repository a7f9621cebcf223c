"""Normalises, by the definition, and leaves all else to the CPU."""

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
from edgerun.ops.registry import OPS
from edgerun.state import Batch, SequenceStore


class Norms(Executable):
    def __init__(self, segment: Graph) -> None:
        self._segment = segment

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        tensors: dict[str, Any] = {**self._segment.constants, **values}
        for node in self._segment.nodes:
            inputs = [tensors[name] for name in node.inputs]
            (tensors[node.outputs[0]],) = OPS[node.op].evaluate(inputs, node.attrs, batch, cache)
        return {name: tensors[name] for name in self._segment.outputs}

    def close(self) -> None:
        pass


class Normer(Backend):
    name = "normer"
    companions = ("cpu",)

    def probe(self) -> Support:
        return Support(True)

    def supports(self, graph: Graph, node: Node, shape: Shape) -> Support:
        return Support(node.op == "rms_norm", "it only normalises")

    def cost(self, graph: Graph, node: Node, shape: Shape) -> float:
        return 1e-5

    def compile(self, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
        return Norms(segment)


def make() -> Backend:
    return Normer()
