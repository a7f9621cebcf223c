"""What a simulator counted."""

from __future__ import annotations

from dataclasses import dataclass

BEAT_BYTES = 16


@dataclass(frozen=True)
class DdrStatistics:
    """Of the modelled DRAM; all zero with ideal memory.

    Attributes:
        lines_read: accesses that read.
        lines_written: accesses that wrote.
        row_hits: accesses to a row that was open.
        row_misses: rows that had to be opened.
        refreshes: refreshes.
        refresh_cycles: cycles of the overlay in which they kept the channel busy.
        turnaround_cycles: cycles lost to changes of direction.
    """

    lines_read: int
    lines_written: int
    row_hits: int
    row_misses: int
    refreshes: int
    refresh_cycles: float
    turnaround_cycles: float


@dataclass(frozen=True)
class Statistics:
    """Since the start or the last ``Simulator.clear_statistics``.

    Attributes:
        cycles: of the overlay's clock.
        read_bursts: per port: the weight ports, then the data port.
        read_beats: the same in beats of 16 bytes.
        write_bursts: of the data port.
        write_beats: of the data port.
        outstanding: bursts that memory has accepted and not finished now.
        violations: how often the overlay broke a rule of AXI; ``Simulator.violations`` has texts.
        faults: bursts that a fault was committed on.
        ddr: counters of the DRAM.
    """

    cycles: int
    read_bursts: tuple[int, ...]
    read_beats: tuple[int, ...]
    write_bursts: int
    write_beats: int
    outstanding: int
    violations: int
    faults: int
    ddr: DdrStatistics

    @property
    def bytes_per_cycle(self) -> float:
        """Bytes that moved on all ports, per cycle."""
        beats = sum(self.read_beats) + self.write_beats
        return beats * BEAT_BYTES / self.cycles if self.cycles else 0.0
