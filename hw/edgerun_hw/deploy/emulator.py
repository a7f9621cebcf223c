"""A board in a folder: what the helper sees of a machine, without the machine.

``edgerun fpga deploy --sysroot DIR`` runs the helper's own code on it. Files are real files below
``DIR``; the FPGA manager, configfs, xmutil, clocks and the overlay's registers react as the kernel
and the hardware would. What a power failure erases lies in ``DIR/.emulator``::

    python -m edgerun_hw.deploy.emulator make DIR --board kv260
    python -m edgerun_hw.deploy.emulator power-cycle DIR

Faults are asked for in ``DIR/.emulator/faults.json`` (``Faults``): a kill, a full disk or an I/O
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

from edgerun_hw.deploy import bitstream
from edgerun_hw.deploy.broker import configuration
from edgerun_hw.deploy.broker.boards import BOARDS, BY_NAME, Board, identify
from edgerun_hw.deploy.broker.errors import BrokerError, FailureError
from edgerun_hw.deploy.broker.intake import DEVICE_TREE, compatible
from edgerun_hw.deploy.broker.loader import FIRMWARE, MANAGER, NODE, OVERLAYS, SEARCH_PATH, XMUTIL
from edgerun_hw.deploy.broker.protocol import MAX_FILE_BYTES, Channel
from edgerun_hw.deploy.broker.session import Session, boot
from edgerun_hw.deploy.broker.system import System
from edgerun_hw.deploy.broker.transaction import BOOT_ID
from edgerun_hw.register_map import ID_VALUE, VERSION_VALUE

VOLATILE = ".emulator"
LOGIC, FAULTS = f"{VOLATILE}/logic.json", f"{VOLATILE}/faults.json"
FDT_MAGIC = bytes.fromhex("d00dfeed")
# The frames of a test bitstream begin with this and two words: what ID and VERSION will read.
MARK = 0x5445_5354
ERRORS = {"full": errno.ENOSPC, "io": errno.EIO}


@dataclass
class Faults:
    """What goes wrong.

    Attributes:
        at: number of the action that goes wrong, from 1; 0 for none.
        kind: "kill", "full" or "io".
        then_at: number of a second action that goes wrong.
        then_kind: how that one does.
        logic: "" or what new logic does: "error" (does not configure), "dead" (registers read
            all ones), "stuck" (clock registers ignore writes), "refused" (overlay not applied).
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
            if self._count == at and kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self._count == at:
                raise OSError(ERRORS[kind], os.strerror(ERRORS[kind]), path)

    def sleep(self, seconds: float) -> None:
        """Time is not what is tested."""

    # Kernel

    def write_attribute(self, path: str, data: bytes) -> None:
        """Writes, and does what the kernel would do."""
        super().write_attribute(path, data)
        if path == f"{MANAGER}/firmware":
            self._program(self._find(data.decode()))
        elif path == f"{NODE}/dtbo":
            good = data.startswith(FDT_MAGIC) and not self._misbehaves(
                "refused", self._logic()["loaded"] or ""
            )
            self.path(f"{NODE}/status").write_text("applied\n" if good else "unapplied\n")
            if not good:
                raise OSError(errno.EINVAL, "Invalid argument")
        elif path == SEARCH_PATH:
            self.path(path).write_bytes(data if data.endswith(b"\n") else data + b"\n")

    def make_node(self, path: str) -> None:
        """Makes the folder with the kernel's files in it."""
        super().make_node(path)
        for name in ("dtbo", "path", "status"):
            self.path(f"{path}/{name}").touch()

    def remove_node(self, path: str) -> None:
        """Removes the folder with the kernel's files in it."""
        self.about_to("configfs", path)
        shutil.rmtree(self.path(path))

    def _find(self, name: str) -> str:
        for folder in (self.read_text(SEARCH_PATH), "/lib/firmware"):
            if folder and self.exists(f"{folder[1:]}/{name}"):
                return f"{folder[1:]}/{name}"
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def _program(self, file: str) -> None:
        """What the FPGA manager and the configuration logic do with a bitstream."""
        name, logic = os.path.basename(file), self._logic()
        logic["loaded"] = None
        self._keep(logic)
        data = configuration.swap_words(self.read(file, MAX_FILE_BYTES))
        try:
            found = bitstream.check(data)
        except Exception:  # whatever is wrong with it, hardware only says so
            found = None
        good = found is not None and _board(self).accepts_idcode(found.idcode)
        if not good or self._misbehaves("error", name):
            self.path(f"{MANAGER}/state").write_text("write complete error\n")
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        logic["loaded"] = name
        logic["registers"] = _registers(data)
        logic["dead"] = self._misbehaves("dead", name)
        self._keep(logic)
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
        """Registers of the logic at any 4 KiB of its windows, and those of the processors."""
        logic = self._logic()
        board = _board(self)
        if address == board.silicon:
            return board.idcode | 0x1000_0000  # some revision
        if board.has_window(address, 4):
            if logic["loaded"] is None:
                raise OSError(errno.EIO, "the bus does not answer: no logic is loaded")
            if logic.get("dead"):
                return 0xFFFFFFFF
            return int(dict(enumerate(logic["registers"])).get(address % 4096 // 4, 0))
        return int(logic["words"].get(f"{address:#x}", 0))

    def write_word(self, address: int, value: int) -> None:
        """Keeps what is written, unless it is stuck."""
        self.about_to("word", f"{address:#x}")
        logic = self._logic()
        if self._faults.logic != "stuck":
            logic["words"][f"{address:#x}"] = value
        self._keep(logic)

    # xmutil

    def run(self, *command: str) -> str:
        """Does what xmutil would do."""
        if command[1] != "listapps":
            self.about_to("run", " ".join(command))
        if command[1] == "loadapp":
            return self._load(command[2])
        return self._list() if command[1] == "listapps" else self._unload()

    def _list(self) -> str:
        lines = ["Accelerator  Accel_type  Base  Base_type  #slots(PL+AIE)  Active_slot"]
        active = self._logic().get("application")
        for name in self.names(FIRMWARE):
            if self.exists(f"{FIRMWARE}/{name}/shell.json"):
                slot = "0," if name == active else "-1"
                lines.append(f"{name}  XRT_FLAT  {name}  XRT_FLAT  (0+0)  {slot}")
        return "\n".join(lines)

    def _load(self, name: str) -> str:
        if self._logic().get("application"):
            return "remove the loaded application first"  # like xmutil, without an exit code
        files = [f for f in self.names(f"{FIRMWARE}/{name}") if f.endswith(".bit.bin")]
        if len(files) != 1:
            raise FailureError(f"xmutil loadapp {name} failed: no such application")
        try:
            self._program(f"{FIRMWARE}/{name}/{files[0]}")
        except OSError:
            return f"{name}: load failed"
        self._keep({**self._logic(), "application": name})
        return f"{name}: loaded to slot 0"

    def _unload(self) -> str:
        self._keep({**self._logic(), "application": None})
        return "remove from slot 0 returns: 0 (Ok)"

    def _logic(self) -> dict[str, Any]:
        return {"loaded": None, "registers": [], "words": {}} | _load(self.path(LOGIC))

    def _keep(self, logic: dict[str, Any]) -> None:
        temporary = self.path(LOGIC + ".new")
        temporary.write_text(json.dumps(logic))
        temporary.replace(self.path(LOGIC))


def make_root(root: Path, board: str = "kv260", xmutil: bool = True) -> None:
    """Makes the folder of a board that has just been started and has nothing loaded."""
    name = BY_NAME[board].compatible[0]
    for folder in (DEVICE_TREE, MANAGER, OVERLAYS, "run", FIRMWARE, "etc/edgerun", "usr/bin"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for file in (SEARCH_PATH, BOOT_ID):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / DEVICE_TREE / "model").write_bytes(f"emulated {BY_NAME[board].title}\0".encode())
    names = (f"{name}-rev1", name, f"xlnx,{BY_NAME[board].family}")
    (root / DEVICE_TREE / "compatible").write_bytes("\0".join(names).encode() + b"\0")
    if xmutil:
        (root / XMUTIL).write_text("emulated\n")
    power_cycle(root)


def power_cycle(root: Path) -> None:
    """Erases what a board forgets without power."""
    shutil.rmtree(root / VOLATILE, ignore_errors=True)
    shutil.rmtree(root / NODE, ignore_errors=True)
    (root / VOLATILE).mkdir()
    for name, text in (("state", "unknown"), ("flags", "0"), ("firmware", "")):
        (root / MANAGER / name).write_text(text + "\n")
    (root / SEARCH_PATH).write_text("\n")
    (root / BOOT_ID).write_text(f"{uuid.uuid4()}\n")


def set_faults(root: Path, faults: Faults) -> None:
    """Asks for faults in every helper that starts from now on."""
    (root / FAULTS).write_text(json.dumps(asdict(faults)))


def example_bit(
    board: Board, seed: int = 0, words: int = 600, identity: int = ID_VALUE, part: str | None = None
) -> bytes:
    """A small .bit file for tests: right in form and checksum, without a design in it."""
    import numpy as np

    generator = np.random.default_rng(seed)
    frames = generator.integers(0, 1 << 32, words, np.uint32)
    frames[:3] = MARK, identity, VERSION_VALUE
    stream = [0xFFFFFFFF] * 8 + [configuration.BUS_WIDTH, 0x11220044, 0xFFFFFFFF]
    stream += [configuration.SYNC, 0x20000000]
    crc = 0

    def write(register: int, values: Sequence[int]) -> None:
        nonlocal crc
        stream.append(0x30000000 | register << 13 | (len(values) if len(values) < 2048 else 0))
        if len(values) >= 2048:
            stream.append(0x50000000 | len(values))
        stream.extend(values)
        crc = bitstream.update_crc(crc, register, np.array(values, np.uint32))

    write(configuration.REGISTER_CMD, [configuration.COMMAND_RCRC])
    crc = 0
    write(configuration.REGISTER_IDCODE, [board.idcode])
    write(configuration.REGISTER_FDRI, frames.tolist())
    write(configuration.REGISTER_CRC, [crc])
    write(configuration.REGISTER_CMD, [configuration.COMMAND_DESYNC])
    stream += [0x20000000] * 4
    data = np.array(stream, ">u4").tobytes()
    fields = ("tlmm;UserID=0XFFFFFFFF;Version=test", part or board.part, "2026/01/02", "03:04:05")
    header = bitstream.HEADER
    for letter, text in zip("abcd", fields, strict=True):
        header += letter.encode() + (len(text) + 1).to_bytes(2, "big") + text.encode() + b"\0"
    return header + b"e" + len(data).to_bytes(4, "big") + data


def _board(system: System) -> Board:
    return identify(compatible(system)) or BOARDS[0]


def _registers(data: bytes) -> list[int]:
    """What ID and VERSION read: as marked in a test bitstream, else as any overlay of ours."""
    for write in configuration.writes(data):
        if write.register == configuration.REGISTER_FDRI and write.stop - write.start >= 12:
            first = [configuration.word(data, write.start + 4 * i) for i in range(3)]
            if first[0] == MARK:
                return first[1:]
    return [ID_VALUE, VERSION_VALUE]


def _load(file: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return value


def main(arguments: Sequence[str]) -> int:
    """Makes a board, or is its helper."""
    parser = argparse.ArgumentParser(prog="python -m edgerun_hw.deploy.emulator")
    parser.add_argument("command", choices=("make", "serve", "boot", "power-cycle"))
    parser.add_argument("root", type=Path)
    parser.add_argument("--board", choices=tuple(BY_NAME), default="kv260")
    parser.add_argument("--no-xmutil", action="store_true")
    parser.add_argument("--patience", type=float, default=60.0)
    given = parser.parse_args(arguments)
    if given.command == "make":
        make_root(given.root, given.board, not given.no_xmutil)
    elif given.command == "power-cycle":
        power_cycle(given.root)
    elif not (given.root / DEVICE_TREE).is_dir():
        sys.stderr.write(f"{given.root} is no emulated board\n")
        return 2
    elif given.command == "serve":
        Session(EmulatedSystem(given.root), Channel(0, 1, given.patience)).serve()
    else:
        try:
            sys.stdout.write(boot(EmulatedSystem(given.root)) + "\n")
        except (BrokerError, OSError) as error:
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
