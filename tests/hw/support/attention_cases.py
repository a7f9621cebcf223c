"""Attention commands in a simulator's memory, and what they must leave there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.attention_layout import PORTS, KvLayout, run_attention
from edgerun_hw.overlay.command import Command
from edgerun_hw.overlay.register_map import BEAT_BYTES
from edgerun_hw.simulate.buffers import SimulatedBuffer
from edgerun_hw.simulate.cases import GUARD, GUARD_BYTES
from edgerun_hw.simulate.simulator import Simulator

U8 = NDArray[np.uint8]


@dataclass(frozen=True)
class PlacedAttention:
    """A command whose operands are in memory.

    Attributes:
        command: to be pushed.
        expected: words of the results, by the definition.
        results: where they go, with a guard behind them.
        buffers: all of the command.
    """

    command: Command
    expected: NDArray[np.uint32]
    results: SimulatedBuffer
    buffers: tuple[SimulatedBuffer, ...]

    def difference(self) -> str:
        """Says in what the results differ from the definition; empty when they are equal."""
        end = self.expected.nbytes
        if not (self.results.array[end:] == GUARD).all():
            return "something was written behind the results"
        wrong = np.flatnonzero(self.results.array[:end].view(np.uint32) != self.expected)
        return f"{wrong.size} of {self.expected.size} words differ" if wrong.size else ""

    def erase(self) -> None:
        """Makes the memory of the results as it was before the command."""
        self.results.array[:] = GUARD

    def free(self) -> None:
        """Frees the buffers."""
        for buffer in self.buffers:
            buffer.free()


def place_attention(
    simulator: Simulator, layout: KvLayout, queries: U8, count: int, ports: list[U8]
) -> PlacedAttention:
    """Puts a command's operands into memory, the ports' regions in different banks."""
    buffers = []
    for port, data in enumerate([queries, *ports]):
        offset = 1024 * (port % (PORTS + 1))
        buffer = simulator.allocate(offset + data.size)
        buffer.array[offset:] = data
        buffers.append((buffer, buffer.address + offset))
    expected = run_attention(layout, queries, count, ports)
    results = simulator.allocate(expected.nbytes + GUARD_BYTES)
    command = Command(
        x=buffers[0][1],
        y=results.address,
        weights=tuple(address for _, address in buffers[1:]),
        row_beats=layout.pair_beats,
        tiles=ports[0].size // BEAT_BYTES // layout.pair_beats,
        columns=count,
        kv_heads=layout.kv_heads,
        head_units=layout.units,
    )
    placed = PlacedAttention(
        command, expected, results, (*(buffer for buffer, _ in buffers), results)
    )
    placed.erase()
    return placed
