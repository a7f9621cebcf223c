"""Talks to the helper on a board: starts it, sends requests, understands what it answers."""

from __future__ import annotations

import getpass
import json
import logging
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from edgerun import env
from edgerun.errors import InputError
from edgerun.files.private import advice, private_folder
from edgerun_hw.deploy.answers import is_answer
from edgerun_hw.deploy.broker import PROTOCOL
from edgerun_hw.deploy.broker.protocol import MAX_CHUNK_BYTES, PERSON
from edgerun_hw.deploy.broker_file import INSTALLED
from edgerun_hw.deploy.errors import BoardError, RefusedError

logger = logging.getLogger(__name__)

# The helper gives itself 120 s for a request and as much to take back what has failed.
PATIENCE_S = 300.0
MAX_ANSWER_BYTES = 1 << 20
# A socket's path has at most 107 bytes; ssh adds 40 of %C, and 18 more while it makes it.
MAX_SOCKET_FOLDER = 48
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:%\[\]-]*")
HINT = ": install the helper on the board, see `edgerun fpga broker --help`"
BROKER = f"sudo -n {INSTALLED}"
SSH_OPTIONS = {
    "BatchMode": "yes",  # a question for a password would hang unseen
    "ConnectTimeout": "15",
    "ServerAliveInterval": "10",
    "ServerAliveCountMax": "3",
}


@dataclass(frozen=True)
class Target:
    """Where a board's helper is, and how to start it.

    Attributes:
        name: for people.
        command: that starts the helper.
        is_remote: whether the command is ssh.
    """

    name: str
    command: tuple[str, ...]
    is_remote: bool = False


def local_target(broker: str = BROKER) -> Target:
    """The board that this program runs on; root needs no sudo."""
    command = INSTALLED if broker == BROKER and os.geteuid() == 0 else broker
    return Target("this board", tuple(command.split()))


def sysroot_target(folder: Path) -> Target:
    """An emulated board.

    Raises:
        InputError: the folder is none.
    """
    if not (folder / "proc" / "device-tree").is_dir():
        raise InputError(
            f"{folder} is no emulated board: make one with "
            f"`python -m edgerun_hw.deploy.emulate.board make {folder}`"
        )
    command = (sys.executable, "-m", "edgerun_hw.deploy.emulate.board", "serve", str(folder))
    return Target(f"emulated board {folder}", command)


def ssh_target(host: str, broker: str = BROKER, options: Sequence[str] = ()) -> Target:
    """A board reached with the system's ssh.

    Args:
        host: as ssh takes it, ``user@board``; what ``~/.ssh/config`` says applies.
        broker: command that starts the helper there.
        options: more options for ssh, ``Name=value``.

    Raises:
        InputError: the host would be something else than a host to ssh.
    """
    if not HOST.fullmatch(host):
        raise InputError(f"{host!r} is no host: write it as for ssh, user@board")
    # Of an option given twice ssh takes the first: the caller's come before ours.
    ours = {**SSH_OPTIONS, **_shared_connection()}
    settings = [*options, *(f"{name}={value}" for name, value in ours.items())]
    flags = [part for setting in settings for part in ("-o", setting)]
    return Target(host, ("ssh", "-T", *flags, "--", host, broker), is_remote=True)


def _shared_connection() -> dict[str, str]:
    """Lets commands that follow one another use one connection, if its socket can have a name."""
    folder = env.settings().cache_dir / "ssh"
    if len(str(folder)) > MAX_SOCKET_FOLDER:
        return {}
    try:
        private_folder(folder)
    except OSError as error:
        logger.warning(
            "each command opens a connection of its own: %s (%s); %s",
            error.filename or folder,
            error.strerror,
            advice(error),
        )
        return {}
    # ssh reads a value like a line of its configuration: in quotes, and % begins a token.
    path = re.sub(r'(["\\])', r"\\\1", str(folder)).replace("%", "%%")
    return {"ControlMaster": "auto", "ControlPersist": "30", "ControlPath": f'"{path}/%C"'}


def person() -> str:
    """Who asks, as others see it while the lock is held."""
    try:
        name = f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        name = "somebody"
    return name if PERSON.fullmatch(name) else "somebody"


