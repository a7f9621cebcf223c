"""How much memory in one piece a model's weights take on a board."""

from __future__ import annotations

from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph
from edgerun_hw.backend.matrix import device_bytes
from edgerun_hw.overlay.command import Capabilities

MIB = 1 << 20
# Buffers of activations and results, and what XRT and the kernel's other drivers take of it.
BESIDES_MIB = 32
STEP_MIB = 64


def contiguous_bytes(graph: Graph, can: Capabilities) -> int:
    """Bytes that the packed weights of a graph's linear layers take on the device; each once."""
    weights = {
        id(weight): (weight, node.attrs["activations"] == "int8_block")
        for node in graph.nodes
        if node.op == "linear"
        and isinstance(weight := graph.constants.get(node.inputs[1]), PackedWeight)
    }
    return sum(device_bytes(weight, can, by_block) for weight, by_block in weights.values())


def cma_mib(graph: Graph, can: Capabilities) -> int:
    """What to boot with, ``cma=...M``: weights, what is besides, rounded up to ``STEP_MIB``."""
    needed = -(-contiguous_bytes(graph, can) // MIB) + BESIDES_MIB
    return -(-needed // STEP_MIB) * STEP_MIB
