"""How much memory in one piece a model takes on a board: weights, screen, keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph
from edgerun_hw.backend.attention import CODEC, obstacle
from edgerun_hw.backend.matrix import device_bytes, matrix_bytes
from edgerun_hw.backend.native.placement import is_head, is_packed, packed_weight
from edgerun_hw.overlay.attention_layout import PORTS, KvLayout
from edgerun_hw.overlay.command import Capabilities
from edgerun_hw.overlay.register_map import MAX_MAGNITUDE

MIB = 1 << 20
# Buffers of activations and results, and what XRT and the kernel's other drivers take of it.
BESIDES_MIB = 32
STEP_MIB = 64


@dataclass(frozen=True)
class Needs:
    """Bytes on the device.

    Attributes:
        weights: of linear layers, each once.
        screen: of an output head, which the native host has besides.
        cache: keys and values of one sequence, for the attention unit.
        context: tokens of that sequence.
    """

    weights: int
    screen: int
    cache: int
    context: int

    @property
    def cma_mib(self) -> int:
        """What to boot with, ``cma=...M``: all of it, what is besides, rounded up."""
        needed = -(-(self.weights + self.screen + self.cache) // MIB) + BESIDES_MIB
        return -(-needed // STEP_MIB) * STEP_MIB

    def __str__(self) -> str:
        parts = [f"{self.weights / MIB:.1f} MiB of weights"]
        if self.screen:
            parts.append(f"{self.screen / MIB:.1f} of the head's screen")
        if self.cache:
            parts.append(f"{self.cache / MIB:.1f} of keys and values of {self.context} tokens")
        return ", ".join(parts)


def contiguous_needs(graph: Graph, can: Capabilities, context: int) -> Needs:
    """What a model's graph takes of an overlay's memory.

    Args:
        graph: of the model, lowered.
        can: what the overlay can do.
        context: tokens that one sequence shall have.
    """
    return Needs(
        contiguous_bytes(graph, can),
        screen_bytes(graph, can),
        cache_bytes(graph, can, context),
        context,
    )


def contiguous_bytes(graph: Graph, can: Capabilities) -> int:
    """Bytes that the packed weights of a graph's linear layers take on the device; each once."""
    weights = {
        id(weight): (weight, node.attrs["activations"] == "int8_block")
        for node in graph.nodes
        if node.op == "linear"
        and isinstance(weight := graph.constants.get(node.inputs[1]), PackedWeight)
    }
    return sum(device_bytes(weight, can, by_block) for weight, by_block in weights.values())


def screen_bytes(graph: Graph, can: Capabilities) -> int:
    """Bytes of the screens of output heads: one code a weight, one scale a row."""
    heads = [node for node in graph.nodes if is_packed(graph, node) and is_head(graph, [node])]
    shapes = [packed_weight(graph, node).shape for node in heads]
    return sum(matrix_bytes(shape, MAX_MAGNITUDE, shape[1], can) for shape in shapes)


def cache_bytes(graph: Graph, can: Capabilities, context: int) -> int:
    """Bytes of the keys and values of one sequence, of the layers that the unit attends for."""
    layouts = [
        KvLayout(node.attrs["num_kv_heads"], node.attrs["head_dim"])
        for node in graph.nodes
        if node.op == "attention" and not obstacle(node, CODEC, can.attention)
    ]
    return sum(PORTS * layout.port_bytes(context) for layout in layouts)
