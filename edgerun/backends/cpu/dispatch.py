"""Products of which every part of the batch has its own weights (``kernels/run/dispatch.py``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.binder import ONE, Binder
from edgerun.backends.cpu.operands import Argument, checked_arguments
from edgerun.errors import BackendError
from edgerun.kernels.jit.service import compiled
from edgerun.kernels.run.instructions import Instruction
from edgerun.kernels.run.parts import HEADER_WORDS, MOST_WORDS

Unit: TypeAlias = Mapping[str, NDArray[Any]]


def emit_dispatch(
    binder: Binder,
    kernel: str,
    params: dict[str, Any],
    arguments: Mapping[str, Argument],
    *,
    parts: NDArray[np.int64],
    units: Sequence[Unit],
    row_bytes: Mapping[str, int],
    rows: int,
    chunks: tuple[int, int],
    reads: set[str],
    writes: set[str],
    label: str,
) -> None:
    """Appends an instruction that calls a kernel for each part with the weights of the part.

    Args:
        binder: takes it.
        kernel: its name; ``rows`` is among its arguments.
        params: its compile-time constants.
        arguments: every one that it declares, with the weights of the first unit, and rows that
            begin with the first.
        parts: the number of parts, then the words of each.
        units: of every unit the arguments that are its own, all of them of the same sizes.
        row_bytes: how far the rows of an argument are apart, of those that have rows.
        rows: of all parts together, at most.
        chunks: most parts that there can be, and pieces of each.
        reads: keys of the buffers that it reads.
        writes: keys of the buffers that it writes.
        label: for traces.

    Raises:
        BackendError: the kernel would touch more memory than an operand has.
    """
    code = compiled(kernel, binder.options.progress, **params)
    sizes = {"rows": rows, **params}
    fields, operands = checked_arguments(kernel, code.signature, arguments, sizes)
    given = np.array([fields[name] for name in code.signature.names], np.int64)
    table = _table(kernel, units)
    places = {name: place for place, name in enumerate(code.signature.names)}
    block = _block(given, parts, table, chunks[1], places, [*units[0]], row_bytes)
    binder.operands += [*operands, given, parts, table, block]
    binder.operands += [array for unit in units for array in unit.values()]
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


def _table(kernel: str, units: Sequence[Unit]) -> NDArray[np.int64]:
    """Addresses of what is the units' own, int64 ``[units, arguments]``."""
    sizes = {name: array.nbytes for name, array in units[0].items()}
    if any({name: array.nbytes for name, array in unit.items()} != sizes for unit in units):
        raise BackendError(f"kernel {kernel} was given weights of unlike sizes")
    return np.array([[unit[name].ctypes.data for name in sizes] for unit in units], np.int64)


def _block(
    given: NDArray[np.int64],
    parts: NDArray[np.int64],
    table: NDArray[np.int64],
    pieces: int,
    places: Mapping[str, int],
    varying: Sequence[str],
    row_bytes: Mapping[str, int],
) -> NDArray[np.int64]:
    """The words that ``dispatch`` reads; the first, the kernel's address, comes later."""
    assert len(given) <= MOST_WORDS
    at, parts_at, table_at = (array.ctypes.data for array in (given, parts, table))
    header = [0, at, len(given), parts_at, pieces, table_at]
    header += [places["rows"], len(varying), len(row_bytes)]
    assert len(header) == HEADER_WORDS
    pairs = [(places[name], 0) for name in varying]
    pairs += [(places[name], apart) for name, apart in row_bytes.items()]
    return np.array([*header, *(word for pair in pairs for word in pair)], np.int64)
