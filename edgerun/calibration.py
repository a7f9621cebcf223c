"""Measures the machine for ``edgerun doctor --calibrate``: the whole ``MachineProfile``.

The kernels are timed through the CPU back-end as a model would use them, so that what is planned
is what was measured. Best times count where a limit is asked for, medians where other programs
are part of the question.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from edgerun.backends.base import CompileOptions, Executable, Phase
from edgerun.backends.registry import make_backend
from edgerun.formats.base import PackedWeight, pack_bits
from edgerun.formats.trits import FAMILY_BITS as TRITS
from edgerun.graph.ir import Constant, Graph, Node
from edgerun.profile import (
    MachineProfile,
    family,
    measure_bandwidth,
    read_profile,
    write_profile,
)
from edgerun.state import Batch, CacheSpec, KVCache

SECONDS = 0.25  # for each figure
MIN_RUNS = 3
BLOCK = 32
SPEC = CacheSpec(1, 1, 16)
SPIN = "import os, sys\nif len(sys.argv) > 1: os.sched_setaffinity(0, {int(sys.argv[1])})\n"
SPIN += "print(flush=True)\nwhile True: pass\n"


class Progress(Protocol):
    """Receives one line of text about what is being measured."""

    def __call__(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Load:
    """A graph of linear layers, for timing.

    Attributes:
        activations: as in ``graph/ops.py``.
        bits: of a weight's code; 1.6 for trits.
        rows: batch rows.
        size: input and output features.
        layers: how many in a row.
        chained: each reads what the one before wrote, as in a model; else all read the input.
        shared: all have the same weights, which then stay in the cache.
    """

    activations: str
    bits: float
    rows: int
    size: tuple[int, int]
    layers: int
    chained: bool = False
    shared: bool = True

    @property
    def multiply_adds(self) -> int:
        """In one run."""
        return self.rows * self.size[0] * self.size[1] * self.layers


# One row reads a matrix of 256 kB again and again; many rows are bound by multiplication anyway.
HOT_BYTES, ROW_LAYERS, BATCH_ROWS, BATCH_SIZE, BATCH_LAYERS = 256 << 10, 64, 128, 1024, 4
FAMILIES = tuple(
    (activations, bits)
    for activations, each in (("int8_row", (TRITS, 2, 4, 8)), ("int8_block", (2, 4, 8)))
    for bits in each
)
PEAK_STEPS, PEAK_REPEATS = 64, 2000
# Repeats that make a chunk of some microseconds on a core of today.
FORK_JOIN_REPEATS, CHUNKS_A_THREAD, INSTRUCTIONS = 16, 4, 300
TERNARY = ("int8_row", 2)  # what two bits with a scale a row are used for
DECODING = Load("int8_row", 2, 1, (2048, 2048), 24, chained=True, shared=False)


def calibrate(threads: int, progress: Progress = lambda text: None) -> MachineProfile:
    """Measures everything and keeps it; takes about a quarter of a minute.

    Args:
        threads: the most to measure with; memory and fork-join also with 1, 2, 4, ...
        progress: told what is measured next.
    """
    counts = thread_counts(threads)
    progress(f"speed of memory with {_listed(counts)} threads")
    bandwidth = {count: measure_bandwidth(count) for count in counts}
    progress("cost of starting an instruction")
    fork_join = {count: measure_fork_join(count) for count in counts}
    progress("int8 multiplication")
    peak = {count: measure_peak(count) for count in counts}
    rates = {}
    for activations, bits in FAMILIES:
        progress(f"kernels of {bits}-bit weights, {activations} activations")
        rates[family(activations, bits)] = {
            load.rows: measure_rate(load, threads) for load in loads_of(activations, bits)
        }
    progress("decoding beside a process that keeps one core busy")
    contended = measure_contended(threads)
    return write_profile(
        MachineProfile(
            bandwidth=bandwidth,
            rates=rates,
            int8_peak=peak,
            fork_join_s=fork_join,
            contended=contended,
            threads=threads,
        )
    )


def limits(threads: int) -> MachineProfile:
    """The profile with what limits so many threads.

    Memory is measured now, and the best ever seen counts, since other programs and a slow
    moment of the machine can only lower it; the rest is measured where it is not known yet.
    """
    known = read_profile()
    speed = max(measure_bandwidth(threads), known.bandwidth.get(threads, 0.0))
    known = replace(known, bandwidth={**known.bandwidth, threads: speed})
    if threads not in known.int8_peak:
        known = replace(known, int8_peak={**known.int8_peak, threads: measure_peak(threads)})
    if threads not in known.fork_join_s:
        costs = {**known.fork_join_s, threads: measure_fork_join(threads)}
        known = replace(known, fork_join_s=costs)
    return write_profile(known)


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, ... and ``most``.

    >>> thread_counts(6)
    [1, 2, 4, 6]
    """
    return sorted({most, *(1 << power for power in range(most.bit_length()) if 1 << power < most)})


