"""Cycles of a matrix product on the simulated overlay, for `edgerun fpga check`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.command import expected_cycles
from edgerun_hw.overlay.geometry import Geometry
from edgerun_hw.overlay.packing import LookupMode
from edgerun_hw.simulate.cases import PATIENCE, Case, Placed, make_operands, place, push
from edgerun_hw.simulate.memory import DdrConfig
from edgerun_hw.simulate.simulator import SimulationError, Simulator
from edgerun_hw.simulate.statistics import Statistics

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Measurement:
    """What one or more equal products took, from the first push to the last response.

    Attributes:
        n: rows of the matrix.
        k: weights of a row.
        columns: activation columns.
        products: how many were queued back to back.
        cycles: of the overlay's clock.
        lookups: cycles in which weights were looked up.
        stall_weights: cycles lost waiting for weights.
        stall_tables: cycles lost waiting for tables.
        stall_output: cycles lost waiting for results to leave.
        efficiency: multiply-accumulates of the matrix (no padding) over the peak's.
        achieved_bytes_per_cycle: all that moved, reads and writes.
        ddr_bytes_per_cycle: of the modelled data bus; None with ideal memory.
        ddr_efficiency: achieved over the bus's; None with ideal memory.
        refresh_share: share of the cycles that refresh took.
        row_hit_rate: accesses to DRAM that found their row open.
        exact: results are those of the definition, bit by bit.
    """

    n: int
    k: int
    columns: int
    products: int
    cycles: int
    lookups: int
    stall_weights: int
    stall_tables: int
    stall_output: int
    efficiency: float
    achieved_bytes_per_cycle: float
    ddr_bytes_per_cycle: float | None
    ddr_efficiency: float | None
    refresh_share: float
    row_hit_rate: float
    exact: bool


def measure_matrix(
    geometry: Geometry,
    n: int,
    k: int,
    memory: DdrConfig | None,
    *,
    columns: int | None = None,
    mode: LookupMode = LookupMode.TERNARY,
    products: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> Measurement:
    """Simulates products of a random ``n x k`` matrix.

    Args:
        geometry: of the overlay.
        n: rows; more than ``geometry.max_rows`` are divided into several commands.
        k: weights of a row.
        memory: the DRAM to model, or None for ideal memory.
        columns: activation columns; all of the geometry's by default.
        mode: what a code stands for.
        products: how many products are queued one after another, each on weights of its own.
        seed: of the operands.
        progress: told when the simulator has to be compiled.

    Raises:
        EdgerunError: the simulator cannot be made, or the overlay fails.
        ValueError: ``n``, ``k``, ``columns`` or ``products`` is out of range.
    """
    columns = geometry.columns if columns is None else columns
    if min(n, k, products) < 1 or not 1 <= columns <= geometry.columns:
        raise ValueError(
            f"a product needs n, k and products of at least 1 and 1 to {geometry.columns} columns"
        )
    with Simulator(geometry, memory=memory, seed=seed, progress=progress) as simulator:
        placed = _place_all(simulator, (n, k), columns, mode, range(seed, seed + products))
        cycles = _run(simulator, placed)
        counters = {
            name: simulator.read(regs.OFFSETS[name.upper()])
            for name in ("lookups", "stall_weights", "stall_tables", "stall_output")
        }
        statistics = simulator.statistics()
    bus = None if memory is None else memory.bytes_per_cycle
    moved = (sum(statistics.read_beats) + statistics.write_beats) * regs.BEAT_BYTES / cycles
    return Measurement(
        n=n,
        k=k,
        columns=columns,
        products=products,
        cycles=cycles,
        efficiency=n * k * columns * products / (_peak(geometry, columns, mode) * cycles),
        achieved_bytes_per_cycle=moved,
        ddr_bytes_per_cycle=bus,
        ddr_efficiency=None if bus is None else moved / bus,
        refresh_share=statistics.ddr.refresh_cycles / cycles,
        row_hit_rate=_hit_rate(statistics),
        exact=not any(item.difference() for item in placed),
        **counters,
    )


def _peak(geometry: Geometry, columns: int, mode: LookupMode) -> int:
    """Multiplications a cycle at most."""
    ternary = geometry.macs_per_cycle // geometry.columns * columns
    return ternary if mode is LookupMode.TERNARY else ternary // regs.GROUP


def _place_all(
    simulator: Simulator,
    shape: tuple[int, int],
    columns: int,
    mode: LookupMode,
    seeds: Sequence[int],
) -> list[Placed]:
    """Puts the operands of a product for each seed into memory, in commands of so many rows.

    Counters and statistics start anew afterwards.
    """
    (n, k), geometry = shape, simulator.geometry
    parts = [min(geometry.max_rows, n - first) for first in range(0, n, geometry.max_rows)]
    placed = []
    for seed in seeds:
        for rows in parts:
            case = Case(mode, rows, k, columns, False, "random", seed)
            placed.append(place(simulator, mode, make_operands(case, geometry)))
    simulator.write(regs.CONTROL, regs.CONTROL_SOFT_RESET.mask)  # clears the counters
    simulator.run_until(regs.CONTROL, regs.CONTROL_SOFT_RESET.mask, 0, 10_000)
    simulator.clear_statistics()
    return placed


def _run(simulator: Simulator, placed: list[Placed]) -> int:
    """Runs all commands; returns the cycles from the first push to the last response."""
    rows = simulator.geometry.rows_per_beat
    limit = PATIENCE * sum(expected_cycles(item.command, rows) for item in placed)
    depth = simulator.geometry.queue_depth
    start = 0
    for tag, item in enumerate(placed):
        if tag >= depth:
            _await(simulator, tag - depth + 1, limit)
        push(simulator, item.command, tag)
        start = start or simulator.cycles
    # Register reads take cycles: the interrupt says exactly when the last command completed.
    _await(simulator, len(placed) - 1, limit)
    simulator.write(regs.IRQ, regs.IRQ_COMPLETED.mask)
    simulator.write(regs.CONTROL, regs.CONTROL_IRQ_ENABLE.mask)
    if simulator.read(regs.COMPLETED) < len(placed):
        simulator.wait(limit)
    end = simulator.cycles
    _await(simulator, len(placed), limit)
    if error := simulator.read(regs.ERROR):
        raise SimulationError(f"the simulated overlay reports ERROR {error:#x}")
    return end - start


def _await(simulator: Simulator, completed: int, limit: int) -> None:
    if not simulator.run_until(regs.COMPLETED, 0xFFFFFFFF, completed, limit):
        error = simulator.read(regs.ERROR)
        raise SimulationError(
            f"the simulated overlay did not complete command {completed} within {limit} cycles, "
            f"ERROR is {error:#x}"
        )


def _hit_rate(statistics: Statistics) -> float:
    accesses = statistics.ddr.row_hits + statistics.ddr.row_misses
    return statistics.ddr.row_hits / accesses if accesses else 1.0
