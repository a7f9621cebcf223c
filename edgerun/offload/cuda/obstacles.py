"""Which experts the kernels for GPUs cannot multiply, and why."""

from __future__ import annotations

from edgerun.backends.cpu.experts.weights import stacks_of
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph, Node

BITS = (2, 4, 8)


def obstacle(graph: Graph, node: Node) -> str:
    """Why a layer of experts is not for a GPU; "" if it is."""
    if node.attrs["activations"] == "float":
        return (
            "its experts multiply activations in float32, whose sums would depend by a bit on who "
            "computes them; the GPU has kernels for activations that are rounded to 8 bits"
        )
    matrices = [stack.matrices[0] for stack in stacks_of(graph, node)]
    packed = [each for each in matrices if isinstance(each, PackedWeight)]
    if len(packed) < len(matrices) or any(each.bits not in BITS for each in packed):
        return "the GPU has kernels for experts with weights of 2, 4 and 8 bits"
    if any(each.offsets is not None for each in packed):
        return "the GPU has no kernels for blocks of weights with offsets"
    gate, up = ((each.bits, each.block) for each in packed[:2])
    if gate != up:
        return "the GPU multiplies gate and up projection together, and their formats differ"
    return ""
