"""Attention whose keys and values are made of one narrow row attends to that row instead.

Bundles have whole heads, which every runtime attends to (ADR 0045). Where the processor computes
alone, the cache keeps a tenth of that: see ``ops/latent_attention.py`` for what is multiplied
instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import PackedWeight
from edgerun.formats.registry import dense
from edgerun.graph.constants import check_finite, check_many_scales
from edgerun.graph.ir import FreeNames, Graph, Node
from edgerun.graph.mapped_file import read_array
from edgerun.graph.passes.prune import prune
from edgerun.graph.shapes import value_shapes
from edgerun.ops.registry import OPS

CODECS = ("fp32", "fp16")  # one scale for a latent row and what is turned would be too coarse
LARGEST_HALF = 65504.0
LANES = 16  # of float32 in the widest vectors


@dataclass(frozen=True, slots=True)
class _Heads:
    """Where the keys and values of a node come from.

    Attributes:
        latent: the value that both are made of.
        turned: what is added to every head of the keys, before positions turn them; 0 where they
            do not.
        keys: the weights of what makes keys, their name and content ``[heads * width, latent]``.
        values: likewise of values.
        rotary: the node that turns keys.
        plain: elements of a head that positions do not turn.
    """

    latent: str
    turned: str
    keys: str
    values: str
    rotary: Node
    plain: int


def attend_to_latent_rows(graph: Graph) -> Graph:
    """Rewrites all attention of that form; other nodes stay as they are.

    The matrices of heads are constants in half precision, or float32 where the weights are.

    Raises:
        BundleError: weights are not finite.
    """
    if graph.refusal or not any(node.op == "add_to_heads" for node in graph.nodes):
        return graph
    changed = graph.with_nodes(graph.nodes)
    makers, free = graph.producers(), FreeNames(graph)
    read = {node.attrs["layer"] for node in graph.nodes if OPS[node.op].reads is not None}
    changed.nodes = [
        each
        for node in graph.nodes
        for each in (
            (node,) if node.attrs.get("layer") in read else _rewritten(changed, node, makers, free)
        )
    ]
    if len(changed.nodes) == len(graph.nodes):
        return graph
    changed = prune(changed)
    changed.shapes = {name: graph.shapes[name] for name in graph.inputs if name in graph.shapes}
    changed.shapes = value_shapes(changed)
    return changed


def _rewritten(
    graph: Graph, node: Node, makers: Mapping[str, Node], free: FreeNames
) -> Iterator[Node]:
    heads = _heads_of(graph, node, makers) if node.op == "attention" else None
    if heads is not None and not _rests_in(graph, makers.get(heads.turned), heads.plain):
        heads = None
    if heads is None:
        yield node
        return
    count, width, plain = node.attrs["num_heads"], node.attrs["head_dim"], heads.plain
    keys, values = (
        _weights(graph, name).reshape(count, width, -1) for name in (heads.keys, heads.values)
    )
    is_plain = _is_plain(width, plain)
    if keys[:, ~is_plain].any():  # what is turned is not the same in all heads
        yield node
        return
    latent = keys.shape[2]
    used = int(np.flatnonzero(values.any(axis=(0, 2))).max(initial=0)) + 1
    used = min(width, -(-used // LANES) * LANES)
    names = [free.take(f"{node.name}/{name}") for name in ("absorb", "expand")]
    halved = isinstance(graph.matrix(heads.keys), PackedWeight)
    with np.errstate(over="ignore"):  # is looked at below
        absorbed = keys[:, is_plain] * np.float32(heads.rotary.attrs["factor"])
    matrices = (
        absorbed.reshape(-1, latent),
        values[:, :used].swapaxes(1, 2).reshape(count * latent, used),
    )
    for name, matrix in zip(names, matrices, strict=True):
        check_finite(name, "elements", matrix)
        graph.add_constant(name, _stored(matrix, halved=halved))
    turned = free.take(f"{node.name}/turned")
    inputs = (heads.turned, *heads.rotary.inputs[1:])
    yield heads.rotary.replace(name=turned, inputs=inputs, outputs=(turned,))
    yield Node(
        "latent_attention",
        node.name,
        (node.inputs[0], heads.latent, turned, *names),
        node.outputs,
        {
            "layer": node.attrs["layer"],
            "num_heads": count,
            "key_dim": latent + width - plain,
            "plain": plain,
            "scale": node.attrs["scale"],
        },
    )


def _heads_of(graph: Graph, node: Node, makers: Mapping[str, Node]) -> _Heads | None:
    """Where keys and values come from, if both are made of one value."""
    rotary, values = (makers.get(name) for name in node.inputs[1:3])
    others = any(node.inputs[3:]) or node.attrs["window"] or node.attrs["softcap"]
    if others or rotary is None or rotary.op != "rotary":
        return None
    total = makers.get(rotary.inputs[0])
    if total is None or total.op != "add_to_heads" or not _is_product(values):
        return None
    keys = makers.get(total.inputs[0])
    if not _is_product(keys):
        return None
    assert keys is not None and values is not None
    if keys.inputs[0] != values.inputs[0]:
        return None
    frequencies = read_array(graph.array(rotary.inputs[2]))
    resting = len(frequencies) - int(np.flatnonzero(frequencies).max(initial=-1)) - 1
    counts = node.attrs["num_heads"], node.attrs["num_kv_heads"], total.attrs["heads"]
    if not resting or len(set(counts)) > 1 or 2 * len(frequencies) != node.attrs["head_dim"]:
        return None
    shapes = {graph.matrix(each.inputs[1]).shape for each in (keys, values)}
    if {rows for rows, _ in shapes} != {counts[0] * node.attrs["head_dim"]} or len(shapes) > 1:
        return None  # sizes that contradict each other, which whoever computes refuses
    latent, turned = keys.inputs[0], total.inputs[1]
    return _Heads(latent, turned, keys.inputs[1], values.inputs[1], rotary, 2 * resting)


def _is_product(node: Node | None) -> bool:
    """Whether a node is a linear layer with nothing added, of rows as they are or nearly so."""
    if node is None or node.op != "linear" or any(node.inputs[2:]):
        return False
    return bool(node.attrs["activations"] != "int8_row")


def _rests_in(graph: Graph, maker: Node | None, plain: int) -> bool:
    """Whether what is added to all heads is 0 in the elements that positions do not turn.

    Nothing keeps those: they would be lost.
    """
    if not _is_product(maker):
        return False
    assert maker is not None
    weights = _weights(graph, maker.inputs[1])
    return not weights[_is_plain(len(weights), plain)].any()


def _is_plain(width: int, plain: int) -> NDArray[np.bool_]:
    """The elements of a head that positions do not turn: the last ones of either half."""
    elements: NDArray[np.int64] = np.arange(width)
    return elements % (width // 2) >= (width - plain) // 2


def _weights(graph: Graph, name: str) -> NDArray[np.float32]:
    """As float32; nobody else prepares them, and so nobody else looks at their scales."""
    weight = graph.matrix(name)
    if isinstance(weight, PackedWeight):
        check_many_scales(weight)
    with np.errstate(all="ignore"):
        return dense(weight)


def _stored(matrix: NDArray[np.float32], *, halved: bool) -> NDArray[Any]:
    """As it is to lie in memory: in half precision, if that holds it."""
    fits = halved and float(np.abs(matrix).max(initial=0)) <= LARGEST_HALF
    return np.ascontiguousarray(matrix, np.float16 if fits else np.float32)
