"""The driver's port on stock pynq: an IP driver that pynq binds to the overlay by its VLNV.

Importing this file is enough: pynq keeps a table of drivers, and an overlay loaded afterwards has
one of these for every instance of the IP::

    overlay = pynq.Overlay("edgerun-tlmm.bit")
    tlmm = Tlmm(overlay.tlmm)

Needs pynq, so it is imported only where a board is driven.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pynq
from numpy.typing import NDArray

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import WrongOverlayError

# Below this a sleep takes longer than what it should wait for; the next look comes at once.
SHORTEST_SLEEP_S = 50e-6
DEFAULT_CLOCK_HZ = 100e6


class PynqMemory:
    """Memory of the device; ``port.Buffer`` over a ``PynqBuffer``."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self._address = int(buffer.device_address)
        self._array: NDArray[np.uint8] | None = np.asarray(buffer)

    @property
    def array(self) -> NDArray[np.uint8]:
        if self._array is None:
            raise ValueError("this buffer was freed")
        return self._array

    @property
    def address(self) -> int:
        return self._address

    def flush(self) -> None:
        self._buffer.flush()

    def hand_over(self) -> None:
        self.flush()

    def invalidate(self) -> None:
        self._buffer.invalidate()

    def free(self) -> None:
        # pynq, from 3.0 on, unmaps the memory at once: whoever still reads an array would crash.
        if self._array is not None:
            self._array = None
            self._buffer.freebuffer()


class TlmmIP(pynq.DefaultIP):  # type: ignore[misc]  # pynq has no types
    """Registers and memory of the overlay; satisfies ``port.DevicePort``.

    Attributes:
        clock_hz: clock of the logic, by which waiting times are reckoned.
        on_close: called when the driver is closed.
    """

    bindto = [regs.VLNV]

    def __init__(self, description: dict[str, Any]) -> None:
        super().__init__(description)
        self.clock_hz = DEFAULT_CLOCK_HZ
        self.on_close: Callable[[], None] = lambda: None

    def read(self, offset: int = 0) -> int:
        """Reads a register."""
        return int(self.mmio.read(offset))

    def write(self, offset: int, value: int) -> None:
        """Writes a register."""
        self.mmio.write(offset, int(value))

    def allocate(self, nbytes: int) -> PynqMemory:
        """Allocates memory in one piece, as pynq finds it.

        Raises:
            MemoryError: there is not that much.
        """
        try:
            # Without `cacheable` a board maps it uncached, and reading results is slow.
            buffer = pynq.allocate((nbytes,), np.uint8, target=self.device, cacheable=1)
            buffer[:] = 0
            buffer.flush()
            return PynqMemory(buffer)
        except RuntimeError as error:
            raise MemoryError(f"the board has no {nbytes} bytes in one piece: {error}") from error

    def wait(self, cycles: int) -> None:
        """Sleeps for about so long; a simulated device is run instead."""
        run = getattr(self.device, "run", None)
        if run is not None:
            run(cycles)
        elif cycles / self.clock_hz >= SHORTEST_SLEEP_S:
            time.sleep(cycles / self.clock_hz)

    def close(self) -> None:
        """Calls ``on_close``; the logic stays loaded, and pynq frees buffers with their arrays."""
        self.on_close()


def find_overlay_ip(overlay: Any) -> TlmmIP:
    """Returns the first instance of the IP in a ``pynq.Overlay``.

    Raises:
        WrongOverlayError: there is none.
    """
    for name, details in overlay.ip_dict.items():
        if details["type"] == regs.VLNV:
            ip = overlay
            for part in name.split("/"):
                ip = getattr(ip, part)
            assert isinstance(ip, TlmmIP)
            ip.clock_hz = _clock_hz()
            return ip
    raise WrongOverlayError(
        f"{overlay.bitfile_name} has no IP of type {regs.VLNV}: "
        "build the bitstream with `edgerun fpga build`"
    )


def _clock_hz() -> float:
    """The clock of the logic as the processing system's registers say."""
    try:
        return float(pynq.Clocks.fclk0_mhz) * 1e6
    except (RuntimeError, ValueError, ZeroDivisionError):
        return DEFAULT_CLOCK_HZ


def load_overlay(
    bitfile: str,
    *,
    device: Any = None,
    download: bool = True,
    on_close: Callable[[], None] | None = None,
) -> Tlmm:
    """Loads a bitstream through pynq and returns its driver.

    Args:
        bitfile: a ``.bit`` or ``.xsa`` with its ``.hwh`` beside it.
        device: a ``pynq.Device``, or None for pynq's choice.
        download: False when the bitstream is loaded already.
        on_close: called when the driver is closed.

    Raises:
        OverlayError: it is not an overlay that this driver can drive, or it is wedged.
        OSError: the file is missing.
    """
    overlay = pynq.Overlay(bitfile, download=download, device=device)
    ip = find_overlay_ip(overlay)
    if on_close is not None:
        ip.on_close = on_close
    return Tlmm(ip)
