"""Products of which every part of the batch has its own weights (``kernels/run/dispatch.py``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.binder import ONE, Binder
from edgerun.backends.cpu.operands import Argument, checked_arguments
from edgerun.kernels.jit.service import compiled
from edgerun.kernels.run.instructions import Instruction
from edgerun.kernels.run.parts import HEADER_WORDS, MOST_WORDS


@dataclass(frozen=True, slots=True)
class Units:
    """Weights of which each part of a batch has its own.

    Attributes:
        parts: the number of parts, then the words of each.
        first: part to begin with.
        table: address of the slot of each unit.
        control: what is shared with those who read units; None if all are in memory.
        offsets: in a slot, of the arguments that are the units' own.
    """

    parts: NDArray[np.int64]
    first: int
    table: NDArray[np.int64]
    control: NDArray[np.int64] | None
    offsets: Mapping[str, int]

    def memory(self) -> list[NDArray[np.int64]]:
        """Parts, table and control."""
        shared = np.zeros(0, np.int64) if self.control is None else self.control
        return [self.parts, self.table, shared]


@dataclass(frozen=True, slots=True)
class Tiled:
    """Arguments of which the rows of each part begin at a whole tile.

    Attributes:
        tokens: rows of a tile.
        row_bytes: how far the rows of an argument are apart.
    """

    tokens: int
    row_bytes: Mapping[str, int]


NOT_TILED = Tiled(1, {})


def emit_dispatch(
    binder: Binder,
    kernel: str,
    params: dict[str, Any],
    arguments: Mapping[str, Argument],
    *,
    units: Units,
    row_bytes: Mapping[str, int],
    rows: int,
    chunks: tuple[int, int],
    reads: set[str],
    writes: set[str],
    label: str,
    tiled: Tiled = NOT_TILED,
) -> None:
    """Appends an instruction that calls a kernel for each part with the weights of the part.

    Args:
        binder: takes it.
        kernel: its name; ``rows`` is among its arguments.
        params: its compile-time constants.
        arguments: every one that it declares, with the weights of any unit, and rows that begin
            with the first.
        units: the weights of the parts.
        row_bytes: how far the rows of an argument are apart, of those that have rows.
        rows: of all parts together, at most.
        chunks: most parts that there can be, and pieces of each.
        reads: keys of the buffers that it reads.
        writes: keys of the buffers that it writes.
        label: for traces.
        tiled: arguments whose rows lie by tiles.

    Raises:
        BackendError: the kernel would touch more memory than an operand has.
    """
    code = compiled(kernel, binder.options.progress, **params)
    sizes = {"rows": rows, **params}
    fields, operands = checked_arguments(kernel, code.signature, arguments, sizes)
    given = np.array([fields[name] for name in code.signature.names], np.int64)
    places = {name: place for place, name in enumerate(code.signature.names)}
    memory = units.memory()
    block = _block(given, units, memory, chunks[1], places, row_bytes, tiled)
    binder.operands += [*operands, given, *memory, block]
    binder.calls.append((block, code))
    binder.kernels.add(kernel)
    binder.instructions.append(
        Instruction(
            code=compiled("runner-dispatch", binder.options.progress),
            arguments=block,
            fields=(),
            size=ONE,
            times=chunks[0] * chunks[1],
            divide=1,
            reads=frozenset(reads),
            writes=frozenset(writes),
            label=label,
        )
    )


def _block(
    given: NDArray[np.int64],
    units: Units,
    memory: Sequence[NDArray[np.int64]],
    pieces: int,
    places: Mapping[str, int],
    row_bytes: Mapping[str, int],
    tiled: Tiled,
) -> NDArray[np.int64]:
    """The words that ``dispatch`` reads; the first, the kernel's address, comes later."""
    assert len(given) <= MOST_WORDS
    parts, table, control = (array.ctypes.data for array in memory)
    header = [0, given.ctypes.data, len(given), parts, units.first, pieces, table, control]
    header += [places["rows"], len(units.offsets), len(row_bytes)]
    header += [len(tiled.row_bytes), tiled.tokens]
    assert len(header) == HEADER_WORDS
    pairs = [(places[name], offset) for name, offset in units.offsets.items()]
    for apart in (row_bytes, tiled.row_bytes):
        pairs += [(places[name], nbytes) for name, nbytes in apart.items()]
    return np.array([*header, *(word for pair in pairs for word in pair)], np.int64)
