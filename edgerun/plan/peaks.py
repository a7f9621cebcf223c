"""What the machine does at most: its multipliers, lookups and tiles; and what starting work costs.

Programs of one kernel, timed alone (``kernels/measure.py``): upper bounds of what the paths that
linear layers take can do, whatever surrounds their innermost operation.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.families import AMX, LOOKUP, paths_of
from edgerun.machine.profile import MULTIPLY
from edgerun.machine.timing import best_time

PEAK_STEPS, PEAK_REPEATS = 64, 2000
PEAK_ROWS = 64  # whose sums lie in the first cache beside the tables
CHUNKS, AMX_REPEATS = 8, 8  # chunks of a peak a thread, and how much longer tiles are busy
# Repeats that make a chunk of some microseconds on a core of today.
FORK_JOIN_REPEATS, CHUNKS_A_THREAD, INSTRUCTIONS, FORK_JOIN_ROUNDS = 16, 4, 300, 3


def measure_fork_join(threads: int) -> float:
    """Seconds that an instruction costs all threads besides its kernel.

    The difference between many instructions, each waiting for the one before, and one that does
    the work of all. A chunk takes some microseconds, so all threads take part; what they lose by
    waiting for the slowest is in the figure.
    """
    chunks = CHUNKS_A_THREAD * threads
    many = FORK_JOIN_REPEATS, chunks, INSTRUCTIONS
    one = FORK_JOIN_REPEATS * INSTRUCTIONS, chunks, 1
    # In turn, so that a slower moment of the machine does not fall on one of them alone.
    lost = [
        _multiply_time(threads, *many) - _multiply_time(threads, *one)
        for _ in range(FORK_JOIN_ROUNDS)
    ]
    return max(statistics.median(lost), 0.0) / INSTRUCTIONS


def measure_peaks(counts: Sequence[int]) -> dict[str, dict[int, float]]:
    """Multiply-adds a second of each path that the instruction set has, by threads."""
    from edgerun.kernels.isa import selected_isa

    paths = paths_of(selected_isa())
    return {path: {count: PEAKS[path](count) for count in counts} for path in paths}


def _multiply_peak(threads: int) -> float:
    from edgerun.kernels.isa import selected_isa
    from edgerun.kernels.probes.multiply import PRODUCTS

    chunks = CHUNKS * threads
    seconds = _multiply_time(threads, PEAK_REPEATS, chunks, 1)
    products = chunks * PEAK_REPEATS * PEAK_STEPS * PRODUCTS
    return products * selected_isa().vector_bytes / seconds


def _lookup_peak(threads: int) -> float:
    from edgerun.backends.cpu.emit.lookup import TOKENS
    from edgerun.kernels.linear.lookup_tiles import BYTES, SUMS

    chunks = CHUNKS * threads
    arrays: dict[str, NDArray[Any]] = {
        "entries": np.zeros((PEAK_ROWS, BYTES), np.uint8),
        "sums": np.zeros((chunks, PEAK_ROWS, TOKENS), np.int16),
        "table": np.zeros((SUMS, BYTES, TOKENS), np.int16),
    }
    numbers = {"count": PEAK_ROWS, "repeats": PEAK_REPEATS}
    params = {"tokens": TOKENS}
    seconds = _kernel_time("lookup_peak", params, arrays, numbers, (threads, chunks, 1))
    return chunks * PEAK_REPEATS * PEAK_ROWS * BYTES * 4 * TOKENS / seconds


def _amx_peak(threads: int) -> float:
    from edgerun.kernels.isa import selected_isa
    from edgerun.kernels.probes.multiply import DEPTH, SUMS_BYTES, TILE_PRODUCTS

    chunks, repeats = CHUNKS * threads, AMX_REPEATS * PEAK_REPEATS
    arrays: dict[str, NDArray[Any]] = {
        "codes": np.ones((TILE_PRODUCTS // 32,), np.uint8),
        "x": np.ones((32, DEPTH), np.int8),
        "out": np.zeros((chunks, SUMS_BYTES), np.uint8),
    }
    numbers, params = {"repeats": repeats}, {"isa": selected_isa().name}
    seconds = _kernel_time("amx_peak", params, arrays, numbers, (threads, chunks, 1))
    return chunks * repeats * TILE_PRODUCTS / seconds


PEAKS: Mapping[str, Callable[[int], float]] = {
    MULTIPLY: _multiply_peak,
    LOOKUP: _lookup_peak,
    AMX: _amx_peak,
}


def _multiply_time(threads: int, repeats: int, chunks: int, instructions: int) -> float:
    """Seconds for instructions that multiply, one after the other, at best."""
    from edgerun.kernels.isa import selected_isa
    from edgerun.kernels.probes.multiply import CODES, PLACES, PRODUCTS

    isa = selected_isa()
    lanes = isa.vector_bytes
    arrays = {
        "codes": np.ones((CODES, lanes), np.uint8),
        "x": np.ones((PEAK_STEPS * PLACES, lanes), np.int8),
        "out": np.zeros((chunks, PRODUCTS, lanes), np.uint8),
    }
    numbers = {"steps": PEAK_STEPS, "repeats": repeats}
    params: Mapping[str, int | str] = {"lanes": lanes, "isa": isa.name}
    extent = threads, chunks, instructions
    return _kernel_time("multiply_peak", params, arrays, numbers, extent)


def _kernel_time(
    name: str,
    params: Mapping[str, int | str],
    arrays: dict[str, NDArray[Any]],
    numbers: dict[str, int],
    extent: tuple[int, int, int],
) -> float:
    """Seconds for instructions that call a kernel, one after the other, at best.

    ``extent``: threads, chunks of an instruction, instructions.
    """
    from edgerun.kernels.jit.registry import instruction
    from edgerun.kernels.run.program import Program, ThreadTeam

    threads, chunks, instructions = extent
    step = instruction(
        name,
        params=dict(params),
        fields={key: array.ctypes.data for key, array in arrays.items()} | numbers,
        chunks=(0, 1, 1),
        reads={"out"},
        writes={"out"},
    )
    program = Program([step] * instructions, [arrays])
    program.frame[0] = chunks
    team = ThreadTeam(threads)
    try:
        return best_time(lambda: team.run(program))
    finally:
        team.close()
