"""The bench's side of a peer's process: one command at a time, every failure with its reason."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[3]
REASON_LINES = 6


class PeerError(Exception):
    """A peer that is not there, died or did not answer; the text says why."""


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """What to run.

    Attributes:
        kind: a key of ``worker.KINDS``.
        variant: which file of the model.
        path: the model.
        python: interpreter that has the runtime.
    """

    kind: str
    variant: str
    path: Path
    python: str

    @property
    def name(self) -> str:
        """How the results call it."""
        return f"{self.kind}:{self.variant}"


class Peer:
    """A running worker."""

    def __init__(self, spec: PeerSpec, threads: int, context: int) -> None:
        """Starts the process; ``ask`` and ``ready`` talk to it."""
        self.spec = spec
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._buffer = b""
        command = [
            spec.python,
            "-m",
            "tools.bench.peers.worker",
            spec.kind,
            str(spec.path.resolve()),
        ]
        command += ["--threads", str(threads), "--context", str(context)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "PYTHONPATH": _python_path()},
            )
        except OSError as error:
            self._errors.close()
            raise PeerError(f"cannot start {spec.python}: {error}") from error

    def ready(self, timeout_s: float) -> dict[str, Any]:
        """Waits for the model to be loaded."""
        return self._reply(timeout_s)

    def ask(self, timeout_s: float, **command: Any) -> dict[str, Any]:
        """Sends a command and returns the reply.

        Raises:
            PeerError: the worker died or takes longer than ``timeout_s``.
        """
        stream = self._process.stdin
        assert stream is not None
        with contextlib.suppress(BrokenPipeError):  # the reply will be its end
            stream.write(json.dumps(command).encode() + b"\n")
            stream.flush()
        return self._reply(timeout_s)

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def _reply(self, timeout_s: float) -> dict[str, Any]:
        stream = self._process.stdout
        assert stream is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(deadline - time.monotonic()):
                    raise PeerError(f"no answer within {timeout_s:.0f} s")
                piece = os.read(stream.fileno(), 1 << 16)
                if not piece:
                    raise PeerError(self._reason())
                self._buffer += piece
        line, self._buffer = self._buffer.split(b"\n", 1)
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _reason(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        return describe_end(status, self._errors.read().decode(errors="replace"))


def describe_end(status: int, errors: str) -> str:
    """Says how a process ended, with the last lines it wrote."""
    end = f"killed by {_signal_name(-status)}" if status < 0 else f"ended with status {status}"
    # Of a traceback only the last line, which is not indented, says what happened.
    told = [line.rstrip() for line in errors.splitlines() if line.strip()]
    lines = [line for line in told if not line.startswith((" ", "Traceback"))]
    return ": ".join([end, *(["; ".join(lines[-REASON_LINES:])] if lines else [])])


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "unknown"
    memory = ", perhaps for want of memory" if number == signal.SIGKILL else ""
    return f"signal {number} ({name}{memory})"


def _python_path() -> str:
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(ROOT), *([inherited] if inherited else [])])
