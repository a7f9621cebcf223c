"""State space duality: what goes into it, and the matrices that every token changes."""

from __future__ import annotations

from math import gcd

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

PRODUCTS = 2  # of an element of a matrix, for each token
_SIZES = ("count", "heads", "groups", "head_dim", "state_dim")


def emit_state_space(binder: Binder, node: Node, index: int) -> None:
    """Makes inputs, keys, queries and gates of all rows, then takes each sequence through them."""
    sizes: dict[str, Argument] = {name: node.attrs[name] for name in _SIZES}
    heads, head_dim = node.attrs["heads"], node.attrs["head_dim"]
    # Of vectors that neither a key nor an input ends in.
    lanes = binder.lanes_of(gcd(node.attrs["state_dim"], head_dim))
    xbc, step = (binder.values[name] for name in node.inputs[:2])
    taps, bias, rate, offset, skip = (binder.vector(name) for name in node.inputs[2:])
    mixed, gates = binder.pool.take(xbc.width), binder.pool.take(3 * heads)
    common = {
        **sizes,
        **rows_of("xbc", xbc),
        **rows_of("mixed", mixed),
        **rows_of("gates", gates),
        "width": xbc.width,
    }
    emit_inputs(
        binder,
        node,
        "space_inputs",
        {"lanes": lanes},
        common
        | rows_of("step", step)
        | {"taps": taps, "bias": bias, "rate": rate, "offset": offset},
        chunks=node.attrs["groups"],
        reads={xbc.key, step.key},
        writes={mixed.key, gates.key},
    )
    result = binder.new(node.outputs[0], heads * head_dim, ROWS)
    # One sum of a vector, where linear attention has two: heads of 80 are five vectors of 16.
    limit = 5 if binder.isa.registers >= MANY_REGISTERS else 2
    vectors = vectors_of_unit(head_dim // lanes, limit, binder)
    emit_update(
        binder,
        node,
        "space_update",
        {"vectors": vectors, "lanes": lanes},
        common | {"skip": skip} | rows_of("result", result),
        units=heads * head_dim // (vectors * lanes),
        reads={xbc.key, mixed.key, gates.key},
        writes={result.key},
    )
    for buffer in (mixed, gates):
        binder.pool.give(buffer)


def _supports(graph: Graph, node: Node) -> Support:
    return supports_heads(node.attrs["heads"])


def _cost(graph: Graph, node: Node, shape: Shape, speeds: Speeds) -> float:
    matrix = node.attrs["heads"], node.attrs["state_dim"], node.attrs["head_dim"]
    width = matrix[0] * matrix[2] + 2 * node.attrs["groups"] * matrix[1]
    return cost_of(matrix, width, PRODUCTS, shape.rows, speeds)


EMITTER = Emitter(emit_state_space, _supports, _cost)
