"""What ops with a convolution and matrices that tokens change have in common when they run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import Support
from edgerun.backends.cpu.binder import ROWS, RUNS, Binder, Patch, Preparation
from edgerun.backends.cpu.buffers import Buffer
from edgerun.backends.cpu.emit.emitter import Speeds
from edgerun.backends.cpu.operands import WITH_CACHE, Argument
from edgerun.errors import BackendError
from edgerun.graph.ir import Node
from edgerun.machine.profile import GATE
from edgerun.ops.registry import OPS
from edgerun.state import RecurrentState, SequenceStore
from edgerun.state.capacity import fixed_bytes

MAX_HEADS = 1024  # times rows they are chunks of an instruction
FEW_ROWS, MANY_REGISTERS = 16, 32
OUTGROWING_BYTES = 16 << 20  # of the states of all layers, beside weights that are streamed
FLOAT_BYTES, MOVES = 4, 3  # of an element of a matrix, for each token
_READ, _CHANGED = ("conv", "turns"), ("conv", "matrix", "turns", "written")
_RUNS = "runs"  # what the binder keeps of runs of rows


def rows_of(name: str, buffer: Buffer) -> dict[str, Argument]:
    """A buffer as the arguments of a kernel."""
    return {name: buffer, f"{name}_stride": buffer.stride}


def emit_inputs(
    binder: Binder,
    node: Node,
    kernel: str,
    params: dict[str, int],
    arguments: dict[str, Argument],
    *,
    chunks: int,
    reads: set[str],
    writes: set[str],
) -> None:
    """Emits a kernel that makes of each row, in so many chunks, what its matrices want."""
    cached = f"cache{node.attrs['layer']}"
    step = binder.emit(
        kernel,
        params,
        _batch(binder) | arguments | dict.fromkeys(_READ, WITH_CACHE),
        chunks=(ROWS, chunks, 1),
        reads={*reads, cached},
        writes=writes,
        label=f"{node.name}/inputs",
    )
    _patch(binder, node, step.arguments, step.fields, _READ)


def emit_update(
    binder: Binder,
    node: Node,
    kernel: str,
    params: dict[str, int],
    arguments: dict[str, Argument],
    *,
    units: int,
    reads: set[str],
    writes: set[str],
) -> None:
    """Emits a kernel that takes runs of rows through matrices, each in so many units."""
    cached = f"cache{node.attrs['layer']}"
    past_caches = int(fixed_bytes(binder.options.states) >= OUTGROWING_BYTES)
    step = binder.emit(
        kernel,
        {"past_caches": past_caches, **params},
        _batch(binder) | arguments | {"runs": _runs(binder)} | dict.fromkeys(_CHANGED, WITH_CACHE),
        chunks=(RUNS, units, 1),
        reads={*reads, cached},
        writes={*writes, cached},
        label=node.name,
    )
    _patch(binder, node, step.arguments, step.fields, _CHANGED)


def _batch(binder: Binder) -> dict[str, Argument]:
    return {
        "rows": binder.count(ROWS),
        "positions": binder.positions,
        "sequences": binder.sequences,
    }


def _patch(
    binder: Binder,
    node: Node,
    arguments: NDArray[np.int64],
    fields: tuple[str, ...],
    names: tuple[str, ...],
) -> None:
    """Says where the state of a store is that a program is given."""
    state = _state_of(binder, node)

    def value_of(field: str) -> Callable[[SequenceStore], int]:
        return lambda store: store.recurrent(state.name).fields(state.name)[field]

    for name in names:
        binder.patches.append(Patch(arguments, fields.index(name), value_of(name)))


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


def vectors_of_unit(available: int, limit: int, binder: Binder) -> int:
    """Vectors of a row of the matrix that one unit carries, which divide those there are.

    Args:
        available: vectors of a row.
        limit: how many stay in registers with their sums and changes in prompts, where a unit's
            part of the matrix stays in a first cache. Of single tokens it is better to have more
            that lies in a piece.
        binder: of the program.
    """
    most = 2 * limit if binder.shape.rows <= FEW_ROWS else limit
    return max(each for each in range(1, most + 1) if available % each == 0)


def supports_heads(heads: int, what: str = "heads") -> Support:
    """Whether there are few enough for the chunks of an instruction."""
    if heads > MAX_HEADS:
        return Support(False, f"{heads} {what}, more than {MAX_HEADS}")
    return Support(True)


def cost_of(
    matrix: tuple[int, int, int], width: int, products: int, rows: int, speeds: Speeds
) -> float:
    """The larger of the times to move the state of a sequence and to multiply, and the inputs'.

    What is written is read before. Products are as fast as those of attention, in float32 too.

    Args:
        matrix: heads, and rows and columns of the matrix of each.
        width: elements that go through the convolution.
        products: of an element of a matrix, for each token.
        rows: of a call.
        speeds: of the machine.
    """
    elements = matrix[0] * matrix[1] * matrix[2]
    moved = speeds.read_seconds(MOVES * FLOAT_BYTES * elements)
    multiplied = speeds.attention_seconds(products * elements * rows, matrix[1], rows)
    inputs = speeds.element_seconds(rows * width, GATE, rows)
    return speeds.start_seconds(2) + max(moved, multiplied) + inputs
