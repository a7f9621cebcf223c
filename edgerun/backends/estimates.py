"""What nodes will cost on a device that was measured, for back-ends that drive such."""

from __future__ import annotations

from edgerun.backends.base import Shape
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph, Node
from edgerun.graph.shapes import node_work, output_shapes
from edgerun.machine.devices import ELEMENTS, DeviceProfile
from edgerun.machine.profile import family
from edgerun.ops.registry import OPS
from edgerun.state import AttentionState, RecurrentState

FLOAT_BYTES = 4


def node_seconds(profile: DeviceProfile, graph: Graph, node: Node, shape: Shape) -> float:
    """Estimated seconds for a node.

    Of an op that keeps keys and values, those in the cache are read out of the pages for every
    call, unless the device keeps what it read; a state of fixed size goes there and back. That new
    keys and values are written into pages is not counted, nor is it that an op reads what another
    keeps: mostly a device has that at hand.
    """
    work = node_work(graph, node, graph.shapes)
    op = OPS[node.op]
    if fixed := fixed_bytes(node):
        moved = profile.load_seconds(fixed) + profile.store_seconds(fixed)
        calls = sum(1 for _ in profile.cut(shape.rows))
        multiplied = family("float", "float32")
        return profile.work_seconds(multiplied, shape.rows, work.macs) + calls * moved
    if op.state is not None or op.reads is not None:
        seconds = profile.attention_seconds(shape.rows, work.cached_macs, shape.cached)
        if profile.mirrors:
            return seconds
        calls = sum(1 for _ in profile.cut(shape.rows))
        return seconds + calls * profile.load_seconds(kept_bytes(node) * shape.cached)
    if work.macs:
        return profile.work_seconds(kind_of(graph, node), shape.rows, work.macs)
    width = sum(value.width for value in output_shapes(graph, node, graph.shapes).values())
    return profile.work_seconds(ELEMENTS, shape.rows, width)


def kind_of(graph: Graph, node: Node) -> str:
    """The family of a linear layer, as profiles name it."""
    weight = graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    activations = str(node.attrs.get("activations", "float"))
    if not isinstance(weight, PackedWeight):
        return family(activations, "float32")
    return family(activations, "ternary" if weight.format == "ternary" else f"int{weight.bits}")


def fixed_bytes(node: Node) -> int:
    """Bytes of the state of fixed size that a node keeps; 0 if it keeps none."""
    declare = OPS[node.op].state if node.op in OPS else None
    state = declare(node.attrs) if declare else None
    if not isinstance(state, RecurrentState):
        return 0
    return sum(array.nbytes for array in state.arrays)


def kept_bytes(node: Node) -> int:
    """Bytes of the keys and values that a node keeps for each token, as float32."""
    declare = OPS[node.op].state if node.op in OPS else None
    state = declare(node.attrs) if declare else None
    if not isinstance(state, AttentionState):
        return 0
    return FLOAT_BYTES * state.kv_heads * (state.key_dim + state.value_dim)
