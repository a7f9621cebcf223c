"""Linear attention: what goes into it, and the matrices that every token changes."""

from __future__ import annotations

from math import gcd

import numpy as np

from edgerun.backends.base import Shape, Support
from edgerun.backends.cpu.binder import ROWS, Binder
from edgerun.backends.cpu.emit.emitter import Emitter, Speeds
from edgerun.backends.cpu.emit.recurrent.states import (
    MANY_REGISTERS,
    cost_of,
    emit_inputs,
    emit_update,
    rows_of,
    supports_heads,
    vectors_of_unit,
)
from edgerun.backends.cpu.operands import Argument
from edgerun.graph.ir import Graph, Node

PRODUCTS = 3  # of an element of a matrix, for each token
_SIZES = ("count", "key_heads", "value_heads", "key_dim", "value_dim")


def emit_gated_delta(binder: Binder, node: Node, index: int) -> None:
    """Makes queries, keys, values and gates of all rows, then takes each sequence through them."""
    sizes: dict[str, Argument] = {name: node.attrs[name] for name in _SIZES}
    heads, value_dim = node.attrs["value_heads"], node.attrs["value_dim"]
    # Of vectors that neither a key nor a value ends in.
    lanes = binder.lanes_of(gcd(node.attrs["key_dim"], value_dim))
    qkv, decay, write = (binder.values[name] for name in node.inputs[:3])
    taps, rate, offset = (binder.vector(name) for name in node.inputs[3:])
    mixed, gates = binder.pool.take(qkv.width), binder.pool.take(3 * heads)
    common = {
        **sizes,
        **rows_of("qkv", qkv),
        **rows_of("mixed", mixed),
        **rows_of("gates", gates),
        "width": qkv.width,
    }
    emit_inputs(
        binder,
        node,
        "delta_inputs",
        {"lanes": lanes},
        common
        | {**rows_of("decay", decay), **rows_of("write", write)}
        | {"taps": taps, "rate": rate, "offset": offset}
        | {name: np.array([node.attrs[name]], np.float32) for name in ("epsilon", "strength")},
        chunks=node.attrs["key_heads"],
        reads={qkv.key, decay.key, write.key},
        writes={mixed.key, gates.key},
    )
    result = binder.new(node.outputs[0], heads * value_dim, ROWS)
    limit = 4 if binder.isa.registers >= MANY_REGISTERS else 2
    vectors = vectors_of_unit(value_dim // lanes, limit, binder)
    emit_update(
        binder,
        node,
        "delta_update",
        {"vectors": vectors, "lanes": lanes},
        common | rows_of("result", result),
        units=heads * value_dim // (vectors * lanes),
        reads={qkv.key, mixed.key, gates.key},
        writes={result.key},
    )
    for buffer in (mixed, gates):
        binder.pool.give(buffer)


def _supports(graph: Graph, node: Node) -> Support:
    return supports_heads(node.attrs["value_heads"], "heads of values")


def _cost(graph: Graph, node: Node, shape: Shape, speeds: Speeds) -> float:
    matrix = node.attrs["value_heads"], node.attrs["key_dim"], node.attrs["value_dim"]
    width = 2 * node.attrs["key_heads"] * matrix[1] + matrix[0] * matrix[2]
    return cost_of(matrix, width, PRODUCTS, shape.rows, speeds)


EMITTER = Emitter(emit_gated_delta, _supports, _cost)
