"""Examples of ops as graphs, batches and caches: what a back-end needs to run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.graph.check import CONSTANTS
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.ops.base import IDS, POSITIONS, Example, Kind
from edgerun.ops.registry import OPS
from edgerun.state import AttentionState, Batch, SequenceStore, State, same_attention

Values = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """One example of an op."""

    op: str
    index: int
    example: Example

    def __str__(self) -> str:
        return f"{self.op}-{self.index}"

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        arrays = [value for value in self.example.inputs.values() if isinstance(value, np.ndarray)]
        return sum(new for _, new in self.example.parts) or len(arrays[0])

    def graph(self) -> Graph:
        """The node alone."""
        op, inputs = OPS[self.op], self.example.inputs
        names = [each.name if _given(each, inputs) else "" for each in op.inputs]
        outputs = tuple(f"{each.name}_made" for each in op.outputs)
        node = Node(self.op, "example", tuple(names), outputs, self.example.attributes)
        values = [each for each in op.inputs if each.kind is Kind.ROWS and each.name in inputs]
        shapes = {
            each.name: ValueShape(
                inputs[each.name].shape[1], each.name in self.example.selected, each.dtype
            )
            for each in values
        }
        constants = {
            each.name: inputs[each.name]
            for each in op.inputs
            if each.kind in CONSTANTS and each.name in inputs
        }
        return Graph([node], [*shapes], [*outputs], constants, shapes=shapes)

    def batch(self, cache: SequenceStore) -> Batch:
        """The rows, after so many cached tokens as the example says."""
        ids = self.example.inputs.get(IDS, np.zeros(self.rows, np.int32))
        batches, start = [], 0
        for cached, new in self.example.parts or ((0, self.rows),):
            sequence = cache.open()
            cache.reserve(sequence, cached + new)
            rng = np.random.default_rng([cached, new])
            # What an earlier node has written of the rows, too, is there already.
            there = cached + new if OPS[self.op].reads else cached
            for state in cache.states:
                block = tuple(
                    rng.standard_normal(shape).astype(np.float32) for shape in _shapes(state, there)
                )
                if isinstance(state, AttentionState) or there:
                    cache.write_block(state.name, sequence, 0, block)
            cache.commit(sequence, cached)
            cache.reserve(sequence, cached + new)
            batches.append(Batch.of(ids[start : start + new], cached, sequence))
            start += new
        return Batch.join(batches)

    def spec(self) -> tuple[State, ...]:
        """What the op remembers, in float32; something for an op that remembers nothing."""
        state = OPS[self.op].state or OPS[self.op].reads
        if state is None:
            return same_attention(1, 1, 2, "fp32")
        declared = state(self.example.attributes)
        return (
            replace(declared, codec="fp32") if isinstance(declared, AttentionState) else declared,
        )

    def cache(self, spec: tuple[State, ...]) -> SequenceStore:
        """Room for the example."""
        parts = self.example.parts or ((0, self.rows),)
        return SequenceStore(spec, max(sum(part) for part in parts), len(parts))

    def values(self) -> Values:
        """What comes from earlier nodes."""
        return {name: self.example.inputs[name] for name in self.graph().inputs}

    def expected(self) -> dict[str, NDArray[Any]]:
        """What the definition says, by the names of the graph's outputs."""
        cache, graph = self.cache(self.spec()), self.graph()
        batch = self.batch(cache)
        arrays = {**self.example.inputs, IDS: batch.ids, POSITIONS: batch.positions}
        (node,) = graph.nodes
        inputs = [arrays.get(name) for name in node.inputs]
        outputs = OPS[self.op].evaluate(inputs, node.attrs, batch, cache)
        return dict(zip(node.outputs, outputs, strict=True))


def _shapes(state: State, tokens: int) -> list[tuple[int, ...]]:
    """Shapes of what a layer keeps of so many tokens."""
    if isinstance(state, AttentionState):
        return [(tokens, state.kv_heads, dim) for dim in (state.key_dim, state.value_dim)]
    return [array.shape for array in state.arrays]


def _given(operand: Any, inputs: Mapping[str, Any]) -> bool:
    return operand.kind is Kind.BATCH or operand.name in inputs


CASES = [
    Case(name, index, example)
    for name, op in OPS.items()
    for index, example in enumerate(op.examples())
]
