"""Devices that a worker can open, by name; what follows the colon is theirs to read."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from edgerun_hw.driver import Tlmm
from edgerun_hw.overlay_errors import WrongOverlayError

if TYPE_CHECKING:
    from edgerun_hw.geometry import Geometry
    from edgerun_hw.port import DevicePort

SEPARATOR = "|"


def open_device(name: str) -> Tlmm:
    """Opens the device called ``name``, as in ``pynq:/lib/edgerun-tlmm.bit``.

    Raises:
        OverlayError: it is not there, not an overlay, or wedged.
    """
    kind, _, argument = name.partition(":")
    if kind not in DEVICES:
        raise WrongOverlayError(f"a worker has no device {kind!r}: there are {', '.join(DEVICES)}")
    return DEVICES[kind](argument)


def _pynq(bitfile: str) -> Tlmm:
    from edgerun_hw.pynq_driver import load_overlay

    return load_overlay(bitfile)


def _remote(argument: str) -> Tlmm:
    """``HOST|BITFILE``: a board that PYNQ.remote serves at another host."""
    from pynq.pl_server.remote_device import RemoteDevice

    from edgerun_hw.pynq_driver import load_overlay

    host, _, bitfile = argument.partition(SEPARATOR)
    with tempfile.TemporaryDirectory(prefix="edgerun-") as folder:
        named = name_by_digest(Path(bitfile), Path(folder))
        return load_overlay(str(named), device=RemoteDevice(ip_addr=host))


def name_by_digest(bitfile: Path, folder: Path) -> Path:
    """Links a bitstream and what lies beside it into ``folder``, under a name with its digest.

    PYNQ.remote does not upload a file whose name the board has, whatever is in it.
    """
    digest = hashlib.sha256(bitfile.read_bytes()).hexdigest()[:16]
    for suffix in (bitfile.suffix, ".hwh", ".dtbo"):
        source = bitfile.with_suffix(suffix)
        if source.is_file():
            (folder / f"{bitfile.stem}-{digest}{suffix}").symlink_to(source.resolve())
    return folder / f"{bitfile.stem}-{digest}{bitfile.suffix}"


def _fake(preset: str) -> Tlmm:
    return Tlmm(_fake_port(_geometry(preset)))


def _cosim(argument: str) -> Tlmm:
    preset, _, library = argument.partition(SEPARATOR)
    return Tlmm(_simulator(_geometry(preset), library))


def _pynq_fake(preset: str) -> Tlmm:
    return _through_pynq(_geometry(preset), _fake_port)


def _pynq_cosim(argument: str) -> Tlmm:
    preset, _, library = argument.partition(SEPARATOR)
    return _through_pynq(_geometry(preset), lambda geometry: _simulator(geometry, library))


def _through_pynq(geometry: Geometry, make_port: Callable[[Geometry], DevicePort]) -> Tlmm:
    """A simulation below stock pynq: the path of a board without a board."""
    from edgerun_hw.pynq_device import SimulatedDevice, prepare
    from edgerun_hw.pynq_driver import load_overlay

    with tempfile.TemporaryDirectory(prefix="edgerun-") as folder:
        bitfile = prepare(geometry, Path(folder))
        return load_overlay(str(bitfile), device=SimulatedDevice(make_port))


def _geometry(preset: str) -> Geometry:
    from edgerun_hw.geometry import PRESETS

    if preset not in PRESETS:
        raise WrongOverlayError(f"no geometry is called {preset!r}: there are {', '.join(PRESETS)}")
    return PRESETS[preset]


def _fake_port(geometry: Geometry) -> DevicePort:
    from edgerun_hw.fake import FakeDevice

    return FakeDevice(geometry, memory_bytes=1 << 30)


def _simulator(geometry: Geometry, library: str) -> DevicePort:
    from edgerun_hw.simulate import Simulator

    return Simulator(geometry, memory=None, library=Path(library) if library else None)


DEVICES: Mapping[str, Callable[[str], Tlmm]] = MappingProxyType(
    {
        "pynq": _pynq,
        "remote": _remote,
        "fake": _fake,
        "cosim": _cosim,
        "pynq-fake": _pynq_fake,
        "pynq-cosim": _pynq_cosim,
    }
)
