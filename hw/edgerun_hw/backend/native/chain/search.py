"""Which nodes of a segment are queued whole: from a layer's attention to the next one's queries.

A layer that looks like

    h = r + o(norm(attention)); h + down(norm(gate and up of norm(h))); q, k, v of that one's norm

becomes one node, ``CHAIN``; the norms before ``o`` and ``down`` may be missing. All layers of a
segment are alike in that, or none is queued whole, as the residual stays on the device from one to
the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from edgerun.graph.ir import Graph, Node
from edgerun.graph.shapes import input_shapes
from edgerun_hw.backend.native.placement import Placed
from edgerun_hw.overlay.glue import Gate
from edgerun_hw.overlay.glue_layout import LANES
from edgerun_hw.overlay.packing import LookupMode
from edgerun_hw.overlay.register_map import MAX_GLUE_LENGTH

CHAIN = "fabric_chain"
MATRICES = 4  # of a chain that another follows
SUM_READERS = 2  # of a sum that stays on the device: a norm and the next sum
GATES = {"silu": Gate.SWIGLU, "relu2": Gate.RELU2}


@dataclass(frozen=True)
class Norm:
    """A norm that glue does.

    Attributes:
        weight: name of its constant.
        epsilon: of its root.
    """

    weight: str
    epsilon: float


@dataclass(frozen=True)
class Chain:
    """What is queued whole.

    Attributes:
        row: the value that attention has given.
        residual: the value that the first sum adds to.
        norms: before ``o``, gate and up, down, and the next layer's queries; None for none.
        matrices: ``o``, gate and up, down; and the next layer's queries, keys and values if they
            follow.
        gate: of the layer.
        sizes: elements of the row, of the residual, of the gate.
        result: the value that the second sum gives.
        outputs: values of the last matrix' rows, in their order.
        nodes: those that it stands for.
    """

    row: str
    residual: str
    norms: tuple[Norm | None, Norm | None, Norm | None, Norm | None]
    matrices: tuple[Placed, ...]
    gate: Gate
    sizes: tuple[int, int, int]
    result: str
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]

    @property
    def alike(self) -> tuple[object, ...]:
        """What all chains of a segment must have in common: constants lie in one memory."""
        epsilons = tuple(norm and norm.epsilon for norm in self.norms[:3])
        return epsilons, self.gate, self.sizes


def find_chains(segment: Graph, placed: Mapping[str, Placed]) -> list[Chain]:
    """The chains of a segment in their order; none if its layers cannot all be queued whole."""
    search = _Search(segment, placed)
    layers = [node for node in segment.nodes if node.op == "attention"]
    chains = [search.chain(node.outputs[0]) for node in layers]
    complete = [chain for chain in chains if chain is not None]
    if len(complete) < len(layers) or len({chain.alike for chain in complete}) != 1:
        return []
    readers = segment.consumers()
    follows = all(
        chain.result == after.residual
        and len(chain.matrices) == MATRICES
        and len(readers[chain.result]) == SUM_READERS
        for chain, after in pairwise(complete)
    )
    return complete if follows else []


def with_chains(segment: Graph, chains: list[Chain]) -> Graph:
    """The segment with one node for each chain."""
    gone = {node.name for chain in chains for node in chain.nodes}
    last = {chain.nodes[-1].name: chain for chain in chains}
    nodes = []
    for node in segment.nodes:
        if node.name in last:
            chain = last[node.name]
            inputs = (chain.row, chain.residual)
            name = f"{chain.nodes[0].name}/chain"
            nodes.append(Node(CHAIN, name, inputs, (*chain.outputs, chain.result)))
        elif node.name not in gone:
            nodes.append(node)
    # What its nodes say of the inputs is said by nodes that are gone.
    shapes = {**segment.shapes, **input_shapes(segment)}
    return replace(segment, nodes=nodes, shapes=shapes)


class _Search:
    """Follows a layer from node to node; whatever is not as expected ends it."""

    def __init__(self, segment: Graph, placed: Mapping[str, Placed]) -> None:
        self._segment, self._placed = segment, placed
        self._readers = segment.consumers()

    def chain(self, row: str) -> Chain | None:
        try:
            return self._chain(row)
        except _OtherwiseError:
            return None

    def _chain(self, row: str) -> Chain:
        norm_a, at, nodes = self._norm(row, "linear")
        o = self._summing(self._only(at))
        middle = o.outputs[0]
        norm_b, at, more = self._norm(middle, "", beside=True)
        nodes += [o, *more]
        gate_up = self._plain_group(self._readers_of(at))
        gate = self._only(gate_up.nodes[0].outputs[0])
        halves = tuple(node.outputs[0] for node in gate_up.nodes)
        if gate.op != "gate" or gate.inputs != halves or self._only(halves[1]) is not gate:
            raise _OtherwiseError
        if gate.attrs["activation"] not in GATES or norm_b is None:
            raise _OtherwiseError
        norm_c, at, more = self._norm(gate.outputs[0], "linear")
        down = self._summing(self._only(at))
        nodes += [*gate_up.nodes, gate, *more, down]
        if down.inputs[3] != middle or len(self._readers[middle]) != SUM_READERS:
            raise _OtherwiseError
        result = down.outputs[0]
        matrices = [self._group([o]), gate_up, self._group([down])]
        norm_d, outputs, more = self._next(result, matrices, norm_b.epsilon)
        nodes += more
        sizes = tuple(matrix.matrix.cut.shape[1] for matrix in matrices[:3])
        # The last block of a row may be cut short, so rows need not be whole beats.
        if any(size > MAX_GLUE_LENGTH or size % LANES for size in sizes):
            raise _OtherwiseError
        order = {node.name: place for place, node in enumerate(self._segment.nodes)}
        nodes.sort(key=lambda node: order[node.name])
        return Chain(
            row=row,
            residual=o.inputs[3],
            norms=(norm_a, norm_b, norm_c, norm_d),
            matrices=tuple(matrices),
            gate=GATES[gate.attrs["activation"]],
            sizes=(sizes[0], sizes[1], sizes[2]),
            result=result,
            outputs=outputs,
            nodes=tuple(nodes),
        )

    def _next(
        self, result: str, matrices: list[Placed], epsilon: float
    ) -> tuple[Norm | None, tuple[str, ...], list[Node]]:
        """The next layer's norm, queries, keys and values, if they follow.

        The norm has to have this epsilon: the unit takes that of the norm before gate and up.
        """
        readers = [node for node in self._readers.get(result, []) if node.op == "rms_norm"]
        if len(readers) != 1 or result in self._segment.outputs:
            return None, (), []
        node = readers[0]
        try:
            norm = self._of_rows(node)
            if norm.epsilon != epsilon:
                raise _OtherwiseError
            group = self._plain_group(self._readers_of(node.outputs[0]))
        except _OtherwiseError:
            return None, (), []
        matrices.append(group)
        return norm, tuple(part.outputs[0] for part in group.nodes), [node, *group.nodes]

    def _readers_of(self, value: str) -> list[Node]:
        readers = self._readers.get(value, [])
        if not readers or value in self._segment.outputs:
            raise _OtherwiseError
        return readers

    def _only(self, value: str) -> Node:
        readers = self._readers_of(value)
        if len(readers) != 1:
            raise _OtherwiseError
        return readers[0]

    def _norm(
        self, value: str, without: str, *, beside: bool = False
    ) -> tuple[Norm | None, str, list[Node]]:
        """The norm of a value, what it gives, and its node; none if an op ``without`` reads it."""
        readers = self._readers_of(value)
        norms = [node for node in readers if node.op == "rms_norm"]
        if len(norms) != 1 or (len(readers) > 1 and not beside):
            if without and len(readers) == 1 and readers[0].op == without:
                return None, value, []
            raise _OtherwiseError
        node = norms[0]
        return self._of_rows(node), node.outputs[0], [node]

    def _of_rows(self, node: Node) -> Norm:
        """The norm of whole rows: its readers' rows have as many elements as it has weights."""
        group = self._group(self._readers_of(node.outputs[0]))
        if group.matrix.cut.shape[1] != self._segment.matrix(node.inputs[1]).shape[0]:
            raise _OtherwiseError
        return Norm(node.inputs[1], float(node.attrs["epsilon"]))

    def _summing(self, node: Node) -> Node:
        """A linear layer that adds a residual and nothing else."""
        _, _, bias, residual = (*node.inputs, "", "")[:4]
        if node.op != "linear" or bias or not residual:
            raise _OtherwiseError
        return node

    def _group(self, nodes: list[Node]) -> Placed:
        """The matrix that some layers are all of, if a command with scales can multiply it."""
        group = self._placed.get(nodes[0].outputs[0])
        if group is None or group.block or group.screen:
            raise _OtherwiseError
        if {node.name for node in group.nodes} != {node.name for node in nodes}:
            raise _OtherwiseError
        cut = group.matrix.cut
        if cut.mode is not LookupMode.TERNARY or cut.blocks != 1 or cut.digits != 1:
            raise _OtherwiseError
        if any(piece.first % 4 for piece in group.matrix.pieces):
            raise _OtherwiseError
        if any(any((*node.inputs, "", "")[2:3]) for node in group.nodes):
            raise _OtherwiseError  # a bias
        return group

    def _plain_group(self, nodes: list[Node]) -> Placed:
        """Likewise, of layers that add no residual."""
        if any(any(node.inputs[3:]) for node in nodes):
            raise _OtherwiseError
        return self._group(nodes)


class _OtherwiseError(Exception):
    """The layer is not as it would have to be."""
