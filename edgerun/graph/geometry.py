"""The sizes of a model, as its graph says and as others state them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from edgerun.errors import BundleError
from edgerun.graph.ir import Graph
from edgerun.graph.shapes import ALTERED, node_sizes
from edgerun.ops.base import LOGITS
from edgerun.ops.registry import OPS


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of a model, as its graph says.

    Attributes:
        num_layers: attention layers.
        num_heads: query heads of each.
        num_kv_heads: key and value heads of each.
        head_dim: elements of a head.
        hidden_size: width of the embedding.
        intermediate_size: width of the gates.
        vocab_size: rows of the embedding, and width of the logits.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int


def geometry(graph: Graph) -> Geometry:
    """Collects the sizes that hold for the whole model, of a checked graph.

    Raises:
        BundleError: nodes differ in one, or layers are missing or there twice.
    """
    layers = sorted(node.attrs["layer"] for node in graph.nodes if OPS[node.op].state)
    wrong = next((layer for index, layer in enumerate(layers) if layer != index), None)
    if not layers or wrong is not None:
        raise BundleError(
            f"the graph has {len(layers)} attention layers and calls one of them {wrong}; expected "
            f"every number from 0 on once: {ALTERED}"
        )
    stated: dict[str, list[int]] = {entry.name: [] for entry in fields(Geometry)}
    for node in graph.nodes:
        sizes = node_sizes(graph, node, graph.shapes).named()
        for name, size in OPS[node.op].model_sizes.items():
            stated[name].append(sizes[size])
    stated["num_layers"] = [len(layers)]
    stated["vocab_size"].append(graph.shapes[LOGITS].width)
    stated["intermediate_size"] = stated["intermediate_size"] or [0]  # a model may have no gates
    return Geometry(**{name: _same(name, sizes) for name, sizes in stated.items()})


def _same(name: str, sizes: list[int]) -> int:
    if len(set(sizes)) != 1:
        raise BundleError(
            f"the graph has {name} {' and '.join(map(str, dict.fromkeys(sizes))) or 'nowhere'}; "
            f"expected the same everywhere: {ALTERED}"
        )
    return sizes[0]


def confirm(geometry: Geometry, stated: Mapping[str, int], origin: str) -> None:
    """Compares what the graph says with what somebody states about it.

    Args:
        geometry: from ``check``.
        stated: sizes by their names in ``Geometry``; 0 states nothing.
        origin: who states it, for the message.

    Raises:
        BundleError: a size differs.
    """
    for entry in fields(geometry):
        found, expected = getattr(geometry, entry.name), stated.get(entry.name, 0)
        if expected not in (0, found):
            raise BundleError(
                f"{origin} says {entry.name} {expected}, but its graph has {found}: {ALTERED}"
            )
