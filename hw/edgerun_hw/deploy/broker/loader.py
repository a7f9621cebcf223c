"""Loads an application into the logic: through xmutil where the board has it, or by hand."""

from __future__ import annotations

from typing import Protocol

from .errors import FailureError
from .system import System

FIRMWARE = "lib/firmware/xilinx"
XMUTIL = "usr/bin/xmutil"
MANAGER = "sys/class/fpga_manager/fpga0"
OVERLAYS = "sys/kernel/config/device-tree/overlays"
NODE = f"{OVERLAYS}/edgerun"
SEARCH_PATH = "sys/module/firmware_class/parameters/path"
OPERATING = "operating"
MAX_OVERLAY_BYTES = 1 << 20
ATTEMPTS, PAUSE_S = 5, 1.0


class Loader(Protocol):
    """A way to load and unload."""

    name: str

    def running(self) -> str | None:
        """The application that is loaded, as far as this loader knows."""
        ...

    def load(self, application: str) -> None:
        """Loads an application from ``FIRMWARE``.

        Raises:
            FailureError: it is not loaded.
        """
        ...

    def unload(self) -> None:
        """Takes the loaded application's device tree overlay away; the logic may keep running."""
        ...


def loader_of(system: System) -> Loader:
    """What this board loads with."""
    return Xmutil(system) if system.exists(XMUTIL) else Sysfs(system)


def state(system: System) -> str:
    """State of the FPGA manager; empty if there is none."""
    return system.read_text(f"{MANAGER}/state")


def check_state(system: System) -> None:
    """Raises FailureError unless the logic is configured and runs."""
    found = state(system)
    if found != OPERATING:
        raise FailureError(f"the FPGA manager's state is {found!r} and not {OPERATING!r}")


class Xmutil:
    """Kria's tool, which asks the daemon dfx-mgr."""

    name = "xmutil"

    def __init__(self, system: System) -> None:
        self._system = system

    def running(self) -> str | None:
        """The row of ``xmutil listapps`` whose active slot is not -1.

        Columns differ between releases: 2021 to 2024 begin with the name and end with the slot,
        such as "0," or "-1"; later ones have the slot last but one and the name last.
        """
        for line in self._system.run("/" + XMUTIL, "listapps").splitlines():
            cells = line.split()
            if len(cells) < 4 or cells[0] in ("Accelerator", "ID", "--"):
                continue
            newer = cells[0].isdecimal()
            name, slot = (cells[-1], cells[-2]) if newer else (cells[0], cells[-1])
            if slot.strip(",").isdecimal():
                return name
        return None

    def load(self, application: str) -> None:
        """Loads; the daemon needs a moment to notice a folder that has just appeared."""
        text = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._system.sleep(PAUSE_S)
            text = self._system.run("/" + XMUTIL, "loadapp", application)
            if self.running() == application:
                check_state(self._system)
                return
        raise FailureError(
            f"xmutil has not loaded {application}: {text[-200:] or 'it says nothing'}"
        )

    def unload(self) -> None:
        """Unloads what is loaded."""
        if self.running() is not None:
            self._system.run("/" + XMUTIL, "unloadapp")


class Sysfs:
    """The kernel's FPGA manager and configfs, as on PYNQ and plain Linux images."""

    name = "fpga_manager"

    def __init__(self, system: System) -> None:
        self._system = system

    def running(self) -> str | None:
        """Unknown: the kernel does not tell what it has loaded."""
        return None

    def load(self, application: str) -> None:
        """Bitstream first, then the overlay, which may name the bitstream again.

        The kernel looks both names up in the folder that ``SEARCH_PATH`` names first.
        """
        folder = f"{FIRMWARE}/{application}"
        overlay = self._system.read(f"{folder}/{application}.dtbo", MAX_OVERLAY_BYTES)
        before = self._system.read_text(SEARCH_PATH)
        if before.startswith(f"/{FIRMWARE}/"):  # left by a helper that was killed
            before = ""
        self._system.write_attribute(SEARCH_PATH, f"/{folder}".encode())
        try:
            self._system.write_attribute(f"{MANAGER}/flags", b"0")
            self._system.write_attribute(f"{MANAGER}/firmware", f"{application}.bit.bin".encode())
            check_state(self._system)
            self._apply(overlay)
            check_state(self._system)
        except OSError as error:
            found = state(self._system)
            raise FailureError(
                f"the kernel does not load {application}: {error.strerror} (state {found!r})"
            ) from None
        finally:
            # An empty path cannot be written; a newline counts as one.
            self._system.write_attribute(SEARCH_PATH, before.encode() or b"\n")

    def _apply(self, overlay: bytes) -> None:
        self._system.make_node(NODE)
        self._system.write_attribute(f"{NODE}/dtbo", overlay)
        found = self._system.read_text(f"{NODE}/status")
        if found != "applied":
            raise FailureError(f"the device tree overlay is {found or 'not'!r} and not 'applied'")

    def unload(self) -> None:
        """Removes the overlay; the kernel's drivers let go of the logic."""
        if self._system.is_folder(NODE):
            self._system.remove_node(NODE)
