"""Attention of many heads to one narrow row for each token, by the kernels of other attention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import Shape, Support
from edgerun.backends.cpu.binder import ONE, Binder
from edgerun.backends.cpu.buffers import Buffer
from edgerun.backends.cpu.emit import attention
from edgerun.backends.cpu.emit.emitter import Emitter, Speeds
from edgerun.graph.ir import FreeNames, Graph, Node
from edgerun.graph.shapes import node_sizes

DTYPES = {2: "fp16", 4: "fp32"}
SHARE_QUERIES = 4  # multiplied together in registers; more of them would leave threads without work


def emit_latent_attention(binder: Binder, node: Node, index: int) -> None:
    """Makes keys and queries of latent rows, attends, and makes values of what comes of it."""
    plain, key_dim = node.attrs["plain"], node.attrs["key_dim"]
    q, latent, turned = (binder.values[name] for name in node.inputs[:3])
    every, asked = (binder.counted_by[node.inputs[place]] for place in (1, 0))
    inner = _attention(node, FreeNames(binder.graph).take)
    queries, keys, _ = inner.inputs
    (mixed,) = inner.outputs
    joined = binder.new(keys, key_dim, every)
    binder.emit(
        "latent_keys",
        {},
        {
            "rows": binder.count(every),
            "latent": latent,
            "latent_stride": latent.stride,
            "turned": turned,
            "turned_stride": turned.stride,
            "out": joined,
            "out_stride": joined.stride,
            "size": latent.width,
            "width": turned.width,
            "copied": (turned.width - plain) // 2,
        },
        chunks=(every, 1, 1),
        reads={latent.key, turned.key},
        writes={joined.key},
        label=f"{node.name}/keys",
    )
    heads = node.attrs["num_heads"]
    absorbed = binder.new(queries, heads * key_dim, asked)
    absorb, expand = (_matrices(binder, name) for name in node.inputs[3:])
    half, size = turned.width // 2, latent.width
    _emit_products(binder, node, "queries", (q, absorb, absorbed), (plain, half, half - plain // 2))
    attention.emit_attention(binder, inner, index, _shares(heads))
    out = binder.new(node.outputs[0], heads * turned.width, asked)
    _emit_products(
        binder, node, "values", (binder.values[mixed], expand, out), (size, size // 2, 0)
    )
    for name in (queries, keys, mixed):
        binder.pool.give(binder.values.pop(name))


def _emit_products(
    binder: Binder,
    node: Node,
    label: str,
    arrays: tuple[Buffer, NDArray[np.floating], Buffer],
    inputs: tuple[int, int, int],
) -> None:
    """Emits products of heads: of how many elements, how far apart halves are, what is copied."""
    (x, weights, out), (count, half, copied) = arrays, inputs
    heads = node.attrs["num_heads"]
    binder.emit(
        "head_products",
        {
            "dtype": DTYPES[weights.itemsize],
            "outputs": weights.shape[1],
            "lanes": binder.isa.float_lanes,
        },
        {
            "rows": binder.count(binder.counted_by[node.inputs[0]]),
            "x": x,
            "x_stride": x.stride,
            "weights": weights,
            "out": out,
            "out_stride": out.stride,
            "heads": heads,
            "width": x.width // heads,
            "inputs": count,
            "item": weights.itemsize,
            "half": half,
            "copied": copied,
            "out_width": out.width // heads,
        },
        chunks=(ONE, heads, 1),
        reads={x.key},
        writes={out.key},
        label=f"{node.name}/{label}",
    )


def _matrices(binder: Binder, name: str) -> NDArray[np.floating]:
    """A constant as it lies in memory, in half or single precision."""
    return np.ascontiguousarray(binder.graph.array(name))


def _attention(node: Node, named: Callable[[str], str] = str) -> Node:
    """The attention inside: all heads share one key, which is the value."""
    attrs = node.attrs
    queries, keys, mixed = (named(f"{node.name}/{name}") for name in ("queries", "keys", "mixed"))
    return Node(
        "attention",
        node.name,
        (queries, keys, keys),
        (mixed,),
        {
            "layer": attrs["layer"],
            "num_heads": attrs["num_heads"],
            "num_kv_heads": 1,
            "head_dim": attrs["key_dim"],
            "scale": attrs["scale"],
            "window": 0,
            "softcap": 0.0,
        },
    )


def _shares(heads: int) -> int:
    return heads // SHARE_QUERIES if heads % SHARE_QUERIES == 0 else 1


def _supports(graph: Graph, node: Node) -> Support:
    """Halves are multiplied, and the queries of a share lie on the stack of a thread."""
    heads, latent = node.attrs["num_heads"], node_sizes(graph, node, graph.shapes).named()["latent"]
    if latent % 2 or node.attrs["plain"] % 2:
        return Support(False, f"{latent} elements a row and {node.attrs['plain']} of a head")
    inner = _attention(node)
    of_a_share = {**inner.attrs, "num_heads": heads // _shares(heads)}
    return attention.EMITTER.supports(graph, inner.replace(attrs=of_a_share))


def _cost(graph: Graph, node: Node, shape: Shape, speeds: Speeds) -> float:
    """That of attention, and the larger of the times to read the matrices and to multiply."""
    sizes = node_sizes(graph, node, graph.shapes).named()
    matrices = sum(graph.constants[name].nbytes for name in node.inputs[3:])
    macs = sizes["num_heads"] * sizes["latent"] * (sizes["plain"] + sizes["value"])
    multiply = speeds.attention_seconds(macs * shape.rows, node.attrs["key_dim"], shape.rows)
    around = speeds.start_seconds(3) + max(speeds.stream_seconds(matrices), multiply)
    return attention.EMITTER.cost(graph, _attention(node), shape, speeds) + around


EMITTER = Emitter(emit_latent_attention, _supports, _cost)
