"""Linear attention: what goes into it, and the matrices that every token changes."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import Shape, Support
from edgerun.backends.cpu.binder import ROWS, RUNS, Binder, Patch, Preparation
from edgerun.backends.cpu.buffers import Buffer
from edgerun.backends.cpu.emit.emitter import Emitter, Speeds
from edgerun.backends.cpu.operands import WITH_CACHE, Argument
from edgerun.errors import BackendError
from edgerun.graph.ir import Graph, Node
from edgerun.machine.profile import GATE
from edgerun.ops.registry import OPS
from edgerun.state import RecurrentState, SequenceStore
from edgerun.state.capacity import fixed_bytes

MAX_HEADS = 1024  # of values; times rows they are chunks of an instruction
MANY_REGISTERS, FEW_ROWS = 32, 16
OUTGROWING_BYTES = 16 << 20  # of the states of all layers, beside weights that are streamed
FLOAT_BYTES, MOVES, PRODUCTS = 4, 3, 3  # of an element of a matrix, for each token
_SIZES = ("count", "key_heads", "value_heads", "key_dim", "value_dim")
_STATE = ("conv", "matrix", "turns", "written")
_RUNS = "runs"  # what the binder keeps of runs of rows


def emit_gated_delta(binder: Binder, node: Node, index: int) -> None:
    """Makes queries, keys, values and gates of all rows, then takes each sequence through them."""
    sizes: dict[str, Argument] = {name: node.attrs[name] for name in _SIZES}
    heads, lanes = node.attrs["value_heads"], _lanes(binder, node)
    qkv, decay, write = (binder.values[name] for name in node.inputs[:3])
    taps, rate, offset = (binder.vector(name) for name in node.inputs[3:])
    cached = f"cache{node.attrs['layer']}"
    mixed, gates = binder.pool.take(qkv.width), binder.pool.take(3 * heads)
    common = {
        **sizes,
        **_rows("qkv", qkv),
        **_rows("mixed", mixed),
        **_rows("gates", gates),
        "width": qkv.width,
    }
    _emit(
        binder,
        node,
        ("delta_inputs", {"lanes": lanes}),
        common
        | {**_rows("decay", decay), **_rows("write", write)}
        | {"taps": taps, "rate": rate, "offset": offset}
        | {"epsilon": np.array([node.attrs["epsilon"]], np.float32)},
        chunks=(ROWS, node.attrs["key_heads"], 1),
        reads={qkv.key, decay.key, write.key, cached},
        writes={mixed.key, gates.key},
    )
    result = binder.new(node.outputs[0], heads * node.attrs["value_dim"], ROWS)
    vectors = _vectors(node.attrs["value_dim"] // lanes, binder)
    _emit(
        binder,
        node,
        (
            "delta_update",
            {"past_caches": int(_outgrows_caches(binder)), "vectors": vectors, "lanes": lanes},
        ),
        common | _rows("result", result) | {"runs": _runs(binder)},
        chunks=(RUNS, heads * node.attrs["value_dim"] // (vectors * lanes), 1),
        reads={qkv.key, mixed.key, gates.key, cached},
        writes={result.key, cached},
    )
    for buffer in (mixed, gates):
        binder.pool.give(buffer)


def _rows(name: str, buffer: Buffer) -> dict[str, Argument]:
    """A buffer as the arguments of a kernel."""
    return {name: buffer, f"{name}_stride": buffer.stride}


def _emit(
    binder: Binder,
    node: Node,
    kernel: tuple[str, dict[str, int]],
    arguments: dict[str, Argument],
    *,
    chunks: tuple[int, int, int],
    reads: set[str],
    writes: set[str],
) -> None:
    """Emits a kernel that reads or writes what a layer keeps."""
    name, params = kernel
    batch: dict[str, Argument] = {
        "rows": binder.count(ROWS),
        "positions": binder.positions,
        "sequences": binder.sequences,
    }
    there = _STATE if name == "delta_update" else ("conv", "turns")
    step = binder.emit(
        name,
        params,
        batch | arguments | dict.fromkeys(there, WITH_CACHE),
        chunks=chunks,
        reads=reads,
        writes=writes,
        label=node.name if name == "delta_update" else f"{node.name}/inputs",
    )
    state = _state_of(binder, node)

    def value_of(field: str) -> Callable[[SequenceStore], int]:
        return lambda store: store.recurrent(state.name).fields(state.name)[field]

    for field in there:
        place = step.fields.index(field)
        binder.patches.append(Patch(step.arguments, place, value_of(field)))


def _state_of(binder: Binder, node: Node) -> RecurrentState:
    """What a node keeps.

    Raises:
        BackendError: the store keeps something else for its layer.
    """
    declare = OPS[node.op].state
    declared = declare(node.attrs) if declare else None
    for state in binder.options.states:
        if isinstance(state, RecurrentState) and state == declared:
            return state
    raise BackendError(f"{node.name} keeps {declared}, which the store does not have")


def _runs(binder: Binder) -> NDArray[np.int32]:
    """The first rows of runs of one sequence, and their end, int32 ``[rows + 1]``.

    Found before each run of the program, and their number in the frame's word.
    """
    runs: NDArray[np.int32] | None = binder.places.get(_RUNS)
    if runs is None:
        runs = binder.places[_RUNS] = np.zeros(binder.shape.rows + 1, np.int32)
        binder.before_run.append(_finding_runs(binder, runs))
    return runs


def _finding_runs(binder: Binder, runs: NDArray[np.int32]) -> Preparation:
    """What fills them in; it knows buffers alone, see ``Binder.before_run``."""
    frame, sequences = binder.frame, binder.sequences

    def find_runs() -> None:
        rows = int(frame[ROWS])
        count = 1
        if rows > 1:
            edges = np.flatnonzero(sequences[1:rows] != sequences[: rows - 1]) + 1
            count = len(edges) + 1
            runs[1:count] = edges
        runs[count] = rows
        frame[RUNS] = count

    return find_runs


def _lanes(binder: Binder, node: Node) -> int:
    """Of vectors that neither a key nor a value ends in."""
    return binder.lanes_of(gcd(node.attrs["key_dim"], node.attrs["value_dim"]))


def _vectors(available: int, binder: Binder) -> int:
    """Vectors of a row of the matrix that one unit carries.

    In prompts they stay in registers with their products and changes, and a unit's part of the
    matrix in a first cache. Of single tokens it is better to have more that lies in a piece.
    """
    vectors = 4 if binder.isa.registers >= MANY_REGISTERS else 2
    return gcd(available, 2 * vectors if binder.shape.rows <= FEW_ROWS else vectors)


def _outgrows_caches(binder: Binder) -> bool:
    """Whether a sequence has so much that nothing is left in caches when a layer's turn comes."""
    return fixed_bytes(binder.options.states) >= OUTGROWING_BYTES


def _supports(graph: Graph, node: Node) -> Support:
    heads = node.attrs["value_heads"]
    if heads > MAX_HEADS:
        return Support(False, f"{heads} heads of values, more than {MAX_HEADS}")
    return Support(True)


def _cost(graph: Graph, node: Node, shape: Shape, speeds: Speeds) -> float:
    """The larger of the times to move the state of a sequence and to multiply, and the inputs'.

    What is written is read before. Products are as fast as those of attention, in float32 too.
    """
    key_dim, rows = node.attrs["key_dim"], shape.rows
    elements = node.attrs["value_heads"] * key_dim * node.attrs["value_dim"]
    width = 2 * node.attrs["key_heads"] * key_dim + elements // key_dim
    moved = speeds.read_seconds(MOVES * FLOAT_BYTES * elements)
    multiplied = speeds.attention_seconds(PRODUCTS * elements * rows, key_dim, rows)
    inputs = speeds.element_seconds(rows * width, GATE, rows)
    return speeds.start_seconds(2) + max(moved, multiplied) + inputs


EMITTER = Emitter(emit_gated_delta, _supports, _cost)
