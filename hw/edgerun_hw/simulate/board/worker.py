"""The worker with a simulation in the board's place: an overlay in software, or its RTL.

Runs under the same interpreter as a board's worker, with the same driver, below stock pynq or
without it. Names are ``fake:PRESET``, ``cosim:PRESET|LIBRARY``, both behind ``pynq-``, and
``pynq-deployed:BITSTREAM|PRESET|LIBRARY``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType

from edgerun_hw.board_side import devices as board
from edgerun_hw.board_side import worker
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import WrongOverlayError
from edgerun_hw.overlay.geometry import PRESETS, Geometry
from edgerun_hw.overlay.port import DevicePort
from edgerun_hw.simulate.fake import FakeDevice
from edgerun_hw.simulate.simulator import Simulator

MEMORY_BYTES = 1 << 30


def main(arguments: Sequence[str]) -> int:
    """Runs a worker; see ``board_side/worker.py``."""
    return worker.main(arguments, DEVICES)


def _fake(preset: str) -> Tlmm:
    return Tlmm(_fake_port(_geometry(preset)))


def _cosim(argument: str) -> Tlmm:
    preset, _, library = argument.partition(board.SEPARATOR)
    return Tlmm(_simulator(_geometry(preset), library))


def _pynq_fake(preset: str) -> Tlmm:
    return _through_pynq(_geometry(preset), _fake_port)


def _pynq_cosim(argument: str) -> Tlmm:
    preset, _, library = argument.partition(board.SEPARATOR)
    return _through_pynq(_geometry(preset), lambda geometry: _simulator(geometry, library))


def _through_pynq(geometry: Geometry, make_port: Callable[[Geometry], DevicePort]) -> Tlmm:
    """A simulation below stock pynq: the path of a board without a board."""
    from edgerun_hw.board_side.pynq_driver import load_overlay
    from edgerun_hw.simulate.board.device import SimulatedDevice, prepare

    with tempfile.TemporaryDirectory(prefix="edgerun-") as folder:
        bitfile = prepare(geometry, Path(folder))
        return load_overlay(str(bitfile), device=SimulatedDevice(make_port))


def _pynq_deployed(argument: str) -> Tlmm:
    """``BITSTREAM|PRESET|LIBRARY``: a deployed application, of which a simulation runs already."""
    from edgerun_hw.board_side.pynq_driver import load_overlay
    from edgerun_hw.simulate.board.device import SimulatedDevice

    bitstream, preset, library = argument.split(board.SEPARATOR)
    geometry = _geometry(preset)
    device = SimulatedDevice(
        lambda _: _simulator(geometry, library) if library else _fake_port(geometry)
    )
    device.preload(geometry)
    with tempfile.TemporaryDirectory(prefix="edgerun-") as folder:
        named = board.name_for_pynq(Path(bitstream), Path(folder))
        return load_overlay(str(named), device=device, download=False)


def _geometry(preset: str) -> Geometry:
    if preset not in PRESETS:
        raise WrongOverlayError(f"no geometry is called {preset!r}: there are {', '.join(PRESETS)}")
    return PRESETS[preset]


def _fake_port(geometry: Geometry) -> DevicePort:
    return FakeDevice(geometry, memory_bytes=MEMORY_BYTES)


def _simulator(geometry: Geometry, library: str) -> DevicePort:
    return Simulator(geometry, memory=None, library=Path(library) if library else None)


DEVICES: worker.Devices = MappingProxyType(
    {
        **board.DEVICES,
        "fake": _fake,
        "cosim": _cosim,
        "pynq-fake": _pynq_fake,
        "pynq-cosim": _pynq_cosim,
        "pynq-deployed": _pynq_deployed,
    }
)
