"""How fast memory can be read, and how much the processor keeps of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.host.caches import last_cache_bytes
from edgerun.kernels.host.memory import available_memory

if TYPE_CHECKING:
    from edgerun.kernels.run.program import Program, ThreadTeam

BUFFER_BYTES = 256 << 20  # beyond most caches; four times the last level's where that is known
CHUNK_BYTES = 256 << 10
SECONDS = 0.08  # for each way of reading
MIN_PASSES = 3
# Places read side by side, and how far ahead lines are asked for (0: by the processor alone).
WAYS = ((1, 0), (2, 0), (4, 0), (8, 0), (1, 4096), (4, 2048))


def measure_bandwidth(threads: int) -> float:
    """Measures how many bytes a second ``threads`` threads can read from memory.

    Takes about a second and ``BUFFER_BYTES`` of memory on pages of 2 MiB. The best pass of the
    best way of reading counts, so that other programs disturb it little.
    """
    from edgerun.kernels.layouts.stream import Arena
    from edgerun.kernels.run.program import ThreadTeam

    data = Arena(piece=0).zeros((_buffer_bytes(),))
    data[:: 4 << 10] = 1  # the system commits a page when it is written
    team = ThreadTeam(threads)
    try:
        programs = [reading_program(data, streams, ahead) for streams, ahead in WAYS]
        return data.size / min(best_pass(team, program) for program in programs)
    finally:
        team.close()


def reading_program(data: NDArray[np.uint8], streams: int, ahead: int) -> Program:
    """A program that reads all data once, in one of ``WAYS``."""
    from edgerun.kernels.isa import selected_isa
    from edgerun.kernels.run.instructions import instruction
    from edgerun.kernels.run.program import Program

    chunks = data.size // CHUNK_BYTES
    sums = np.zeros(chunks, np.int32)
    lanes = selected_isa().float_lanes
    step = instruction(
        "stream_read",
        params={"lanes": lanes, "streams": streams, "ahead": ahead},
        fields={"data": data.ctypes.data, "bytes": CHUNK_BYTES, "sums": sums.ctypes.data},
        chunks=(0, 1, 1),
        reads=set(),
        writes=set(),
    )
    program = Program([step], [data, sums])
    program.frame[0] = chunks
    return program


def best_pass(team: ThreadTeam, program: Program, seconds: float = SECONDS) -> float:
    """Seconds of a program, the shortest of at least ``MIN_PASSES`` runs."""
    best, passes, end = float("inf"), 0, time.perf_counter() + seconds
    while passes < MIN_PASSES or time.perf_counter() < end:
        start = time.perf_counter()
        team.run(program)
        best = min(best, time.perf_counter() - start)
        passes += 1
    return best


def _buffer_bytes() -> int:
    enough = max(BUFFER_BYTES, 4 * last_cache_bytes())
    affordable = available_memory() // 4
    return max(1, min(enough, affordable) // CHUNK_BYTES) * CHUNK_BYTES
