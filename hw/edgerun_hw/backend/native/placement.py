"""Which linear layers of a segment lie on the overlay, and which of them as one matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from edgerun.env import settings
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph, Node
from edgerun_hw.backend.matrix import DeviceMatrix, stack_key
from edgerun_hw.backend.screen import Screen
from edgerun_hw.backend.session import Session

ROUNDED = ("int8_row", "int8_block")
# A head worth a screen: with half of the codes a weight, and more rows than a command has.
HEAD_BITS, HEAD_ROWS = 8, 1024


@dataclass(frozen=True, eq=False)
class Placed:
    """Linear layers that read one value and lie on the device as one matrix.

    Attributes:
        nodes: in the order of the matrix's rows.
        matrix: on the device.
        block: weights of a row that share a scale of the activations; 0 for all of them.
        screen: of an output head, and its matrix, where there is one.
    """

    nodes: tuple[Node, ...]
    matrix: DeviceMatrix
    block: int
    screen: tuple[Screen, DeviceMatrix] | None = None


def place(segment: Graph, session: Session) -> dict[str, Placed]:
    """Writes a segment's weights to the device.

    Returns:
        what lies there, by the outputs of its nodes; layers that do not fit are not in it.
    """
    placed: dict[str, Placed] = {}
    for nodes in _groups(segment):
        weights = [packed_weight(segment, node) for node in nodes]
        by_block = nodes[0].attrs["activations"] == "int8_block"
        matrix = session.matrix(weights, by_block)
        if matrix is None:
            continue
        screen = session.screen(weights[0]) if is_head(segment, nodes) else None
        group = Placed(tuple(nodes), matrix, weights[0].block if by_block else 0, screen)
        placed.update({node.outputs[0]: group for node in nodes})
    return placed


def _groups(segment: Graph) -> Iterator[list[Node]]:
    """Layers of the same input and kind; one that adds a residual is alone, as that may be late."""
    together: dict[Any, list[Node]] = {}
    for node in segment.nodes:
        if not is_packed(segment, node):
            continue
        residual = (*node.inputs, "", "")[3]
        kind = (node.inputs[0], node.attrs["activations"], stack_key(packed_weight(segment, node)))
        together.setdefault((kind, node.outputs[0] if residual else ""), []).append(node)
    yield from together.values()


def is_head(segment: Graph, nodes: list[Node]) -> bool:
    """Whether layers are a head of many int8 rows with a scale a block, and nothing added.

    None is where every value is compared with the reference's.
    """
    node, weight = nodes[0], packed_weight(segment, nodes[0])
    return (
        len(nodes) == 1
        and not settings().validate
        and node.outputs[0] in segment.outputs
        and not any(node.inputs[2:])
        and node.attrs["activations"] == "int8_block"
        and weight.bits == HEAD_BITS
        and weight.shape[0] >= HEAD_ROWS
    )


def is_packed(segment: Graph, node: Node) -> bool:
    """Whether a node is a linear layer that the overlay can multiply."""
    if node.op != "linear" or node.attrs["activations"] not in ROUNDED:
        return False
    weight = segment.constants[node.inputs[1]]
    return isinstance(weight, PackedWeight) and weight.is_centred


def packed_weight(segment: Graph, node: Node) -> PackedWeight:
    """The weight of a linear layer for which ``is_packed`` holds."""
    weight = segment.constants[node.inputs[1]]
    assert isinstance(weight, PackedWeight)
    return weight
