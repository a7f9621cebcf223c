"""dfx-mgr and xmutil, simulated, as far as the helper can tell them from the real ones.

Not dfx-mgr's code, and never seen beside a board: rules and texts follow ``src/daemon_helper.c``
and ``example/sys/linux/dfx-mgr-client.c`` of Xilinx/dfx-mgr at the tags that ``RELEASES`` names,
and ``xmutil`` of Xilinx/xmutil. Where the real daemon might still manage, this one does not: an
application whose folder was moved while loaded cannot be unloaded any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgerun_hw.deploy.broker.board.loader import CLIENT, FIRMWARE, OVERLAYS, XMUTIL
from edgerun_hw.deploy.broker.errors import BrokerError, FailureError

if TYPE_CHECKING:
    from edgerun_hw.deploy.emulate.board import EmulatedSystem

DEFAULT_RELEASE = "2024.2"


@dataclass(frozen=True)
class Release:
    """How a release of dfx-mgr prints.

    Attributes:
        titles: names of the columns.
        row: its format string.
        columns: what stands in them.
        slot: how the slot of a loaded application is written.
        loaded: what its client prints when it has loaded something.
        rule: dashes below the titles, or empty.
        by_name: whether its client loads and unloads by name (dfx-mgr-client -loadByName).
        checks: whether xmutil fails when the client does.
    """

    titles: tuple[str, ...]
    row: str
    columns: tuple[str, ...]
    slot: str = "0,"
    loaded: str = "{name}: loaded to slot 0"
    rule: tuple[str, ...] = ()
    by_name: bool = False
    checks: bool = True


_OLD = ("Accelerator", "Accel_type", "Base", "Base_type", "#slots(PL+AIE)", "Active_slot")
_OLD_COLUMNS = ("name", "type", "base", "type", "slots", "slot")
_PID = ("Accelerator", "Accel_type", "Base", "Pid", "Base_type", "#slots(PL+AIE)", "Active_slot")
_PID_COLUMNS = ("name", "type", "base", "pid", "type", "slots", "slot")
RELEASES: Mapping[str, Release] = {
    "2021.2": Release(
        ("Accelerator", "Base", "Type", "#slots", "Active_slot"),
        "%32s%32s%15s%10s%20s",
        ("name", "base", "type", "slots", "slot"),
        loaded="Accelerator loaded to slot 0",
        checks=False,
    ),
    "2022.1": Release(
        _OLD,
        "%32s%20s%32s%20s%20s%20s",
        _OLD_COLUMNS,
        loaded="Accelerator loaded to slot 0",
        checks=False,
    ),
    "2023.1": Release(_OLD, "%32s%20s%32s%20s%20s%20s", _OLD_COLUMNS),
    "2023.2": Release(_PID, "%30s%16s%30s%4s%16s%16s%16s", _PID_COLUMNS),
    "2024.1": Release(_PID, "%30s%12s%30s%7s%12s%16s%12s", _PID_COLUMNS),
    "2024.2": Release(
        (*_PID[:5], "#slots(RPU+PL+AIE)", "slot->handle"),
        "%30s%12s%24s%7s%12s%20s%16s",
        _PID_COLUMNS,
        "0->0,",
        "{name}: Loaded with slot_handle 0",
    ),
    "2025.2": Release(
        (
            *("#", "Accel_type", "user_load_type", "user_load_region", "Base", "Pid"),
            *("Base_type", "#slots(RPU+PL+AIE)", "slot->handle", "Accelerator"),
        ),
        "%-3s%-12s%-15s%-17s%-12s%-6s%-10s%-19s%-13s%s",
        ("number", "type", "-", "-", "short", "pid", "type", "slots", "slot", "name"),
        "0->0,",
        "{name}: Loaded with slot_handle 0",
        tuple("-" * width for width in (2, 11, 14, 16, 11, 5, 9, 18, 12, 9)),
    ),
    "2026.1": Release(
        ("ID", "accelType", "Base", "slotLoc", "Accelerator"),
        "%-3s%-12s%-12s%-8s%s",
        ("number", "type", "short", "slot", "name"),
        "0",
        "{name}: Loaded with slot_handle 0",
        tuple("-" * width for width in (2, 11, 11, 7, 11)),
        by_name=True,
    ),
}


class DfxMgr:
    """The daemon, its client and xmutil.

    Args:
        system: the emulated machine; ``application`` in its logic is what the daemon remembers.
        release: key of ``RELEASES``.
    """

    def __init__(self, system: EmulatedSystem, release: str) -> None:
        self._system, self._release = system, RELEASES[release]

    def run(self, program: str, command: str, *arguments: str) -> str:
        """Does what the program would do.

        Raises:
            FailureError: it ends with an error.
        """
        if (program, command) == (XMUTIL, "listapps"):
            return self._list()
        verbs = {
            (XMUTIL, "loadapp"): (self._load, False),
            (XMUTIL, "unloadapp"): (self._unload, False),
            (CLIENT, "-loadByName"): (self._load, True),
            (CLIENT, "-unloadByName"): (self._unload, True),
        }
        verb, by_name = verbs[program, command]
        text, is_done = "Option not recognized, Try again.", False
        if by_name == self._release.by_name:
            text, is_done = verb(arguments[0])
        if not is_done and self._release.checks:
            name = " ".join((program.rpartition("/")[2], command, *arguments))
            raise FailureError(f"{name} failed: {text}")
        return text

    def moved(self, folder: str) -> None:
        """What the daemon does when a folder goes: it forgets the application, not its overlay."""
        logic = self._system.logic()
        if folder == f"{FIRMWARE}/{logic.get('application')}":
            self._system.keep({**logic, "application": None})

    def _list(self) -> str:
        release, system = self._release, self._system
        active = system.logic().get("application")
        lines = [release.row % release.titles]
        if release.rule:
            lines.append(release.row % release.rule)
        names = [n for n in system.names(FIRMWARE) if system.exists(f"{FIRMWARE}/{n}/shell.json")]
        for number, name in enumerate(names, 1):
            cells = {
                "name": name,
                "number": f"{number:2d} ",
                "type": self._type(name),
                "base": name,
                "short": name if len(name) <= 11 else f"{name[:8]}...",
                "pid": "id_ok",
                "slots": "(0+0)",
                "slot": release.slot if name == active else "-1",
                "-": "-",
            }
            lines.append(release.row % tuple(cells[column] for column in release.columns))
        return "\n".join(lines)

    def _type(self, name: str) -> str:
        """What an application's shell.json says it is."""
        try:
            shell = json.loads(self._system.read_text(f"{FIRMWARE}/{name}/shell.json"))
            return str(shell["shell_type"])
        except (BrokerError, ValueError, KeyError, TypeError):
            return "XRT_FLAT"

    def _load(self, name: str) -> tuple[str, bool]:
        system, logic = self._system, self._system.logic()
        files = system.names(f"{FIRMWARE}/{name}")
        overlays = [file for file in files if file.endswith(".dtbo")]
        if logic.get("application") or len(overlays) != 1:
            return f"{name}: Load Error: -1", False
        number = int(logic.get("loads", 0)) + 1
        system.keep({**logic, "loads": number})
        node = f"{OVERLAYS}/{name}_image_{number}"
        try:
            overlay = system.path(f"{FIRMWARE}/{name}/{overlays[0]}").read_bytes()
            system.apply(node, overlay, [f"/{FIRMWARE}/{name}"])
        except OSError:
            return f"{name}: Load Error: -1", False
        system.keep({**system.logic(), "application": name, "node": node})
        return self._release.loaded.format(name=name), True

    def _unload(self, which: str) -> tuple[str, bool]:
        logic = self._system.logic()
        name, release = logic.get("application"), self._release
        if name is None or which != (name if release.by_name else "0"):
            return f"remove from slot {which} returns: -1 (Error)", False
        try:
            self._system.withdraw(logic["node"])
        except OSError:
            return f"remove from slot {which} returns: -1 (Error)", False
        self._system.keep({**self._system.logic(), "application": None})
        return f"remove from slot {which} returns: 0 (Ok)", True
