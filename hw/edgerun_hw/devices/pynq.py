"""Devices behind pynq: a board, and the simulation in a board's place.

pynq pins NumPy below 2, so it mostly lives in an environment of its own, where a worker process
runs the driver (``client.py``). Where pynq can be imported here, it is used here.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from edgerun.env import settings
from edgerun.errors import InputError
from edgerun_hw.board_side.devices import DEVICES, SEPARATOR
from edgerun_hw.devices import simulated
from edgerun_hw.devices.client import WorkerClient
from edgerun_hw.overlay.errors import OverlayError
from edgerun_hw.overlay.port import Overlay

BITSTREAM_SUFFIXES = (".bit", ".xsa")


def obstacle(argument: str = "") -> str:
    """Why no device behind pynq can be used here, or ""."""
    if find_spec("pynq") or settings().pynq_python:
        return ""
    return "needs pynq: set EDGERUN_PYNQ_PYTHON to the Python of an environment that has it"


def check_bitfile(argument: str) -> Path:
    """Returns the bitstream that ``argument`` names.

    Raises:
        InputError: there is no such file, or pynq could not read it.
    """
    if not argument:
        raise InputError("the device 'pynq' needs a bitstream: --device pynq:/path/to/overlay.bit")
    try:
        path = Path(argument).expanduser().resolve()
    except RuntimeError as error:
        raise InputError(f"'{argument}' begins with the home folder of nobody here") from error
    if path.suffix not in BITSTREAM_SUFFIXES:
        raise InputError(f"{path} is no bitstream: expected {' or '.join(BITSTREAM_SUFFIXES)}")
    for needed in (path, path.with_suffix(".hwh")):
        inside = path.suffix == ".xsa" and needed != path
        if not needed.is_file() and not inside:
            raise InputError(f"{needed} is missing: pynq needs the bitstream and its .hwh together")
    return path


def open_here(kind: str, argument: str) -> Overlay:
    """Opens what ``board_side`` calls ``kind``: in this process where pynq is, else in a worker.

    Raises:
        InputError: there is no pynq.
        OverlayError: the device fails, or somebody else uses it.
    """
    if not find_spec("pynq"):
        return _worker(f"{kind}:{argument}")
    try:
        return DEVICES[kind](argument)
    except (OverlayError, OSError):
        raise
    except Exception as error:  # pynq's own; a worker tells of it as well
        raise OverlayError(f"pynq failed: {type(error).__name__}: {error}") from error


def split_remote(argument: str) -> tuple[str, Path]:
    """Returns the host and the bitstream of ``HOST,BITSTREAM``.

    Raises:
        InputError: one of them is missing.
    """
    host, _, bitfile = argument.partition(",")
    if not host or not bitfile or SEPARATOR in host:
        raise InputError(
            "the device 'pynq-remote' needs a host and a bitstream: "
            "--device pynq-remote:192.168.2.99,/path/to/overlay.bit"
        )
    return host, check_bitfile(bitfile)


def open_remote(argument: str) -> Overlay:
    """A board that PYNQ.remote serves at another host.

    The connection is neither encrypted nor authenticated: only for networks that are trusted.

    Raises:
        InputError: the bitstream is missing.
        OverlayError: the host does not answer, or the board does not load it.
    """
    host, bitfile = split_remote(argument)
    return _worker(f"remote:{host}{SEPARATOR}{bitfile}")


def simulation_obstacle(argument: str = "") -> str:
    """Why the RTL cannot be run below pynq here, or ""."""
    return simulated.no_verilator() or obstacle()


def open_simulation(argument: str) -> Overlay:
    """The RTL below stock pynq, in a worker: all of a board's path but the board.

    Raises:
        InputError: ``argument`` is no preset.
    """
    from edgerun_hw.simulate.build import build, overlay_design

    preset = argument or simulated.PRESET
    geometry = simulated.geometry_named(preset)
    return _worker(f"pynq-cosim:{preset}{SEPARATOR}{build(overlay_design(geometry))}")


def _worker(device: str) -> Overlay:
    python = settings().pynq_python
    if python is None:
        raise InputError(obstacle() or "set EDGERUN_PYNQ_PYTHON to a Python that has pynq")
    return WorkerClient(python, device)
