"""The overlay without a board: its RTL, verilated, with memory and a processor port around it."""

from edgerun_hw.simulate.faults import Channel, Fault, FaultKind
from edgerun_hw.simulate.memory import DDR_PRESETS, DdrConfig
from edgerun_hw.simulate.simulator import SimulationError, Simulator
from edgerun_hw.simulate.statistics import Statistics

__all__ = [
    "DDR_PRESETS",
    "Channel",
    "DdrConfig",
    "Fault",
    "FaultKind",
    "SimulationError",
    "Simulator",
    "Statistics",
]
