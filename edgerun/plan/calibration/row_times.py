"""Times few and many rows of a layer in turns and by every kernel for blocks of rows.

What follows for other numbers of rows is said by ``machine/row_times.py``. Of a small layer the
weights stay in the cache of a core, of a large one in the last. Ways take turns, so that a slow
moment is in all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from edgerun.backends.base import Progress, Values
from edgerun.backends.cpu.row_paths import possible_paths
from edgerun.kernels.isa import selected_isa
from edgerun.machine.profile import family
from edgerun.machine.row_times import ALL_IN_TURNS, BLOCKS, TURNS, BlockPath, Layers, RowTimes
from edgerun.machine.timing import best_time
from edgerun.plan.calibration import kernels
from edgerun.plan.calibration.loads import Load

# Input and output features, and how many layers share the same weights.
SIZES = (((768, 1536), 8), ((2048, 4096), 2))
ROUNDS, SECONDS = 3, 0.008  # for each figure
IN_TURNS = "turns"


def time_rows(
    thread_counts: Sequence[int],
    progress: Progress,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Layers]:
    """Times the families of which blocks of rows have kernels of their own; a few seconds.

    Args:
        thread_counts: with how many threads, one after the other.
        progress: told what is measured next.
        clock: says seconds.
    """
    progress("from how many rows on blocks of rows are faster than rows in turns")
    isa = selected_isa()
    families = {family(*each): each for each in kernels.FAMILIES}
    return {
        name: tuple(
            _times(Load(*each, BLOCKS[-1], *size), paths, threads, clock)
            for threads in thread_counts
            for size in SIZES
        )
        for name, each in families.items()
        if (paths := possible_paths(isa, name))
    }


def _times(
    load: Load, paths: tuple[str, ...], threads: int, clock: Callable[[], float]
) -> RowTimes:
    """What a layer of a load takes, the best of several rounds."""
    ways: dict[str, tuple[BlockPath, tuple[int, ...]]] = {IN_TURNS: (ALL_IN_TURNS, TURNS)}
    ways |= {path: (BlockPath(path, 1), BLOCKS) for path in paths}
    name = family(load.activations, load.weights)
    trial = kernels.trial_of(name, load)
    seconds: dict[str, dict[int, float]] = {way: {} for way in ways}
    with ExitStack() as owned:
        runs: dict[tuple[str, int], Callable[[], Values]] = {}
        for way, (path, all_rows) in ways.items():
            runner = owned.enter_context(kernels.bound(trial, threads, {name: path}))
            runs |= {(way, rows): runner(rows) for rows in all_rows}
        for _ in range(ROUNDS):
            for (way, rows), run in runs.items():
                taken = best_time(run, SECONDS, clock) / load.layers
                seconds[way][rows] = min(taken, seconds[way].get(rows, taken))
    return RowTimes(seconds.pop(IN_TURNS), seconds, threads)
