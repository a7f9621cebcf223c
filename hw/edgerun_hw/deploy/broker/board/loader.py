"""Loads an application into the logic: through xmutil where the board has it, or by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from ..errors import FailureError, RefusalError
from ..formats import fdt
from ..formats.listing import Listing, parse_listing
from .system import System

FIRMWARE = "lib/firmware/xilinx"
XMUTIL, CLIENT = "usr/bin/xmutil", "usr/bin/dfx-mgr-client"
MANAGER = "sys/class/fpga_manager/fpga0"
OVERLAYS = "sys/kernel/config/device-tree/overlays"
NODE = f"{OVERLAYS}/edgerun"
SEARCH_PATH = "sys/module/firmware_class/parameters/path"
OPERATING = "operating"
ATTEMPTS, PAUSE_S = 5, 1.0
# "Accelerator loaded to slot 0", "NAME: loaded to slot 0", "NAME: Loaded with slot_handle 0"; the
# oldest prints a failure as slot -1.
LOADED = re.compile(r"\bloaded (to slot|with slot_handle) \d", re.IGNORECASE)
FORGOTTEN = re.compile(r".+_image_\d+")  # what libdfx calls the overlays that it applies


# Snaps that bring a dfx-mgr of their own: xlnx-config 1.x on Ubuntu 20.04, and what followed.
SNAPS = ("snap/dfx-mgr", "snap/fpgad", "snap/xlnx-config")
# What Kria-PYNQ keeps applied (dts/insert_dtbo.py): zocl and a window for interrupts, no region.
HARMLESS = ("pynq",)


def foreign_overlays(system: System) -> list[str]:
    """Overlays in configfs that are neither ours nor dfx-mgr's nor known to be harmless."""
    return [
        name
        for name in system.names(OVERLAYS)
        if f"{OVERLAYS}/{name}" != NODE and not FORGOTTEN.fullmatch(name) and name not in HARMLESS
    ]


def _hint(system: System) -> str:
    """Names what may hold the region, for messages; ``fpgautil`` calls its own "full"."""
    others = foreign_overlays(system)
    if not others:
        return ""
    return (
        f"; overlays of somebody else are applied ({', '.join(others)}), and the logic takes one "
        "at a time: take them away with `fpgautil -R`, or "
        f"`rmdir /{OVERLAYS}/{others[0]}`"
    )


class Loader(Protocol):
    """A way to load and unload."""

    name: str

    def check(self) -> None:
        """Looks at the board before anything is changed.

        Raises:
            RefusalError: something else loads the logic here, or what is loaded could not be
                loaded again.
        """
        ...

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
        """Takes the loaded application's device tree overlay away.

        The logic stays, without a clock: an access to its registers may never be answered.
        """
        ...


def loader_of(system: System) -> Loader:
    """What this board loads with."""
    return Xmutil(system) if system.exists(XMUTIL) else Sysfs(system)


def is_applied(system: System) -> bool:
    """Whether the overlay of this helper is applied, where it does so itself (``Sysfs``)."""
    return system.read_text(f"{NODE}/status") == "applied"


def state(system: System) -> str:
    """State of the FPGA manager; empty if there is none."""
    return system.read_text(f"{MANAGER}/state")


def check_state(system: System) -> None:
    """Raises FailureError unless the logic is configured and runs."""
    actual = state(system)
    if actual != OPERATING:
        raise FailureError(f"the FPGA manager's state is {actual!r} and not {OPERATING!r}")


