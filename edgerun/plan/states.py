"""What the layers of a graph remember, read node by node."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import BundleError
from edgerun.graph.ir import Graph
from edgerun.model.manifest import ModelConfig
from edgerun.ops.registry import OPS
from edgerun.state import AttentionState, State, same_attention

MAX_EMPTY_LAYERS = 1024  # a graph that computes nothing is refused elsewhere


def states_of(graph: Graph, description: ModelConfig, codec: str) -> tuple[State, ...]:
    """The states of a graph's layers, in the order of their nodes.

    Of a graph that has ops of its own, which runs from its file alone, the ``description`` says
    what it keeps; whoever runs it compares that with the file.

    Args:
        graph: of a model, checked.
        description: what the bundle states.
        codec: how keys and values are to be stored; keys alone are stored as their op says.

    Raises:
        BundleError: the description says more layers than the file can have, or no heads.
    """
    if graph.refusal:
        return _described(graph, description, codec)
    states: list[State] = []
    for node in graph.nodes:
        declare = OPS[node.op].state
        if declare is not None:
            state = declare(node.attrs)
            if isinstance(state, AttentionState) and state.value_dim:
                state = replace(state, codec=codec)
            states.append(state)
    return tuple(states)


def _described(graph: Graph, description: ModelConfig, codec: str) -> tuple[State, ...]:
    layers, heads = description.num_layers, description.num_kv_heads
    if not heads or not description.head_dim:
        raise BundleError(
            f"the model's description says num_kv_heads {heads} and head_dim "
            f"{description.head_dim}, and its graph cannot be asked: {graph.refusal}"
        )
    if layers > max(MAX_EMPTY_LAYERS, len(graph.nodes)):  # and not a tuple of millions
        raise BundleError(
            f"the model file has {len(graph.nodes)} nodes, but its description says {layers} layers"
        )
    return same_attention(layers, heads, description.head_dim, codec)
