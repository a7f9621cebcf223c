"""What lies on the board's disk: applications, which one counts, and the journal.

    lib/firmware/xilinx/<name>/      where xmutil and the kernel find applications
    lib/firmware/edgerun/incoming/   an upload that is not complete
    lib/firmware/edgerun/kept/<id>/  complete applications that are not in their place
    lib/firmware/edgerun/kept/<id>.old/  one of them while an upload of the same takes its place
    lib/firmware/edgerun/kept/<id>.bad/  what lay in the place of a checked upload, and differed
    lib/firmware/edgerun/state.json  the application that counts, and the one before it
    lib/firmware/edgerun/journal.json  there while something is under way, or was when power failed

All of it is on one file system, so that moving a folder is one rename. dfx-mgr searches
``lib/firmware/xilinx`` and must not find half an application, so nothing incomplete is ever there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..board.loader import FIRMWARE
from ..board.settings import Update
from ..board.system import System
from ..errors import FailureError, ProtocolError, RefusalError
from ..protocol import DIGEST, MAX_FILE_BYTES, parse_object
from .manifest import MANIFEST, MAX_MANIFEST_BYTES, SIGNATURE, Manifest, read_manifest

HOME = "lib/firmware/edgerun"
INCOMING, KEPT = f"{HOME}/incoming", f"{HOME}/kept"
STATE, JOURNAL = f"{HOME}/state.json", f"{HOME}/journal.json"
MAX_RECORD_BYTES = 16 * 1024
MAX_NAME = 127
OLD, BAD = ".old", ".bad"
# Stands for the digest of what is loaded but has no folder of its own, such as a part of a design
# with slots: it can be loaded again by name, not moved.
ELSEWHERE = "0" * 64


@dataclass(frozen=True)
class Application:
    """An application on this board: its folder's name, and what identifies its content."""

    name: str
    digest: str


@dataclass(frozen=True)
class State:
    """What counts.

    Attributes:
        active: the confirmed application.
        previous: the one to go back to.
        boot: the kernel's boot id at which it was loaded.
        since: when it was confirmed, in seconds since 1970.
        floor: highest release that was confirmed while the board trusted keys.
        registers: clocks and port widths with which ``previous`` ran, as far as ``active`` or its
            loading has changed them.
    """

    active: Application | None = None
    previous: Application | None = None
    boot: str = ""
    since: int = 0
    floor: int = 0
    registers: tuple[Update, ...] = ()


@dataclass(frozen=True)
class Journal:
    """What is under way.

    Attributes:
        kind: "deploy" or "rollback".
        phase: "staging" (nothing that counts is touched), "placing" (what runs is unloaded, then
            folders move) or "loading".
        new: what it wants to end with.
        old: what it goes back to; None if nothing was loaded.
        by: who asked.
        started: seconds since 1970.
        boot: the kernel's boot id, which differs once power has failed.
        registers: clocks and port widths with which ``old`` ran, as far as loading changes them.
        occupant: what lay in the place of ``new``, be it ``new`` itself; None if nothing did.
    """

    kind: str
    phase: str
    new: Application
    old: Application | None
    by: str
    started: int
    boot: str
    registers: tuple[Update, ...] = ()
    occupant: Application | None = None


