"""Glue commands in a simulator's memory, and what they must leave there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.command import GLUE_LANES, Command
from edgerun_hw.overlay.glue import Gate
from edgerun_hw.overlay.glue_layout import beats, run_glue, split_norm
from edgerun_hw.overlay.packing import LookupMode
from edgerun_hw.simulate.buffers import SimulatedBuffer
from edgerun_hw.simulate.cases import GUARD, GUARD_BYTES
from edgerun_hw.simulate.simulator import Simulator
from tests.hw.support.placed import PlacedCommand

F32 = NDArray[np.float32]


def place_glue(
    simulator: Simulator, gate: Gate, norm: bool, length: int, x: F32, w: F32
) -> PlacedCommand:
    """Puts a command's streams into memory, the norm's weights over all ports.

    Args:
        simulator: whose memory.
        gate: which one.
        norm: whether there is a norm.
        length: elements of the row.
        x: words of the stream.
        w: likewise: the row beside, then the norm's weights.
    """
    ports = simulator.geometry.ports
    second, weight = (w[: GLUE_LANES * beats(length)], w[-GLUE_LANES * beats(length) :])
    parts = split_norm(weight[:length], ports) if norm else [np.zeros(16, np.uint8)] * ports
    arrays = [x.view(np.uint8), *parts, *([second.view(np.uint8)] if gate else [])]
    buffers: list[SimulatedBuffer] = []
    for array in arrays:
        buffers.append(simulator.allocate(array.size))
        buffers[-1].array[:] = array
    with np.errstate(invalid="ignore"):  # signalling NaNs become Python's floats
        expected = run_glue(gate, norm, length, x, w).view(np.uint32)
    results = simulator.allocate(expected.nbytes + GUARD_BYTES)
    results.array[:] = GUARD
    command = Command(
        x=buffers[0].address,
        y=results.address,
        weights=tuple(buffer.address for buffer in buffers[1 : 1 + ports]),
        row_beats=-(-length // LookupMode.TERNARY.activations_per_tile),
        tiles=length,
        scales=buffers[-1].address if gate else None,
        glue=True,
        gate=gate,
        norm=norm,
    )
    return PlacedCommand(command, expected, results, (*buffers, results))
