"""The RTL in a board's place below the native host: all of a board's path but the board."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from edgerun_hw.devices import simulated
from edgerun_hw.devices.native.memory import DEFAULT_NAME
from edgerun_hw.devices.native.port import NativePort
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.port import Overlay

BASE = 0xA000_0000
MEMORY_BYTES = 256 << 20


def open_emulated(argument: str) -> Overlay:
    """Simulates the RTL of ``[PRESET]`` behind emulated device files.

    Raises:
        InputError: ``argument`` is no preset.
    """
    from edgerun_hw.simulate import Simulator
    from edgerun_hw.simulate.board.dev import CLOCK_HZ, EmulatedKernel

    geometry = simulated.geometry_named(argument or simulated.PRESET)
    root = Path(tempfile.mkdtemp(prefix="edgerun-"))
    try:
        kernel = EmulatedKernel(root, Simulator(geometry, memory=None), BASE, MEMORY_BYTES)
        port = NativePort(kernel, BASE, CLOCK_HZ, DEFAULT_NAME)
    finally:
        shutil.rmtree(root)  # what is mapped stays
    return Tlmm(port)