def loads_of(activations: str, bits: float) -> list[Load]:
    """What is timed of a kernel family: one row and many."""
    k = BATCH_SIZE
    n = int(HOT_BYTES * 8 / bits / k)
    many = Load(activations, bits, BATCH_ROWS, (k, BATCH_SIZE), BATCH_LAYERS)
    return [Load(activations, bits, 1, (k, n), ROW_LAYERS), many]


def measure_rate(load: Load, threads: int) -> float:
    """Multiply-adds a second, the best of several runs."""
    with running(load, threads) as run:
        return load.multiply_adds / best_time(run)


def measure_contended(threads: int) -> float | None:
    """Speed of a decode-like program beside a spinning process, relative to idle.

    The other process is pinned to the first core that this one may use, and is in a session of
    its own, as a program in another terminal is. None where none can be started.
    """
    ratios = []
    with running(DECODING, threads) as run:
        best_time(run)
        for _ in range(3):
            alone = median_time(run)
            try:
                with spinning():
                    ratios.append(alone / median_time(run))
            except OSError:
                return None
    return statistics.median(ratios)


def measure_fork_join(threads: int) -> float:
    """Seconds that an instruction costs all threads besides its kernel.

    The difference between many instructions, each waiting for the one before, and one that does
    the work of all. A chunk takes some microseconds, so all threads take part; what they lose by
    waiting for the slowest is in the figure.
    """
    chunks = CHUNKS_A_THREAD * threads
    many = FORK_JOIN_REPEATS, chunks, INSTRUCTIONS
    one = FORK_JOIN_REPEATS * INSTRUCTIONS, chunks, 1
    # In turn, so that a slower minute of the machine does not fall on one of them alone.
    times = [(_multiply_time(threads, *many), _multiply_time(threads, *one)) for _ in range(3)]
    apart = min(first for first, _ in times)
    together = min(second for _, second in times)
    return max(apart - together, 0.0) / INSTRUCTIONS


def measure_peak(threads: int) -> float:
    """int8 multiply-adds a second of the instruction set in use, all threads."""
    from edgerun.kernels.isa import VECTOR_BYTES, selected_isa
    from edgerun.kernels.measure import PRODUCTS

    chunks = 8 * threads
    seconds = _multiply_time(threads, PEAK_REPEATS, chunks, 1)
    products = chunks * PEAK_REPEATS * PEAK_STEPS * PRODUCTS
    return products * VECTOR_BYTES[selected_isa()] / seconds


