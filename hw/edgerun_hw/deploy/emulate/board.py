"""A board in a folder: what the helper sees of a machine, without the machine.

``edgerun fpga deploy --sysroot DIR`` runs the helper's own code on it. Files are real files below
``DIR``; the FPGA manager, configfs, xmutil (``dfx_mgr.py``), clocks and the overlay's registers
react as the kernel and the hardware are documented to: all of it is simulated. What a power
failure erases lies in ``DIR/.emulator``::

    python -m edgerun_hw.deploy.emulate.board make DIR --board kv260
    python -m edgerun_hw.deploy.emulate.board power-cycle DIR

Faults are asked for in ``DIR/.emulator/faults.json`` (``Faults``): a signal, a full disk or an I/O
error at the n-th action of the helper, logic that does not start, or that is not what it should be.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgerun.files.private import write_atomically
from edgerun_hw.deploy import bitstream
from edgerun_hw.deploy.broker.board import settings
from edgerun_hw.deploy.broker.board.boards import BOARDS, Board, identify
from edgerun_hw.deploy.broker.board.identity import DEVICE_TREE, compatible
from edgerun_hw.deploy.broker.board.loader import (
    FIRMWARE,
    MANAGER,
    NODE,
    OVERLAYS,
    SEARCH_PATH,
    XMUTIL,
)
from edgerun_hw.deploy.broker.board.policy import SETTINGS, read_policy
from edgerun_hw.deploy.broker.board.system import System
from edgerun_hw.deploy.broker.errors import BrokerError
from edgerun_hw.deploy.broker.formats import configuration
from edgerun_hw.deploy.broker.protocol import MAX_FILE_BYTES, Channel
from edgerun_hw.deploy.broker.session import Session, boot
from edgerun_hw.deploy.broker.transaction import BOOT_ID
from edgerun_hw.deploy.emulate import bus
from edgerun_hw.deploy.emulate.dfx_mgr import DEFAULT_RELEASE, RELEASES, DfxMgr
from edgerun_hw.deploy.emulate.example_bit import registers_of
from edgerun_hw.deploy.emulate.kernel import (
    START_HZ,
    assigned_rates,
    divided_rate,
    firmware_name,
)

VOLATILE = ".emulator"
LOGIC, FAULTS = f"{VOLATILE}/logic.json", f"{VOLATILE}/faults.json"
ERRORS = {"full": errno.ENOSPC, "io": errno.EIO}
SIGNALS = {
    name: signal.Signals[f"SIG{name.upper()}"] for name in ("kill", "term", "quit", "alrm", "tstp")
}


@dataclass
class Faults:
    """What goes wrong.

    Attributes:
        at: number of the action that goes wrong, from 1; 0 for none.
        kind: "full", "io", or the signal that comes, of ``SIGNALS``.
        then_at: number of a second action that goes wrong.
        then_kind: how that one does.
        logic: "" or what new logic does: "error" (does not configure), "dead" (registers read
            all ones), "stuck" (clock registers ignore writes), "refused" (overlay not applied),
            "held" (no overlay can be taken away), "slow" (the clock stays at 100 MHz,
            whatever is asked for), "endless" (transfers of logic that is busy never end).
        only: bitstream file that ``logic`` is about; empty for all.
    """

    at: int = 0
    kind: str = "kill"
    then_at: int = 0
    then_kind: str = "kill"
    logic: str = ""
    only: str = ""


class EmulatedSystem(System):
    """A machine in a folder.

    Args:
        root: the folder, made by ``make_root``.
        log: filled with the actions, in order.
    """

    def __init__(self, root: Path, log: list[str] | None = None) -> None:
        super().__init__(root)
        self._log = log
        self._count = 0
        self._faults = Faults(**_load(root / FAULTS))

    # Faults

    def about_to(self, action: str, path: str) -> None:
        """Counts, and goes wrong when asked to."""
        self._count += 1
        if self._log is not None:
            self._log.append(f"{action} {path}")
        faults = self._faults
        for at, kind in ((faults.at, faults.kind), (faults.then_at, faults.then_kind)):
            if self._count == at and kind in SIGNALS:
                os.kill(os.getpid(), SIGNALS[kind])
            elif self._count == at:
                raise OSError(ERRORS[kind], os.strerror(ERRORS[kind]), path)

    def sleep(self, seconds: float) -> None:
        """Time is not what is tested."""

    # Kernel

    def write_attribute(self, path: str, data: bytes) -> None:
        """Writes, and does what the kernel would do."""
        super().write_attribute(path, data)
        if path == f"{MANAGER}/firmware":
            self._program(self._find(data.decode(), [self.read_text(SEARCH_PATH)]))
        elif path == f"{NODE}/dtbo":
            self.apply(NODE, data, [self.read_text(SEARCH_PATH)])
        elif path == SEARCH_PATH:
            self.path(path).write_bytes(data if data.endswith(b"\n") else data + b"\n")

    def make_node(self, path: str) -> None:
        """Makes the folder with the kernel's files in it."""
        self.about_to("configfs", path)
        self._make_node(path)

    def _make_node(self, path: str) -> None:
        self.path(path).mkdir()
        for name in ("dtbo", "path", "status"):
            self.path(f"{path}/{name}").touch()

    def remove_node(self, path: str) -> None:
        """Removes the folder with the kernel's files in it."""
        self.about_to("configfs", path)
        self.withdraw(path)

    def apply(self, node: str, overlay: bytes, folders: list[str]) -> None:
        """Applies an overlay as of-fpga-region would: one at a time for a region.

        Raises:
            OSError: "Region already has overlay applied", or the bitstream is not loaded; the node
                of dfx-mgr is gone then.
        """
        if not self.exists(node):
            self._make_node(node)
        others = [f"{OVERLAYS}/{name}" for name in self.names(OVERLAYS)]
        held = [o for o in others if o != node and self.read_text(f"{o}/status") == "applied"]
        try:
            firmware = firmware_name(overlay)
            if any(firmware_name(self.path(f"{other}/dtbo").read_bytes()) for other in held):
                raise OSError(errno.EINVAL, "Region already has overlay applied")
            if self._misbehaves("refused", firmware):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            self._program(self._find(firmware, folders))
        except OSError:
            self.path(f"{node}/status").write_text("unapplied\n")
            if node != NODE:
                shutil.rmtree(self.path(node))
            raise
        self.path(f"{node}/dtbo").write_bytes(overlay)
        self.path(f"{node}/status").write_text("applied\n")
        self.keep({**self.logic(), "gated": False})
        for name, hertz in assigned_rates(overlay, _board(self).family).items():
            self._set_rate(name, hertz)

    def withdraw(self, node: str) -> None:
        """Takes an overlay away; the logic stays, and the kernel switches off its clocks.

        Raises:
            OSError: a driver does not let go of it.
        """
        if self._faults.logic == "held":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), node)
        shutil.rmtree(self.path(node))
        self.keep({**self.logic(), "gated": True})

    def rename(self, old: str, new: str) -> None:
        """Renames; dfx-mgr sees it."""
        super().rename(old, new)
        self._noticed(old)

    def remove(self, path: str) -> None:
        """Removes; dfx-mgr sees it."""
        super().remove(path)
        self._noticed(path)

    def _noticed(self, path: str) -> None:
        if self.exists(XMUTIL):
            self._daemon().moved(path)

    def _daemon(self) -> DfxMgr:
        return DfxMgr(self, self.read_text(XMUTIL).rpartition(" ")[2])

    def _find(self, name: str, folders: list[str]) -> str:
        for folder in (*folders, "/lib/firmware"):
            if folder and self.exists(f"{folder[1:]}/{name}"):
                return f"{folder[1:]}/{name}"
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def _program(self, file: str) -> None:
        """What the FPGA manager and the configuration logic do with a bitstream."""
        name, logic = os.path.basename(file), self.logic()
        if logic.get("busy"):
            raise AssertionError("the board hangs: logic was replaced in the middle of a burst")
        if logic.get("locked"):
            raise AssertionError("the FPGA manager's writes are lost: the slcr is locked")
        logic["loaded"] = None
        self.keep(logic)
        data = configuration.swap_words(self.read(file, MAX_FILE_BYTES))
        try:
            stream = bitstream.check(data)
        except Exception:  # whatever is wrong with it, hardware only says so
            stream = None
        good = stream is not None and _board(self).accepts_idcode(stream.idcode)
        if not good or self._misbehaves("error", name):
            self.path(f"{MANAGER}/state").write_text("write complete error\n")
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        logic["loaded"] = name
        logic["registers"] = registers_of(data)
        logic["dead"] = self._misbehaves("dead", name)
        self.keep(logic)
        self.path(f"{MANAGER}/state").write_text("operating\n")

    def _misbehaves(self, how: str, name: str) -> bool:
        only = self._faults.only
        return self._faults.logic == how and (not only or not name or only == self._digest(name))

    def _digest(self, name: str) -> str:
        """First characters of the digest of the application that holds bitstream ``name``."""
        import hashlib

        folder = f"{FIRMWARE}/{name.removesuffix('.bit.bin')}"
        manifest = self.path(f"{folder}/manifest.json")
        return hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.exists() else ""

    # Bus

    def read_word(self, address: int) -> int:
        """Reads a register of the logic or of the processors."""
        return bus.read_word(_board(self), self.logic(), address)

    def write_word(self, address: int, value: int) -> None:
        """Keeps what is written, unless it is stuck or locked."""
        self.about_to("word", f"{address:#x}")
        board, logic = _board(self), self.logic()
        self.keep(bus.write_word(board, logic, address, value, self._faults.logic))
        rate = divided_rate(board.family, address, value)
        if rate is not None and not bus.is_locked(board, logic, address):
            self._set_rate(*rate)

    def _set_rate(self, name: str, hertz: int) -> None:
        """What the kernel says of a clock of the logic from now on."""
        file = self.path(settings.rate_file(_board(self).family, name))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{START_HZ if self._faults.logic == 'slow' else hertz}\n")

    # xmutil

    def run(self, *command: str) -> str:
        """Does what xmutil or dfx-mgr's client would do."""
        if command[1] != "listapps":
            self.about_to("run", " ".join(command))
        return self._daemon().run(command[0][1:], *command[1:])

    def logic(self) -> dict[str, Any]:
        """What is forgotten without power: the logic, registers, what dfx-mgr remembers."""
        return {"loaded": None, "registers": [], "words": {}} | _load(self.path(LOGIC))

    def keep(self, logic: dict[str, Any]) -> None:
        """Replaces that."""
        write_atomically(self.path(LOGIC), json.dumps(logic).encode())


