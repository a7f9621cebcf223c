"""State space duality: what goes into it, and the matrices that every token changes."""

from __future__ import annotations

from math import gcd

from edgerun.backends.base import Shape, Support
from edgerun.backends.cpu.binder import ROWS, Binder
from edgerun.backends.cpu.emit.emitter import Emitter, Speeds
from edgerun.backends.cpu.emit.recurrent.states import (
    FLOAT_BYTES,
    MANY_REGISTERS,
    MOVES,
    emit_inputs,
    emit_update,
    rows_of,
    vectors_of_unit,
)
from edgerun.backends.cpu.operands import Argument
from edgerun.graph.ir import Graph, Node
from edgerun.machine.profile import GATE

MAX_HEADS = 1024  # times rows they are chunks of an instruction
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
    heads = node.attrs["heads"]
    if heads > MAX_HEADS:
        return Support(False, f"{heads} heads, more than {MAX_HEADS}")
    return Support(True)


def _cost(graph: Graph, node: Node, shape: Shape, speeds: Speeds) -> float:
    """As that of linear attention, with one product less of an element."""
    state_dim, rows = node.attrs["state_dim"], shape.rows
    elements = node.attrs["heads"] * node.attrs["head_dim"] * state_dim
    width = elements // state_dim + 2 * node.attrs["groups"] * state_dim
    moved = speeds.read_seconds(MOVES * FLOAT_BYTES * elements)
    multiplied = speeds.attention_seconds(PRODUCTS * elements * rows, state_dim, rows)
    inputs = speeds.element_seconds(rows * width, GATE, rows)
    return speeds.start_seconds(2) + max(moved, multiplied) + inputs


EMITTER = Emitter(emit_state_space, _supports, _cost)
