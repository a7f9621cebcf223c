"""The devices that ``--device`` can name: what each needs, and how it is opened.

A name may be followed by a colon and an argument, as in ``cosim:decode-75``. A new device is a row
of ``DEVICES``; everything above sees a ``port.Overlay``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

from edgerun.errors import InputError
from edgerun_hw.devices import pynq, simulated
from edgerun_hw.overlay.port import Overlay


@dataclass(frozen=True)
class DeviceKind:
    """A way to reach an overlay.

    Attributes:
        summary: what it is, for messages and reports.
        argument: what may follow the colon, for messages; "" if nothing may.
        counted: what its cycle counts are: ``"simulated"``, ``"measured"`` or ``"made up"``.
        obstacle: why it cannot be used here with the argument, or "".
        prepare: does from the argument what takes long and needs no device, such as compiling a
            simulator; raises ``InputError`` for an argument it does not know, and ``BackendError``.
        open: makes the overlay from the argument; raises ``OverlayError`` if the device fails.
    """

    summary: str
    argument: str
    counted: str
    obstacle: Callable[[str], str]
    prepare: Callable[[str], object]
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

    def obstacle(self) -> str:
        """Why it cannot be used here, or "".

        Raises:
            InputError: its argument cannot be read.
        """
        return self.kind.obstacle(self.argument)

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


def _lazily(name: str, module: str = "deployed") -> Callable[[str], Any]:
    """A function of a module beside this one, which is imported when it is called."""

    def call(argument: str) -> Any:
        module_of_device = import_module(f"edgerun_hw.devices.{module}")
        return getattr(module_of_device, name)(argument)

    return call


DEVICES: Mapping[str, DeviceKind] = MappingProxyType(
    {
        "cosim": DeviceKind(
            "the overlay's RTL, simulated by Verilator",
            "[PRESET][,ddr]",
            "simulated",
            simulated.no_verilator,
            simulated.prepare_cosim,
            simulated.open_cosim,
        ),
        "fake": DeviceKind(
            "the overlay's definition in NumPy, for tests",
            "[PRESET]",
            "made up",
            simulated.no_obstacle,
            simulated.prepare_fake,
            simulated.open_fake,
        ),
        "board": DeviceKind(
            "what is deployed on this board, through pynq or by the native host",
            "[NAME][,host=pynq|native][,memory=UDMABUF]",
            "measured",
            _lazily("obstacle"),
            _lazily("prepare_deployed"),
            _lazily("open_deployed"),
        ),
        "pynq": DeviceKind(
            "a bitstream for this board, through pynq",
            "BITSTREAM[,force]",
            "measured",
            pynq.obstacle,
            _lazily("check_bitstream"),
            _lazily("open_bitstream"),
        ),
        "pynq-remote": DeviceKind(
            "a board at another host, through PYNQ.remote",
            "HOST,BITSTREAM",
            "measured",
            pynq.obstacle,
            pynq.split_remote,
            pynq.open_remote,
        ),
        "native-cosim": DeviceKind(
            "the overlay's RTL in a board's place below the native host",
            "[PRESET]",
            "simulated",
            simulated.no_verilator,
            simulated.prepare_cosim,
            _lazily("open_emulated", "native.emulated"),
        ),
        "pynq-cosim": DeviceKind(
            "the overlay's RTL in a board's place below pynq",
            "[PRESET]",
            "simulated",
            pynq.simulation_obstacle,
            simulated.prepare_cosim,
            pynq.open_simulation,
        ),
    }
)