def make_root(
    root: Path, board: str = "kv260", xmutil: bool = True, release: str = DEFAULT_RELEASE
) -> None:
    """Makes the folder of a board that has just been started and has nothing loaded.

    It takes applications without a signature: its ``etc/edgerun/fpga.json`` says so.

    Args:
        root: the folder.
        board: name of the board.
        xmutil: whether it has xmutil and dfx-mgr.
        release: of these, a key of ``dfx_mgr.RELEASES``.
    """
    name = BOARDS[board].compatible[0]
    for folder in (DEVICE_TREE, MANAGER, OVERLAYS, "run", FIRMWARE, "etc/edgerun", "usr/bin"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for file in (SEARCH_PATH, BOOT_ID):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / DEVICE_TREE / "model").write_bytes(f"emulated {BOARDS[board].title}\0".encode())
    names = (f"{name}-rev1", name, f"xlnx,{BOARDS[board].family}")
    (root / DEVICE_TREE / "compatible").write_bytes("\0".join(names).encode() + b"\0")
    if xmutil:
        (root / XMUTIL).write_text(f"simulated, dfx-mgr {release}\n")
    (root / SETTINGS).write_text('{"allow_unsigned": true}\n')
    power_cycle(root)


def power_cycle(root: Path) -> None:
    """Erases what a board forgets without power."""
    shutil.rmtree(root / VOLATILE, ignore_errors=True)
    for node in (root / OVERLAYS).iterdir():
        shutil.rmtree(node)
    (root / VOLATILE).mkdir()
    for name, text in (("state", "unknown"), ("flags", "0"), ("firmware", "")):
        (root / MANAGER / name).write_text(text + "\n")
    (root / SEARCH_PATH).write_text("\n")
    (root / BOOT_ID).write_text(f"{uuid.uuid4()}\n")
    for file in (root / settings.RATES).rglob("clk_rate"):
        file.write_text(f"{START_HZ}\n")


