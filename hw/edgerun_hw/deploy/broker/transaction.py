"""Changes the application, in steps of which each can be taken back.

What takes a step back is ``undo``, and it starts from the journal alone: whether a step has just
failed, the other side is gone, or the board has lost its power in the middle makes no difference.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace

from .application.check import check_application
from .application.manifest import MANIFEST, Manifest
from .application.store import ELSEWHERE, Application, Journal, State, Store
from .board import settings
from .board.identity import board_of
from .board.loader import OPERATING, Loader, check_state, is_applied, loader_of, state
from .board.policy import read_policy
from .board.quiesce import quiesce
from .board.system import System
from .errors import BrokerError, FailureError, RefusalError

BOOT_ID = "proc/sys/kernel/random/boot_id"
ID_OFFSET, VERSION_OFFSET = 0, 4


@dataclass(frozen=True)
class Undone:
    """What ``undo`` did.

    Attributes:
        kind: "deploy" or "rollback", or "boot".
        result: "kept" (the change had counted already), "restored" or "nothing loaded".
        running: the application that counts now; None if nothing was loaded, or can be.
        is_loaded: whether ``running`` is loaded.
        reason: why the application before could not be loaded again; empty if it was not tried.
    """

    kind: str
    result: str
    running: Application | None
    is_loaded: bool = True
    reason: str = ""

    def sentence(self) -> str:
        """For people."""
        if self.reason:
            return f"what ran before cannot be loaded ({self.reason}), and nothing is loaded now"
        if self.running is not None and not self.is_loaded:
            return f"{self.running.name} ({self.running.digest[:8]}) was not loaded, and is not now"
        if self.running is None:
            return "nothing was loaded before, and nothing is loaded now"
        return f"{self.running.name} ({self.running.digest[:8]}) runs"


class Changer:
    """Loads, checks, confirms, takes back."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.store = Store(system)
        self.loader: Loader = loader_of(system)

    @property
    def boot(self) -> str:
        """Identifies the time since the board was started."""
        return self._system.read_text(BOOT_ID)

    def running(self) -> Application | None:
        """What is loaded, or should be: the confirmed application if the loader cannot tell."""
        active, name = self.store.state().active, self.loader.running()
        if name is None:
            return active if active and self.store.has(active) else None
        return self.store.in_place(name) or Application(name, ELSEWHERE)

    def is_loaded(self) -> bool:
        """Whether the confirmed application has been loaded since the board was started."""
        recorded = self.store.state()
        if recorded.active is None:
            return False
        if self.loader.name == "xmutil":
            return self.loader.running() == recorded.active.name
        # Without its overlay the logic has no clock, and reading its registers may stop the board.
        return recorded.boot == self.boot and is_applied(self._system)

    def begin(self, kind: str, new: Application, by: str) -> Journal:
        """Writes down what is about to happen.

        Raises:
            RefusalError: something else loads this board's logic.
        """
        self.loader.check()
        now = int(time.time())
        journal = Journal(
            kind,
            "staging",
            new,
            self._before(),
            by,
            now,
            self.boot,
            occupant=self.store.in_place(new.name),
        )
        self.store.write_journal(journal)
        return journal

    def _before(self) -> Application | None:
        """What to go back to: none if it is not loaded and cannot be."""
        running = self.running()
        if running is not None and not self.operates() and not self.is_intact(running):
            return None
        return running

    def is_intact(self, application: Application) -> bool:
        """Whether its files are here and pass the checks that come before loading it."""
        try:
            self._checked(application)
        except (BrokerError, OSError):
            return False
        return self.store.has(application)

    def operates(self) -> bool:
        """Whether the application that ``running`` names is loaded, and not only should be."""
        return self.loader.running() is not None or self.is_loaded()

    def begin_rollback(self, by: str) -> Journal:
        """Like ``begin``, with the application before, which is checked while the other runs.

        Raises:
            RefusalError: there is none, or this board does not go back to it.
        """
        recorded = self.store.state()
        previous = recorded.previous
        if previous is None or not self.store.has(previous):
            raise RefusalError("there is no previous application on this board to go back to")
        policy = read_policy(self._system)
        manifest = self._checked(previous)
        if manifest is None:
            policy.check_signature(b"", None)
        else:
            policy.check_release(manifest.release, recorded.floor)
        return self.begin("rollback", previous, by)

    def install(self, journal: Journal) -> Journal:
        """Unloads what runs and puts the new application in its place; the old one is kept.

        Raises:
            RefusalError: what runs has transfers under way that do not end; it goes on running.
        """
        self._quiesce()
        # Before unloading, with which the kernel switches clocks off.
        journal = replace(journal, registers=self._held(journal.new))
        journal = self._enter(journal, "placing")
        self.loader.unload()
        self.store.place(journal.new)
        return journal

    def load(self, journal: Journal) -> Journal:
        """Checks the files again, sets clocks, loads, sets port widths."""
        journal = self._enter(journal, "loading")
        self._load(journal.new, self._former(journal.new))
        return journal

    def verify(self, application: Application) -> dict[str, int]:
        """Asks the loaded logic who it is.

        Returns:
            The registers ``id`` and ``version``; none for an application of somebody else.

        Raises:
            FailureError: it does not operate, or is not what its manifest says.
        """
        check_state(self._system)
        manifest = self._manifest(application)
        if manifest is None:
            return {}
        actual = self.registers(manifest)
        expected = {"id": manifest.identity, "version": manifest.version}
        for name, value in expected.items():
            if actual[name] != value:
                raise FailureError(
                    f"the overlay's {name} register is {actual[name]:#010x} and not {value:#010x}"
                )
        return actual

    def registers(self, manifest: Manifest) -> dict[str, int]:
        """Reads the two registers that every overlay of ours has."""
        return {
            "id": self._system.read_word(manifest.base + ID_OFFSET),
            "version": self._system.read_word(manifest.base + VERSION_OFFSET),
        }

    def confirm(self, journal: Journal) -> State:
        """Makes the new application the one that counts."""
        before = self.store.state()
        previous, registers = journal.old, journal.registers
        if journal.old in (None, journal.new):
            previous, registers = before.previous, before.registers
        if previous == journal.new:  # it is what was gone back to, from one that is of no use
            previous, registers = None, ()
        floor, manifest = before.floor, self._manifest(journal.new)
        if manifest is not None and read_policy(self._system).keys:
            floor = max(floor, manifest.release)
        now = int(time.time())
        confirmed = State(journal.new, previous, self.boot, now, floor, registers)
        self.store.write_state(confirmed)
        # It counts now. What is left to do is left over if it fails, and done the next time.
        with contextlib.suppress(OSError):
            self.store.clear_journal()
        self._collect()
        return confirmed

    def pending(self) -> Journal | None:
        """What was begun and does not count yet."""
        journal = self.store.journal()
        return None if journal is None or self._counts(journal) else journal

    def _counts(self, journal: Journal) -> bool:
        return self.store.state().active == journal.new != journal.old

    def undo(self, *, may_give_up: bool = False) -> Undone | None:
        """Takes back what the journal says is under way; None if nothing is.

        Args:
            may_give_up: leave nothing loaded if the application before cannot be loaded. Otherwise
                the journal stays, to try again.

        Raises:
            BrokerError: it failed; the journal stays.
        """
        self.store.mend()
        journal = self.store.journal()
        if journal is None:
            self.store.clear_journal()  # a damaged one says nothing
            return None
        if self._counts(journal):
            undone = Undone(journal.kind, "kept", journal.new)
        else:
            undone = self._restore(journal, may_give_up)
        self.store.clear_journal()
        self._collect()
        return undone

    def boot_up(self) -> Undone | None:
        """After a start of the board: takes back what was interrupted, loads what counts."""
        undone = self.undo()
        active = self.store.state().active
        if active is None or self.is_loaded():
            return undone
        self._unload()
        self._activate(active)
        return Undone("boot", "restored", active)

    def _restore(self, journal: Journal, may_give_up: bool) -> Undone:
        old = journal.old
        undone = Undone(journal.kind, "restored" if old else "nothing loaded", old)
        if journal.phase == "staging" and journal.boot == self.boot:
            # Nothing was touched, and power has not failed.
            return replace(undone, is_loaded=self.operates())
        if old is not None and self._runs(old):
            if old.name != journal.new.name:  # folders of others may move while it runs
                self.store.withdraw(journal.new, journal.occupant)
            return undone
        self._unload()
        self.store.withdraw(journal.new, journal.occupant)
        try:
            self._set(journal.registers)
            if old is not None:
                self._activate(old)
        except (BrokerError, OSError) as error:
            if not may_give_up:
                raise
            self._unload()  # it may be there in part
            return Undone(journal.kind, "nothing loaded", None, False, str(error))
        return undone

    def _runs(self, application: Application) -> bool:
        """Whether it is loaded and works; folders move only while nothing is loaded."""
        if self.loader.running() != application.name:
            return False
        if self.store.in_place(application.name) != application:
            return False
        try:
            self.verify(application)
        except (BrokerError, OSError):
            return False
        return True

    def _activate(self, application: Application) -> None:
        """Loads an application of this board's, while nothing is loaded."""
        self.store.place(application)
        self._load(application)
        self.verify(application)
        recorded = self.store.state()
        if recorded.active == application:
            self.store.write_state(replace(recorded, boot=self.boot))

    def _unload(self) -> None:
        """Unloads whatever is loaded."""
        self._quiesce()
        self.loader.unload()

    def _quiesce(self) -> None:
        """Stills what is loaded, if it is ours and runs; what is not known is left alone."""
        loaded = self._loaded()
        manifest = self._manifest(loaded) if loaded is not None else None
        if manifest is not None and state(self._system) == OPERATING:
            quiesce(self._system, manifest.base, manifest.identity)

    def _loaded(self) -> Application | None:
        """The application that is certainly loaded."""
        name = self.loader.running()
        if name is not None:
            return self.store.in_place(name)
        if self.loader.name == "xmutil" or not is_applied(self._system):
            return None
        journal = self.store.journal()
        if journal is not None and journal.phase == "loading" and journal.boot == self.boot:
            return journal.new
        return self.store.state().active if self.is_loaded() else None

    def _enter(self, journal: Journal, phase: str) -> Journal:
        journal = replace(journal, phase=phase)
        self.store.write_journal(journal)
        return journal

    def _former(self, application: Application) -> tuple[settings.Update, ...]:
        """Clocks and port widths with which an application ran that is gone back to."""
        recorded = self.store.state()
        return recorded.registers if recorded.previous == application else ()

    def _held(self, application: Application) -> tuple[settings.Update, ...]:
        """What the registers hold now that loading an application sets."""
        updates, manifest = [*self._former(application)], self.store.manifest_of(application)
        if manifest is not None:
            family = manifest.board.family
            updates += settings.clock_updates(family, manifest.clocks)
            updates += settings.width_updates(family, manifest.port_widths)
        return settings.held(self._system, updates)

    def _set(self, registers: tuple[settings.Update, ...]) -> None:
        if registers:
            family = board_of(self._system, read_policy(self._system)).family
            settings.apply(self._system, registers, family)

    def _load(self, application: Application, registers: tuple[settings.Update, ...] = ()) -> None:
        """Loads an application that is in its place, while nothing is loaded.

        Args:
            application: to load.
            registers: clocks and port widths to set first; it need not have any of its own.
        """
        manifest = self._checked(application)
        self._set(registers)
        if manifest is None:
            self.loader.load(application.name)
            return
        family = manifest.board.family
        clocks = settings.clock_updates(family, manifest.clocks)
        settings.apply(self._system, clocks, family)
        self.loader.load(application.name)
        settings.check_rates(self._system, manifest.clocks, family)
        widths = settings.width_updates(family, manifest.port_widths)
        settings.apply(self._system, widths, family)

    def _checked(self, application: Application) -> Manifest | None:
        """Checks all of an application's files again; None if it is somebody else's.

        Raises:
            RefusalError: a file was altered, or this board no longer trusts who has signed it.
        """
        folder = self.store.folder(application)
        if not self._system.exists(f"{folder}/{MANIFEST}"):
            return None
        policy = read_policy(self._system)
        board = board_of(self._system, policy)
        try:
            return check_application(
                self._system, folder, application.name, application.digest, board, policy
            )
        except RefusalError as error:
            raise RefusalError(
                f"{application.name} on this board cannot be loaded: {error}"
            ) from None

    def _manifest(self, application: Application) -> Manifest | None:
        manifest = self.store.manifest(application.name)
        return manifest if manifest and manifest.digest == application.digest else None

    def _collect(self) -> None:
        # Leftovers waste room and hurt nobody: not a reason to fail what has succeeded.
        with contextlib.suppress(OSError):
            self.store.collect()