class Board:
    """A conversation with a board's helper; a context manager.

    Leaving it without having confirmed makes the board take back what was under way.
    """

    def __init__(self, target: Target, patience_s: float = PATIENCE_S) -> None:
        self.target = target
        self._patience_s = patience_s
        # Not a pipe: ssh's master stays in the background and would hold it open.
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115, close() closes it
        try:
            self._process = subprocess.Popen(
                target.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for us: we end it in order
            )
        except FileNotFoundError:
            self._messages.close()
            hint = HINT if target.command[0] == INSTALLED else ""
            raise InputError(f"{target.command[0]} is not installed{hint}") from None
        self._buffer = b""
        self._unanswered = ""

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the conversation and waits until the helper has put everything in order."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._messages.close()

    def hello(self) -> dict[str, Any]:
        """Who the board is.

        Raises:
            RefusedError: its helper is of another version.
            BoardError: there is no answer.
        """
        return self.ask("hello", protocol=PROTOCOL)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Sends a request and waits for the answer.

        Raises:
            RefusedError: the board refuses.
            BoardError: it failed, or the connection did.
        """
        return self._exchange(op, fields)

    def upload(self, name: str, data: bytes, progress: Callable[[int], None]) -> None:
        """Sends a file.

        Args:
            name: of the file.
            data: its content.
            progress: called with the bytes of each part that has arrived.
        """
        self.ask("put", file=name, size=len(data))
        for start in range(0, len(data), MAX_CHUNK_BYTES):
            part = data[start : start + MAX_CHUNK_BYTES]
            self._exchange("chunk", {"size": len(part)}, part)
            progress(len(part))

    def _exchange(self, op: str, fields: dict[str, Any], data: bytes = b"") -> dict[str, Any]:
        assert self._process.stdin is not None
        if self._unanswered:
            # Half a request may be under way, of which the helper would take this one for the rest.
            self._process.stdin.close()
            raise BoardError(
                f"{self.target.name} was left during {self._unanswered}, and takes back what was "
                "under way; `edgerun fpga status` shows what runs"
            )
        self._unanswered = op
        self._send(json.dumps({"op": op, **fields}).encode() + b"\n" + data)
        answer = self._receive(op)
        self._unanswered = ""
        if answer.get("ok") is not True:
            raise _failure(answer)
        if not is_answer(op, answer):
            raise BoardError(
                f"{self.target.name} answers {op} otherwise than the helper of this tool does: "
                "install the helper again with the tool's `edgerun fpga broker`"
            )
        return answer

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(data)
        try:
            while view:
                view = view[self._process.stdin.write(view) :]
        except OSError:
            # Its last words may explain it; `_receive` finds them.
            pass

    def _receive(self, op: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._process.stdout], [], [], self._patience_s)
            data = self._process.stdout.read(65536) if ready else b""
            if not data or len(self._buffer) > MAX_ANSWER_BYTES:
                raise BoardError(self._lost(op, timed_out=not ready))
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):  # the latter of thousands of nested lists
            answer = None
        if not isinstance(answer, dict):
            raise BoardError(
                f"{self.target.name} answers {line[:60]!r}, which the helper never says: a login "
                "script there may print something"
            )
        return answer

    def _lost(self, op: str, timed_out: bool) -> str:
        """One sentence about a helper that does not answer."""
        if timed_out:
            return f"{self.target.name} has not answered {op} within {self._patience_s:.0f} s"
        self._messages.seek(0)
        lines = self._messages.read(65536).decode("utf-8", "replace").strip().splitlines()
        last = lines[-1].strip() if lines else "it says nothing"
        if op != "hello":
            return (
                f"the connection to {self.target.name} was cut during {op} ({last}): the board "
                "takes back what was under way; `edgerun fpga status` shows what runs"
            )
        missing = INSTALLED in last and ("not found" in last or "No such file" in last)
        hint = HINT if missing else ""
        return f"{self.target.name} cannot be reached: {last}{hint}"


def _failure(answer: dict[str, Any]) -> RefusedError | BoardError:
    error = answer.get("error")
    code, message = "failed", "the board failed without saying why"
    if isinstance(error, dict):
        code, message = str(error.get("code")), str(error.get("message"))
    if "broken" in answer:
        return BoardError(
            f"{message}; and going back failed too: {answer['broken']}; deploy something else, or "
            "mend the cause and run `edgerun fpga rollback`, which tries again and else goes to "
            "the application before"
        )
    if "undone" in answer:
        message = f"{message}; taken back: {answer['undone']}"
    return RefusedError(message) if code in ("refused", "busy") else BoardError(message)