class Store:
    """The folders above."""

    def __init__(self, system: System) -> None:
        self._system = system

    # Records

    def state(self) -> State:
        """Reads ``state.json``; a damaged one counts as none."""
        record = self._record(STATE)
        if record is None:
            return State()
        active, previous = _application(record, "active"), _application(record, "previous")
        since, floor = _int(record.get("since")), _int(record.get("floor"))
        boot = str(record.get("boot", ""))
        return State(active, previous, boot, since, floor, _updates(record))

    def write_state(self, state: State) -> None:
        """Replaces ``state.json``: the moment at which a deployment counts."""
        self._write(STATE, asdict(state))

    def journal(self) -> Journal | None:
        """What was under way, or None."""
        record = self._record(JOURNAL)
        new = _application(record, "new") if record is not None else None
        if record is None or new is None:
            return None
        return Journal(
            str(record.get("kind")),
            str(record.get("phase")),
            new,
            _application(record, "old"),
            str(record.get("by")),
            _int(record.get("started")),
            str(record.get("boot", "")),
            _updates(record),
            _application(record, "occupant"),
        )

    def write_journal(self, journal: Journal) -> None:
        """Says what is about to happen, before it happens."""
        self._system.make_folder(HOME)
        self._write(JOURNAL, asdict(journal))

    def clear_journal(self) -> None:
        """Says that nothing is under way."""
        if self._system.exists(JOURNAL):
            self._system.remove(JOURNAL)

    def _record(self, path: str) -> dict[str, Any] | None:
        try:
            return parse_object(self._system.read(path, MAX_RECORD_BYTES), MAX_RECORD_BYTES)
        except (OSError, RefusalError, ProtocolError):
            return None

    def _write(self, path: str, record: Mapping[str, Any]) -> None:
        self._system.make_folder(HOME)
        self._system.replace(path, json.dumps(record, indent=1, sort_keys=True).encode() + b"\n")

    # Applications

    def manifest(self, name: str) -> Manifest | None:
        """The manifest of the application in place, or None if it is not one of ours."""
        return self._manifest(f"{FIRMWARE}/{name}")

    def manifest_of(self, application: Application) -> Manifest | None:
        """The manifest of an application, in its place or kept; None if it is not one of ours."""
        manifest = self._manifest(self.folder(application))
        return manifest if manifest and manifest.digest == application.digest else None

    def _manifest(self, folder: str) -> Manifest | None:
        try:
            return read_manifest(self._system.read(f"{folder}/{MANIFEST}", MAX_MANIFEST_BYTES))
        except (OSError, RefusalError):
            return None

    def in_place(self, name: str) -> Application | None:
        """The application whose folder is ``FIRMWARE/name``."""
        folder = f"{FIRMWARE}/{name}"
        return Application(name, self.digest(folder)) if self._system.is_folder(folder) else None

    def installed(self) -> list[str]:
        """Names of the folders with a ``shell.json``, which is what xmutil goes by."""
        return [
            name
            for name in self._system.names(FIRMWARE)
            if self._system.exists(f"{FIRMWARE}/{name}/shell.json")
        ]

    def digest(self, folder: str) -> str:
        """Identifies a folder's content: its manifest, or all of it where there is none."""
        try:
            manifest = self._system.read(f"{folder}/{MANIFEST}", MAX_MANIFEST_BYTES)
            return hashlib.sha256(manifest).hexdigest()
        except (OSError, RefusalError):
            pass
        total = hashlib.sha256()
        for name in self._system.names(folder):
            try:
                content = self._system.read(f"{folder}/{name}", MAX_FILE_BYTES)
            except (OSError, RefusalError):  # a folder, a link: its name has to do
                content = b""
            total.update(f"{name}\0{len(content)}\0".encode() + content)
        return total.hexdigest()

    def folder(self, application: Application) -> str:
        """Where an application lies: in its place, or kept."""
        if application.digest != ELSEWHERE and self.in_place(application.name) != application:
            return _copy_of(application)
        return f"{FIRMWARE}/{application.name}"

    def signature(self, application: Application) -> str | None:
        """The sha256 of an application's signature; None if it has none that can be read."""
        try:
            path = f"{self.folder(application)}/{SIGNATURE}"
            return hashlib.sha256(self._system.read(path, MAX_MANIFEST_BYTES)).hexdigest()
        except (OSError, RefusalError):
            return None

    def has(self, application: Application) -> bool:
        """Whether it is here, in its place or kept."""
        if application.digest == ELSEWHERE:
            return True
        is_stored = self._system.is_folder(_copy_of(application))
        return is_stored or self.in_place(application.name) == application

    def place(self, application: Application) -> None:
        """Puts an application where it is found, keeping what was there; may be repeated.

        Raises:
            FailureError: it is neither in its place nor kept.
        """
        if application.digest == ELSEWHERE:
            return
        folder, copy = f"{FIRMWARE}/{application.name}", _copy_of(application)
        current = self.in_place(application.name)
        if current == application:
            # There are two only where an upload of the same was checked: what lies here may have
            # been altered since, or be signed with an older key.
            if self._system.is_folder(copy) and not self._are_alike(folder, copy):
                self._exchange(folder, copy)
            return
        if not self._system.is_folder(copy):
            raise FailureError(f"application {application.name} is gone from the board")
        if current is not None:
            self.displace(current)
        self._system.make_folder(FIRMWARE)
        self._system.rename(copy, folder)

    def _exchange(self, folder: str, copy: str) -> None:
        # Not under OLD, which ``mend`` would take for the copy if power failed in between.
        if self._system.exists(copy + BAD):
            self._system.remove(copy + BAD)
        self._system.rename(folder, copy + BAD)
        self._system.rename(copy, folder)
        self._system.remove(copy + BAD)

    def _are_alike(self, folder: str, copy: str) -> bool:
        """Whether two folders hold the same files; what cannot be read is not the same."""
        names = sorted(self._system.names(folder))
        if names != sorted(self._system.names(copy)):
            return False
        try:
            return all(
                self._system.read(f"{folder}/{name}", MAX_FILE_BYTES)
                == self._system.read(f"{copy}/{name}", MAX_FILE_BYTES)
                for name in names
            )
        except (OSError, RefusalError):
            return False

    def displace(self, application: Application) -> None:
        """Moves an application out of its place and keeps it."""
        if self.in_place(application.name) != application:
            return
        self._system.make_folder(KEPT)
        if self._system.exists(_copy_of(application)):
            self._system.remove(_copy_of(application))
        self._system.rename(f"{FIRMWARE}/{application.name}", _copy_of(application))

    def withdraw(self, application: Application, occupant: Application | None) -> None:
        """Moves an application out of its place, and back what lay there; may be repeated."""
        if application == occupant:
            return
        self.displace(application)
        if occupant is not None and self.has(occupant):
            self.place(occupant)

    def keep_incoming(self, application: Application) -> None:
        """Turns the upload into a complete application."""
        self._system.make_folder(KEPT)
        copy = _copy_of(application)
        is_kept = self._system.exists(copy)
        if is_kept:  # it may be the one to go back to: there is one of the two at any time
            self._system.rename(copy, copy + OLD)
        self._system.rename(INCOMING, copy)
        if is_kept:
            self._system.remove(copy + OLD)

    def mend(self) -> None:
        """Gives kept applications their names back that ``keep_incoming`` was interrupted at."""
        for name in self._system.names(KEPT):
            copy = f"{KEPT}/{name.removesuffix(OLD)}"
            if name.endswith(OLD) and not self._system.exists(copy):
                self._system.rename(copy + OLD, copy)

    def collect(self) -> None:
        """Removes uploads and kept applications that nothing refers to."""
        self.mend()
        state, journal = self.state(), self.journal()
        named = [state.active, state.previous]
        if journal is not None:
            named += [journal.old, journal.occupant]
        needed = {_copy_of(a) for a in named if a is not None and self.in_place(a.name) != a}
        for name in self._system.names(KEPT):
            if f"{KEPT}/{name}" not in needed:
                self._system.remove(f"{KEPT}/{name}")
        if self._system.exists(INCOMING):
            self._system.remove(INCOMING)


def _copy_of(application: Application) -> str:
    return f"{KEPT}/{application.digest}"


def _application(record: Mapping[str, Any], key: str) -> Application | None:
    value = record.get(key)
    if not isinstance(value, dict):
        return None
    name, digest = value.get("name"), value.get("digest")
    if not isinstance(name, str) or not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        return None
    # Names of applications that others have put there follow other rules than ours.
    if not name or len(name) > MAX_NAME or os.path.basename(name) != name or name.startswith("."):
        return None
    return Application(name, digest)


def _updates(record: Mapping[str, Any]) -> tuple[Update, ...]:
    value = record.get("registers")
    updates = value if isinstance(value, list) else []
    return tuple(
        (update[0], update[1], update[2])
        for update in updates
        if isinstance(update, list) and [type(number) for number in update] == [int] * 3
    )


def _int(value: Any) -> int:
    return value if type(value) is int else 0
