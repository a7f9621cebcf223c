"""What the machine does at most, and what starting work costs; ``bench`` holds models against it.

Programs of one kernel (``kernels/probes``), timed alone: upper bounds of what the paths of linear
layers can do, whatever surrounds their innermost operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.families import AMX, LOOKUP, paths_of
from edgerun.kernels.isa import selected_isa
from edgerun.machine.profile import MULTIPLY
from edgerun.machine.timing import best_time

if TYPE_CHECKING:
    from edgerun.kernels.run.program import Program

STEPS, REPEATS, ROWS = 64, 2000, 64  # sums of rows lie in the first cache beside the tables
CHUNKS, AMX_REPEATS = 8, 8  # chunks a thread, and how much longer tiles are busy
# Repeats that make a chunk of some microseconds on a core of today.
FORK_JOIN_REPEATS, FORK_JOIN_CHUNKS, INSTRUCTIONS, ROUNDS = 16, 4, 300, 3
START_SECONDS = 0.08  # for each of three ways to start them, in each round
Arrays: TypeAlias = dict[str, NDArray[Any]]


class Probe(NamedTuple):
    """A kernel to time, what it works on, and how many products it makes in a chunk."""

    kernel: str
    params: dict[str, int | str]
    arrays: Arrays
    numbers: dict[str, int]
    products: int


def measure_peaks(counts: Sequence[int]) -> dict[str, dict[int, float]]:
    """Multiply-adds a second of each path that the instruction set has, by threads."""
    paths = paths_of(selected_isa())
    return {path: {count: _peak(PROBES[path], count) for count in counts} for path in paths}


class StartTimes(NamedTuple):
    """What tells apart starting an instruction and its work, in seconds.

    Attributes:
        separate: many instructions, each waiting for the one before.
        joined: one that does the work of all.
        idle: as many that have next to nothing to do.
    """

    separate: float
    joined: float
    idle: float

    @property
    def instruction_s(self) -> float:
        """Seconds that an instruction costs all threads besides its kernel.

        What threads lose by waiting for the slowest is in the figure. It is at least what an
        instruction takes that has next to nothing to do.
        """
        return max(self.separate - self.joined, self.idle) / INSTRUCTIONS


def quickest(times: Iterable[StartTimes]) -> StartTimes:
    """Each at its quickest: other programs make them longer, nothing makes them shorter."""
    return StartTimes(*(min(each) for each in zip(*times, strict=True)))


def measure_starts(threads: int) -> StartTimes:
    """Times the instructions of a program with next to no work, in several rounds."""
    chunks = FORK_JOIN_CHUNKS * threads
    short = _multiply(chunks, FORK_JOIN_REPEATS)
    long = _multiply(chunks, FORK_JOIN_REPEATS * INSTRUCTIONS)
    idle = _multiply(threads, 1, steps=1)
    return quickest(
        StartTimes(
            _seconds(short, threads, chunks, INSTRUCTIONS, START_SECONDS),
            _seconds(long, threads, chunks, seconds=START_SECONDS),
            _seconds(idle, threads, threads, INSTRUCTIONS, START_SECONDS),
        )
        for _ in range(ROUNDS)
    )


def _peak(make: Callable[[int, int], Probe], threads: int) -> float:
    chunks = CHUNKS * threads
    probe = make(chunks, REPEATS)
    return chunks * probe.products / _seconds(probe, threads, chunks)


def _multiply(chunks: int, repeats: int, steps: int = STEPS) -> Probe:
    from edgerun.kernels.probes.multiply import CODES

    isa, numbers = selected_isa(), {"steps": steps, "repeats": repeats}
    lanes, places = isa.vector_bytes, max(1, isa.registers // isa.partial * 3 // 16)
    sums = CODES * places  # three of four registers; the others have codes
    arrays: Arrays = {
        "codes": np.ones((CODES, lanes), np.uint8),
        "x": np.ones((steps * places, lanes), np.int8),
        "out": np.zeros((chunks, sums, isa.partial * lanes), np.uint8),
    }
    params: dict[str, int | str] = {"places": places, "lanes": lanes, "isa": isa.name}
    return Probe("multiply_peak", params, arrays, numbers, repeats * steps * sums * lanes)


def _look_up(chunks: int, repeats: int) -> Probe:
    from edgerun.backends.cpu.row_paths import LOOKUP_TOKENS as TOKENS
    from edgerun.kernels.linear.lookup_tiles import BYTES, SUMS

    arrays: Arrays = {
        "entries": np.zeros((ROWS, BYTES), np.uint8),
        "sums": np.zeros((chunks, ROWS, TOKENS), np.int16),
        "table": np.zeros((SUMS, BYTES, TOKENS), np.int16),
    }
    numbers, products = {"count": ROWS, "repeats": repeats}, repeats * ROWS * BYTES * 4 * TOKENS
    return Probe("lookup_peak", {"tokens": TOKENS}, arrays, numbers, products)


def _multiply_tiles(chunks: int, repeats: int) -> Probe:
    from edgerun.kernels.probes.multiply import SUMS_BYTES, TILE_PRODUCTS

    arrays: Arrays = {
        "codes": np.ones((TILE_PRODUCTS // 32,), np.uint8),
        "x": np.ones((TILE_PRODUCTS // 32,), np.int8),
        "out": np.zeros((chunks, SUMS_BYTES), np.uint8),
    }
    numbers, products = {"repeats": AMX_REPEATS * repeats}, AMX_REPEATS * repeats * TILE_PRODUCTS
    return Probe("amx_peak", {"isa": selected_isa().name}, arrays, numbers, products)


PROBES = {MULTIPLY: _multiply, LOOKUP: _look_up, AMX: _multiply_tiles}


def _seconds(
    probe: Probe, threads: int, chunks: int, instructions: int = 1, seconds: float | None = None
) -> float:
    """Seconds for instructions that call a kernel, one after the other, at best."""
    from edgerun.kernels.run.program import ThreadTeam

    program = probe_program(probe, chunks, instructions)
    with closing(ThreadTeam(threads)) as team:
        return best_time(lambda: team.run(program), seconds)


def probe_program(probe: Probe, chunks: int, instructions: int = 1) -> Program:
    """Instructions that call a kernel, one after the other."""
    from edgerun.kernels.run.instructions import instruction
    from edgerun.kernels.run.program import Program

    fields = {key: array.ctypes.data for key, array in probe.arrays.items()} | probe.numbers
    name, params, out = probe.kernel, probe.params, {"out"}
    step = instruction(name, params=params, fields=fields, chunks=(0, 1, 1), reads=out, writes=out)
    program = Program([step] * instructions, [probe.arrays])
    program.frame[0] = chunks
    return program