class Xmutil:
    """Kria's tool, which asks the daemon dfx-mgr.

    The daemon watches ``FIRMWARE``. When the folder of a loaded application is moved or removed it
    forgets the application, whose overlay stays in the kernel; the FPGA region then takes no other
    (linux-xlnx ``of-fpga-region.c``: "Region already has overlay applied"). So everything is
    unloaded before any folder moves, and what somebody else has left like that is taken away.
    """

    name = "xmutil"

    def __init__(self, system: System) -> None:
        self._system = system

    def check(self) -> None:
        """Refuses a board with several loaded slots: all are unloaded, and one would come back."""
        loaded = [row.name for row in self._list().loaded for _ in row.handles]
        if len(loaded) > 1:
            raise RefusalError(
                f"dfx-mgr has loaded {len(loaded)} slots ({', '.join(loaded)}), and going back "
                "could restore one alone: unload the others with `xmutil unloadapp`, then try again"
            )

    def running(self) -> str | None:
        """The application that dfx-mgr lists as loaded."""
        loaded = self._list().loaded
        return loaded[0].name if loaded else None

    def load(self, application: str) -> None:
        """Loads, once: what is loaded is not loaded again, whatever the list says of it."""
        listing = self._wait(lambda listing: application in [row.name for row in listing.rows])
        if listing is None:
            raise FailureError(
                f"dfx-mgr does not list {application}: does /etc/dfx-mgrd/daemon.conf name "
                f"/{FIRMWARE}?"
            )
        client = [CLIENT, "-loadByName"] if listing.form.by_name else [XMUTIL, "loadapp"]
        try:
            text = self._system.run("/" + client[0], *client[1:], application)
        except FailureError as error:
            raise FailureError(f"{error}{_hint(self._system)}") from None
        if not LOADED.search(text):
            last = text.strip().splitlines()[-1:] or ["it says nothing"]
            raise FailureError(
                f"xmutil has not loaded {application}: {last[0].strip()[-200:]}"
                f"{_hint(self._system)}"
            )
        if self._wait(lambda listing: application in [row.name for row in listing.loaded]) is None:
            raise FailureError(f"xmutil says that {application} is loaded, and does not list it so")
        check_state(self._system)

    def unload(self) -> None:
        """Unloads all that is loaded to the logic, overlays that dfx-mgr has forgotten included.

        Raises:
            FailureError: something stays; the message says what, and what to do.
        """
        listing = self._list()
        for row in listing.loaded:
            client = [CLIENT, "-unloadByName"] if listing.form.by_name else [XMUTIL, "unloadapp"]
            for handle in row.handles:
                self._system.run("/" + client[0], *client[1:], handle)
        loaded = self._list().loaded
        if loaded:
            raise FailureError(
                f"xmutil has not unloaded {loaded[0].name}: start the board again, then run "
                "`edgerun fpga rollback`"
            )
        for name in self._system.names(OVERLAYS):
            if FORGOTTEN.fullmatch(name) or f"{OVERLAYS}/{name}" == NODE:
                self._system.remove_node(f"{OVERLAYS}/{name}")

    def _list(self) -> Listing:
        """What the daemon has; when the board starts it may not answer at once."""
        for attempt in range(ATTEMPTS):
            try:
                return parse_listing(self._system.run("/" + XMUTIL, "listapps"))
            except FailureError:
                if attempt == ATTEMPTS - 1:
                    raise
            self._system.sleep(PAUSE_S)
        raise AssertionError("the last attempt returns or raises")

    def _wait(self, is_enough: Callable[[Listing], bool]) -> Listing | None:
        """The list once it is as it should be; the daemon needs a moment to notice a folder."""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._system.sleep(PAUSE_S)
            listing = self._list()
            if is_enough(listing):
                return listing
        return None


class Sysfs:
    """The kernel's FPGA manager and configfs, as on PYNQ and plain Linux images."""

    name = "fpga_manager"

    def __init__(self, system: System) -> None:
        self._system = system

    def check(self) -> None:
        """Refuses a board with two loaders, which would take the logic from each other."""
        snaps = [path.removeprefix("snap/") for path in SNAPS if self._system.exists(path)]
        if snaps:
            raise RefusalError(
                f"this board has the snap {snaps[0]}, whose dfx-mgr loads the logic as well and "
                "cannot be asked from here: remove it, or install dfx-mgr and xmutil as packages "
                "of the system (Ubuntu 22.04 has them)"
            )

    def running(self) -> str | None:
        """Unknown: the kernel does not tell what it has loaded."""
        return None

    def load(self, application: str) -> None:
        """Bitstream first, then the overlay, which may name the bitstream again.

        The kernel looks both names up in the folder that ``SEARCH_PATH`` names first.
        """
        folder = f"{FIRMWARE}/{application}"
        overlay = self._system.read(f"{folder}/{application}.dtbo", fdt.MAX_BYTES)
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
            actual = state(self._system)
            raise FailureError(
                f"the kernel does not load {application}: {error.strerror} (state {actual!r})"
                f"{_hint(self._system)}"
            ) from None
        finally:
            # An empty path cannot be written; a newline counts as one.
            self._system.write_attribute(SEARCH_PATH, before.encode() or b"\n")

    def _apply(self, overlay: bytes) -> None:
        self._system.make_node(NODE)
        self._system.write_attribute(f"{NODE}/dtbo", overlay)
        if not is_applied(self._system):
            status = self._system.read_text(f"{NODE}/status")
            raise FailureError(f"the device tree overlay is {status or 'not'!r} and not 'applied'")

    def unload(self) -> None:
        """Removes the overlay; the kernel's drivers let go of the logic.

        Raises:
            FailureError: they do not.
        """
        if not self._system.is_folder(NODE):
            return
        try:
            self._system.remove_node(NODE)
        except OSError as error:
            raise FailureError(
                f"the kernel does not take the overlay away: {error.strerror}; end what uses the "
                "logic, or start the board again, then run `edgerun fpga rollback`"
            ) from None
