"""Attention commands in a simulator's memory, and what they must leave there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.attention_layout import PORTS, KvLayout, run_attention
from edgerun_hw.overlay.command import Command
from edgerun_hw.overlay.register_map import BEAT_BYTES
from edgerun_hw.simulate.cases import GUARD_BYTES
from edgerun_hw.simulate.simulator import Simulator
from tests.hw.support.placed import PlacedCommand

U8 = NDArray[np.uint8]


def place_attention(
    simulator: Simulator, layout: KvLayout, queries: U8, count: int, ports: list[U8]
) -> PlacedCommand:
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
    placed = PlacedCommand(
        command, expected, results, (*(buffer for buffer, _ in buffers), results)
    )
    placed.erase()
    return placed