def _multiply_time(threads: int, repeats: int, chunks: int, instructions: int) -> float:
    """Seconds for instructions that multiply, one after the other, at best."""
    from edgerun.kernels.isa import VECTOR_BYTES, selected_isa
    from edgerun.kernels.measure import CODES, PLACES, PRODUCTS
    from edgerun.kernels.program import Program, ThreadTeam
    from edgerun.kernels.registry import instruction

    isa = selected_isa()
    lanes = VECTOR_BYTES[isa]
    codes, x = np.ones((CODES, lanes), np.uint8), np.ones((PEAK_STEPS * PLACES, lanes), np.int8)
    out = np.zeros((chunks, PRODUCTS, lanes), np.uint8)
    fields = {"codes": codes.ctypes.data, "x": x.ctypes.data, "out": out.ctypes.data}
    step = instruction(
        "multiply_peak",
        params={"lanes": lanes, "isa": isa},
        fields=fields | {"steps": PEAK_STEPS, "repeats": repeats},
        chunks=(0, 1, 1),
        reads={"out"},
        writes={"out"},
    )
    program = Program([step] * instructions, [codes, x, out])
    program.frame[0] = chunks
    team = ThreadTeam(threads)
    try:
        return best_time(lambda: team.run(program))
    finally:
        team.close()


@contextlib.contextmanager
def running(load: Load, threads: int) -> Iterator[Callable[[], object]]:
    """Compiles a load on the CPU back-end; yields a function that runs it once."""
    backend = make_backend("cpu")
    phase = Phase.DECODE if load.rows == 1 else Phase.PREFILL
    options = CompileOptions(threads, load.rows, SPEC, trits=load.bits == TRITS)
    try:
        executable: Executable = backend.compile(graph_of(load), phase, options)
        batch = Batch.of([0] * load.rows, 0, 0, logits="none")
        cache = KVCache(SPEC, load.rows)
        x = np.random.default_rng(0).standard_normal((load.rows, load.size[0])).astype(np.float32)
        yield lambda: executable(batch, cache, {"x": x})
        executable.close()
    finally:
        backend.close()


def graph_of(load: Load) -> Graph:
    """The layers of a load as a graph with the input ``x``."""
    nodes: list[Node] = []
    constants: dict[str, Constant] = {}
    for layer in range(load.layers):
        weight = "w0" if load.shared else f"w{layer}"
        if weight not in constants:
            ternary = (load.activations, math.ceil(load.bits)) == TERNARY
            bits = math.ceil(load.bits)
            constants[weight] = random_weight(bits, load.size, layer, ternary=ternary)
        source = f"y{layer - 1}" if load.chained and layer else "x"
        attributes = {"activations": load.activations}
        nodes.append(Node("linear", f"l{layer}", (source, weight), (f"y{layer}",), attributes))
    return Graph(nodes, ["x"], [nodes[-1].outputs[0]], constants)


def random_weight(
    bits: int, size: tuple[int, int], seed: int, *, ternary: bool = False
) -> PackedWeight:
    """Random codes ``[N, K]`` whose products keep the size of what they multiply."""
    k, n = size
    lowest = 1 if ternary else 0  # of two bits, the ternary codes are 1, 2 and 3
    shape = (n, k // BLOCK, BLOCK)
    codes = np.random.default_rng(seed).integers(lowest, 1 << bits, shape, np.uint8)
    scale = k**-0.5 / 2 ** (bits - 1)
    scales = np.full((n, k // BLOCK), scale, np.float32)
    name = "ternary" if ternary else f"int{bits}"
    return PackedWeight(name, (n, k), BLOCK, pack_bits(codes, bits), scales)


@contextlib.contextmanager
def spinning() -> Iterator[None]:
    """A process that keeps one core busy meanwhile.

    Raises:
        OSError: it cannot be started.
    """
    pinned = [str(min(os.sched_getaffinity(0)))] if hasattr(os, "sched_getaffinity") else []
    command = [sys.executable, "-S", "-c", SPIN, *pinned]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():  # a line says that it spins now
                raise OSError("the spinning process ended")
            yield
        finally:
            process.kill()


def best_time(run: Callable[[], object]) -> float:
    """The shortest of several runs in seconds."""
    return min(_times(run))


def median_time(run: Callable[[], object]) -> float:
    """The median of several runs in seconds."""
    return statistics.median(_times(run))


def _times(run: Callable[[], object]) -> list[float]:
    found: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(found) < MIN_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))