def set_faults(root: Path, faults: Faults) -> None:
    """Asks for faults in every helper that starts from now on."""
    (root / FAULTS).write_text(json.dumps(asdict(faults)))


def _board(system: System) -> Board:
    return identify(compatible(system), read_policy(system).board) or BOARDS["kv260"]


def _load(file: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return value


def main(arguments: Sequence[str]) -> int:
    """Makes a board, or is its helper."""
    parser = argparse.ArgumentParser(prog="python -m edgerun_hw.deploy.emulate.board")
    parser.add_argument("command", choices=("make", "serve", "boot", "power-cycle"))
    parser.add_argument("root", type=Path)
    parser.add_argument("--board", choices=tuple(BOARDS), default="kv260")
    parser.add_argument("--no-xmutil", action="store_true")
    parser.add_argument("--release", choices=tuple(RELEASES), default=DEFAULT_RELEASE)
    parser.add_argument("--patience", type=float, default=60.0)
    options = parser.parse_args(arguments)
    if options.command == "make":
        make_root(options.root, options.board, not options.no_xmutil, options.release)
    elif options.command == "power-cycle":
        power_cycle(options.root)
    elif not (options.root / DEVICE_TREE).is_dir():
        sys.stderr.write(f"{options.root} is no emulated board\n")
        return 2
    elif options.command == "serve":
        Session(EmulatedSystem(options.root), Channel(0, 1, options.patience)).serve()
    else:
        try:
            sys.stdout.write(boot(EmulatedSystem(options.root)) + "\n")
        except (BrokerError, OSError) as error:
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
