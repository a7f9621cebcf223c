"""The sizes of a model, as its graph says and as others state them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edgerun.errors import BundleError
from edgerun.graph.ir import Graph
from edgerun.graph.shapes import ALTERED, node_sizes
from edgerun.ops.base import LOGITS
from edgerun.ops.registry import OPS

UNIFORM = ("hidden_size", "vocab_size")  # in which layers cannot differ
BY_LAYER = ("num_heads", "num_kv_heads", "head_dim", "intermediate_size")
LISTED = 4  # sizes that a message has room for

# By their names in a bundle's description, each size that occurs in the graph, once, in its order.
Geometry = Mapping[str, tuple[int, ...]]


def geometry(graph: Graph) -> Geometry:
    """Collects the sizes of a checked graph that a bundle's description may state.

    Raises:
        BundleError: layers are missing or there twice, or a size differs that cannot.
    """
    layers = sorted({node.attrs["layer"] for node in graph.nodes if "layer" in node.attrs})
    wrong = next((layer for index, layer in enumerate(layers) if layer != index), None)
    if not layers or wrong is not None:
        raise BundleError(
            f"the graph has {len(layers)} layers that keep a state and calls one of them {wrong}; "
            f"expected every number from 0 on: {ALTERED}"
        )
    sizes: dict[str, dict[int, None]] = {name: {} for name in (*UNIFORM, *BY_LAYER)}
    for node in graph.nodes:
        named = node_sizes(graph, node, graph.shapes).named()
        for name, size in OPS[node.op].model_sizes.items():
            sizes.setdefault(name, {})[named[size]] = None
    sizes["vocab_size"][graph.shapes[LOGITS].width] = None
    for name in UNIFORM:
        if len(sizes[name]) != 1:
            raise BundleError(
                f"the graph has {name} {_listed(sizes[name])}; expected the same everywhere: "
                f"{ALTERED}"
            )
    # Those that read the state of an earlier layer say which that is, and have no number.
    reading = sum(OPS[node.op].reads is not None for node in graph.nodes)
    return {"num_layers": (len(layers) + reading,)} | {name: tuple(sizes[name]) for name in sizes}


def confirm(sizes: Geometry, stated: Mapping[str, int], origin: str) -> None:
    """Compares what the graph says with what somebody states about it.

    A number says what all layers have: where they differ, nothing can be stated.

    Args:
        sizes: of the graph.
        stated: sizes by their names; 0 states nothing.
        origin: who states it, for the message.

    Raises:
        BundleError: a size differs.
    """
    for name, values in sizes.items():
        expected = stated.get(name, 0)
        if expected and values != (expected,):
            raise BundleError(
                f"{origin} says {name} {expected}, but its graph has {_listed(values)}: {ALTERED}"
            )


def _listed(values: Iterable[int]) -> str:
    numbers = [str(value) for value in values]
    more = ["others"] if len(numbers) > LISTED else []
    return " and ".join([*numbers[:LISTED], *more]) or "nowhere"
