"""How long matrices take on the overlay: cycles by its rules, seconds by assumptions.

The cycles are held against the simulator (``tests/hw/model/test_model.py``); seconds stand on an
assumed clock and memory and are to be called *modelled*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from edgerun_hw.overlay.command import RESULT_BYTES, Capabilities
from edgerun_hw.overlay.cut import FILL_CYCLES, RESULTS_PER_CYCLE, Cut
from edgerun_hw.overlay.packing import row_beats
from edgerun_hw.overlay.register_map import BEAT_BYTES

# Of the RTL, checked against the simulator: from submitting the first of some commands to its first
# lookup, and from the last result to completion, together.
START_CYCLES = 75
# What edgerun's Python takes in place of ``Assumptions.host_us`` on a desktop processor, measured
# there; a board's cores are slower. Until that part is native, it decides what a board would do.
PYTHON_HOST_US = 150.0


@dataclass(frozen=True)
class Assumptions:
    """What is not known without a board.

    Attributes:
        clock_mhz: of the overlay.
        memory_gb_per_s: of the data bus: a KV260 has 64 bits of DDR4-2400.
        efficiency: share of it that weight streams get: 0.87 to 0.94 in the DDR model of
            ``simulate`` (refresh, bank conflicts, four ports), lowest for heads of short blocks.
        launch_us: from deciding to run a layer's matrices to their first cycle, and from the last
            result to the processor's seeing it. Register writes over AXI4-Lite and an interrupt.
        attention_gb_per_s: at which the processor reads keys and values.
        host_us: rounding, packing, scaling and norms on the processor, for each step that follows
            another (four a layer). Native code is assumed; see ``PYTHON_HOST_US``.
    """

    clock_mhz: float = 300.0
    memory_gb_per_s: float = 19.2
    efficiency: float = 0.92
    launch_us: float = 5.0
    attention_gb_per_s: float = 6.0
    host_us: float = 5.0

    def __str__(self) -> str:
        return (
            f"{self.clock_mhz:g} MHz assumed, {self.efficiency:.0%} of "
            f"{self.memory_gb_per_s:g} GB/s assumed"
        )

    @property
    def stream_bytes_per_s(self) -> float:
        """Of weights."""
        return self.memory_gb_per_s * 1e9 * self.efficiency


@dataclass(frozen=True)
class Work:
    """What the commands of a matrix need, one after the other without gaps.

    Attributes:
        cycles: from the first lookup to the last, memory not limiting.
        exposed: cycles before and after: the start, and the drain of the last results.
        weight_bytes: read.
        other_bytes: activations read and results written.
        commands: submitted.
    """

    cycles: int = 0
    exposed: int = 0
    weight_bytes: int = 0
    other_bytes: int = 0
    commands: int = 0

    @property
    def nbytes(self) -> int:
        """Of all memory traffic."""
        return self.weight_bytes + self.other_bytes

    def seconds(self, assumptions: Assumptions) -> float:
        """The longer of looking up and streaming, and what neither can hide."""
        hertz = assumptions.clock_mhz * 1e6
        streaming = self.nbytes / assumptions.stream_bytes_per_s
        return max(self.cycles / hertz, streaming) + self.exposed / hertz

    def limit(self, assumptions: Assumptions) -> str:
        """What decides: ``"cycles"`` or ``"memory"``."""
        streaming = self.nbytes / assumptions.stream_bytes_per_s
        return "memory" if streaming > self.cycles / (assumptions.clock_mhz * 1e6) else "cycles"


def command_cycles(tiles: int, beats: int) -> int:
    """Cycles of a command's lookups, memory not limiting.

    A tile takes as many as it has row beats, or as its successor's tables take to fill.
    """
    return tiles * max(beats, FILL_CYCLES)


def sequence_cycles(
    commands: Iterable[tuple[int, int, int]],
    rows_per_beat: int,
    results_per_cycle: int = RESULTS_PER_CYCLE,
) -> tuple[int, int]:
    """When commands that follow one another have looked up and drained, in cycles.

    A command's results leave, four a cycle or a scaled one, while the next one looks up; there are
    two halves of accumulators, so the one after that waits for them.

    Args:
        commands: tiles, row beats and columns of each.
        rows_per_beat: of the overlay.
        results_per_cycle: that leave.

    Returns:
        The cycle of the last lookup, and that of the last result.
    """
    looked_up = drained = drained_before = 0
    for tiles, beats, columns in commands:
        looked_up = max(looked_up, drained_before) + command_cycles(tiles, beats)
        drain = -(-beats * columns * rows_per_beat // results_per_cycle)
        drained_before, drained = drained, max(looked_up, drained) + drain
    return looked_up, drained


def matrix_work(cut: Cut, can: Capabilities, rows: int, *, scaled: bool = False) -> Work:
    """What a matrix times ``rows`` activation rows needs; ``scaled``: on the overlay."""
    drained = can.rows_per_beat, 1 if scaled else RESULTS_PER_CYCLE
    full, remainder = divmod(rows, can.columns)
    groups = [can.columns] * min(full, 2) + [remainder] * bool(remainder)
    # All full groups after the first take the same time.
    first = sequence_cycles(_commands(cut, can, groups[:1]), *drained)[0]
    ends = sequence_cycles(_commands(cut, can, groups), *drained)
    second = sequence_cycles(_commands(cut, can, groups[:2]), *drained)[0]
    shapes = list(_commands(cut, can, [1]))
    weights = sum(tiles * beats for tiles, beats, _ in shapes) * BEAT_BYTES * can.ports
    inputs = sum(tiles for tiles, _, _ in shapes) * BEAT_BYTES
    outputs = sum(beats for _, beats, _ in shapes) * can.rows_per_beat * RESULT_BYTES
    times = full + bool(remainder)
    return Work(
        cycles=ends[0] + max(0, full - 2) * (second - first),
        exposed=ends[1] - ends[0] + START_CYCLES if rows else 0,
        weight_bytes=weights * times,
        other_bytes=(inputs + outputs) * rows,
        commands=len(shapes) * times,
    )


def _commands(cut: Cut, can: Capabilities, groups: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Tiles, row beats and columns of each command, for groups of so many columns."""
    for columns in groups:
        for block in range(cut.blocks):
            first, last = cut.columns(block)
            for start, stop in cut.pieces():
                beats = row_beats((stop - start) * cut.digits, can.ports)
                yield cut.mode.tiles(last - first), beats, columns


def matrix_seconds(cut: Cut, can: Capabilities, rows: int, assumptions: Assumptions) -> float:
    """Estimated time of one matrix, launch and the processor's share of every command included."""
    work = matrix_work(cut, can, rows)
    processor_us = assumptions.launch_us + work.commands * assumptions.host_us
    return work.seconds(assumptions) + processor_us * 1e-6
