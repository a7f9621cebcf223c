"""One conversation: which request may follow which, and what happens when it breaks off."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from . import PROTOCOL, signals
from .application.intake import Intake
from .application.store import JOURNAL, STATE, Application, Journal, State
from .board.boards import identify
from .board.identity import DEVICE_TREE, board_of, compatible
from .board.loader import OPERATING, foreign_overlays, state
from .board.policy import read_policy
from .board.system import System
from .errors import BrokerError, BusyError, ProtocolError, RefusalError
from .protocol import Channel, EndOfSession, Request
from .transaction import Changer, Undone

LOCK = "run/edgerun-fpga.lock"
# For a change from its first request to its last, and for what one request does.
CHANGE_S, WORK_S = 1800.0, 120.0
Answer = dict[str, Any]
# What may come next: the steps of a change in their order.
NEXT = {
    "idle": {"begin", "rollback", "recover"},
    "receiving": {"put", "chunk", "seal", "abort"},
    "sealed": {"install", "abort"},
    "installed": {"load", "abort"},
    "loaded": {"verify", "abort"},
    "verified": {"confirm", "abort"},
}


class Session:
    """Serves one connection.

    Args:
        system: the machine.
        channel: the other side.
    """

    def __init__(self, system: System, channel: Channel) -> None:
        self._system, self._channel = system, channel
        self._changer = Changer(system)
        self._stage = "idle"
        self._journal: Journal | None = None
        self._intake: Intake | None = None
        self._lock = contextlib.ExitStack()

    def serve(self) -> None:
        """Answers until the other side goes; a change that is not confirmed is then taken back."""
        with signals.ending_session():
            try:
                while True:
                    self._serve_one()
            except EndOfSession:
                pass
            finally:
                signals.ignore()
                if self._stage != "idle":
                    with contextlib.suppress(BrokerError, OSError):
                        self._take_back()
                self._lock.close()

    def _serve_one(self) -> None:
        try:
            request = self._channel.read_request()
            data = b""
            if request.op == "chunk":
                data = self._channel.read_bytes(request.fields["size"])
        except ProtocolError as error:
            self._channel.send(self._failure(error))
            raise EndOfSession from None
        try:
            self._system.allow(WORK_S)
            answer: Mapping[str, Any] = {"ok": True, **self._do(request, data)}
        except (BrokerError, OSError) as error:
            answer = self._failure(error)
        self._channel.send(answer)
        if answer.get("error", {}).get("code") == "protocol":
            raise EndOfSession

    def _do(self, request: Request, data: bytes) -> Answer:
        if request.op not in ("hello", "status") and request.op not in NEXT[self._stage]:
            raise ProtocolError(f"{request.op} cannot follow here")
        if request.op == "chunk":
            return self._chunk(data)
        handlers: Mapping[str, Callable[..., Answer]] = {
            "hello": self._hello,
            "status": self._status,
            "begin": self._begin,
            "rollback": self._rollback,
            "recover": self._recover,
            "put": self._put,
            "seal": self._seal,
            "install": self._install,
            "load": self._load,
            "verify": self._verify,
            "confirm": self._confirm,
            "abort": self._abort,
        }
        return handlers[request.op](**request.fields)

    def _failure(self, error: BrokerError | OSError) -> Answer:
        """Describes an error, after taking back what it interrupts."""
        code = error.code if isinstance(error, BrokerError) else "failed"
        message = str(error) if isinstance(error, BrokerError) else _describe(error)
        answer: Answer = {"ok": False, "error": {"code": code, "message": message}}
        if self._stage != "idle":
            try:
                undone = self._take_back()
                answer["undone"] = undone.sentence() if undone else "nothing was changed"
            except (BrokerError, OSError) as second:
                answer["broken"] = (
                    str(second) if isinstance(second, BrokerError) else _describe(second)
                )
        return answer

    # Requests that change nothing

    def _hello(self, protocol: int) -> Answer:
        if protocol != PROTOCOL:
            raise RefusalError(
                f"the board's helper speaks protocol {PROTOCOL} and the tool {protocol}: install "
                "the helper again with the tool's `edgerun fpga broker`"
            )
        policy = read_policy(self._system)
        board = identify(compatible(self._system), policy.board)
        return {
            "protocol": PROTOCOL,
            "host": socket.gethostname(),
            "board": board.name if board else None,
            "model": self._system.read_text(f"{DEVICE_TREE}/model"),
            "compatible": list(compatible(self._system)),
            "loader": self._changer.loader.name,
            "state": state(self._system),
            "needs_signature": policy.needs_signature,
            "trusts_keys": bool(policy.keys),
        }

    def _status(self) -> Answer:
        store = self._changer.store
        recorded, journal = store.state(), self._changer.pending()
        holder, is_loaded = self._holder(), self._changer.is_loaded()
        return {
            "state": state(self._system),
            "loader": self._changer.loader.name,
            "running": self._changer.loader.running(),
            "active": _shown(recorded.active),
            "previous": _shown(recorded.previous),
            "since": recorded.since or None,
            "is_loaded": is_loaded,
            "is_intact": bool(recorded.active and self._changer.is_intact(recorded.active)),
            "signature": store.signature(recorded.active) if recorded.active else None,
            "interrupted": asdict(journal) if journal and holder is None else None,
            "damaged": self._damaged(),
            "locked_by": holder,
            "registers": self._registers(recorded) if is_loaded else None,
            "applications": store.installed(),
            "overlays": foreign_overlays(self._system),
        }

    def _damaged(self) -> list[str]:
        """Records that are there and cannot be read."""
        store, damaged = self._changer.store, []
        if self._system.exists(STATE) and store.state().active is None:
            damaged.append(STATE)
        if self._system.exists(JOURNAL) and store.journal() is None:
            damaged.append(JOURNAL)
        return damaged

    def _registers(self, recorded: State) -> Answer | None:
        """ID and version of the running overlay; None where reading could hang the bus.

        Whoever replaces logic holds the lock, leaves a journal where it has not come to an end, and
        another record where it has. So what was loaded when ``recorded`` was read still is.
        """
        if self._stage != "idle":
            return None
        with self._system.kept_free(LOCK) as holder:
            store, is_pending = self._changer.store, self._changer.pending() is not None
            if holder is not None or is_pending or store.state() != recorded:
                return None
            return self._read_registers(recorded.active)

    def _read_registers(self, active: Application | None) -> Answer | None:
        manifest = self._changer.store.manifest(active.name) if active else None
        if active is None or manifest is None or manifest.digest != active.digest:
            return None
        if state(self._system) != OPERATING:
            return None
        try:
            registers = self._changer.registers(manifest)
        except OSError:
            return None
        good = registers == {"id": manifest.identity, "version": manifest.version}
        return {**registers, "as_expected": good}

    def _holder(self) -> str | None:
        """Who holds the lock, if it is not us."""
        return self._system.holder(LOCK) if self._stage == "idle" else None

    # Requests that change something

    def _take_lock(self, by: str, *, may_give_up: bool = True) -> Undone | None:
        """Takes the lock and finishes what an earlier holder could not.

        A change gives up what cannot be loaded again: it must not stop what mends it.
        """
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        text = f"{by}, process {os.getpid()}, since {now}"
        try:
            self._lock.enter_context(self._system.locked(LOCK, text))
        except BusyError as busy:
            raise BusyError(
                f"this board's logic is in use ({busy}): wait until that is done"
            ) from None
        try:
            with signals.undisturbed():
                return self._changer.undo(may_give_up=may_give_up)
        except (BrokerError, OSError):
            self._lock.close()
            raise

    def _begin(self, application: str, manifest: str, by: str) -> Answer:
        policy = read_policy(self._system)
        board_of(self._system, policy)
        if not policy.keys:
            policy.check_signature(b"", None)  # before anything is sent for nothing
        undone = self._take_lock(by)
        return self._started(
            undone, lambda: self._changer.begin("deploy", Application(application, manifest), by)
        )

    def _rollback(self, by: str) -> Answer:
        undone = self._take_lock(by)
        is_back = undone is not None and undone.result != "kept" and not undone.reason
        if undone is not None and undone.kind == "deploy" and is_back:
            self._lock.close()
            return {"recovered": undone.sentence(), "done": True}
        return self._started(undone, lambda: self._changer.begin_rollback(by))

    def _started(self, undone: Undone | None, begin: Callable[[], Journal]) -> Answer:
        try:
            self._changer.store.collect()
            self._journal = begin()
        except (BrokerError, OSError) as error:
            with contextlib.suppress(BrokerError, OSError), signals.undisturbed():
                self._changer.undo()
            self._lock.close()
            if undone is not None and undone.reason and isinstance(error, BrokerError):
                raise type(error)(f"{error}; {undone.sentence()}") from None
            raise
        journal = self._journal
        if journal.kind == "deploy":
            self._intake = Intake(self._system, journal.new.name, journal.new.digest)
        self._stage = "receiving" if journal.kind == "deploy" else "sealed"
        self._channel.limit(CHANGE_S)
        return {
            "old": _shown(journal.old),
            "new": _shown(journal.new),
            "is_loaded": self._changer.operates(),
            "recovered": undone.sentence() if undone else None,
        }

    def _recover(self, by: str) -> Answer:
        undone = self._take_lock(by, may_give_up=False)
        try:
            with signals.undisturbed():
                undone = self._changer.boot_up() or undone
            return {"recovered": undone.sentence() if undone else None}
        finally:
            self._lock.close()

    def _put(self, file: str, size: int) -> Answer:
        assert self._intake is not None
        self._intake.put(file, size)
        return {}

    def _chunk(self, data: bytes) -> Answer:
        assert self._intake is not None
        self._intake.chunk(data)
        return {}

    def _seal(self) -> Answer:
        assert self._intake is not None and self._journal is not None
        policy, floor = read_policy(self._system), self._changer.store.state().floor
        self._intake.seal(board_of(self._system, policy), policy, floor)
        self._changer.store.keep_incoming(self._journal.new)
        self._stage = "sealed"
        return {}

    def _install(self) -> Answer:
        assert self._journal is not None
        self._journal = self._changer.install(self._journal)
        self._stage = "installed"
        return {}

    def _load(self) -> Answer:
        assert self._journal is not None
        self._journal = self._changer.load(self._journal)
        self._stage = "loaded"
        return {"state": state(self._system)}

    def _verify(self) -> Answer:
        assert self._journal is not None
        registers = self._changer.verify(self._journal.new)
        self._stage = "verified"
        return {"registers": registers}

    def _confirm(self) -> Answer:
        assert self._journal is not None
        recorded = self._changer.confirm(self._journal)
        self._finish()
        return {"active": _shown(recorded.active), "previous": _shown(recorded.previous)}

    def _abort(self) -> Answer:
        undone = self._take_back()
        return {"undone": undone.sentence() if undone else "nothing was changed"}

    def _take_back(self) -> Undone | None:
        """Takes the change back; the lock goes only after that."""
        with signals.undisturbed():
            self._system.allow(WORK_S)
            try:
                if self._intake is not None:
                    self._intake.close()
                return self._changer.undo()
            finally:
                self._finish()

    def _finish(self) -> None:
        self._stage, self._journal, self._intake = "idle", None, None
        self._channel.limit()
        self._lock.close()


def boot(system: System) -> str:
    """What runs when the board starts: finishes or takes back, and loads what counts."""
    with system.locked(LOCK, "start of the board"), signals.undisturbed():
        undone = Changer(system).boot_up()
    return undone.sentence() if undone else "nothing to do"


def _shown(application: Application | None) -> Answer | None:
    return asdict(application) if application else None


def _describe(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{where}"
