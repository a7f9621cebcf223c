"""This process's end of the sandbox: a child that answers requests and may die of them.

One child serves all models of a process, and another one what may take long; each is started again
when it dies. Limits are those of a single request, so whoever asks does not notice what others
asked before.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import select
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from edgerun.env import environment_of_child
from edgerun.errors import InputError, MissingDependencyError
from edgerun.forks import in_forked_child

PACKAGES = ("minijinja", "tokenizers")
OPTIONAL_PACKAGES = ("llguidance",)
WORKER = Path(__file__).with_name("worker.py")
# Of glibc, which reads it as a process starts: each thread would reserve 64 MB of address space.
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}
START_S = 30.0
# A machine that is busy with other things takes longer than the processor time that it spends.
WALL_S, WALL_S_PER_CPU_S = 20.0, 4.0
CHUNK_BYTES = 1 << 16
CAN_POLL = hasattr(select, "poll")  # a tenth of a timer's cost; Windows has no such thing


class Sandbox:
    """The child process; replaced when it dies."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._lock = threading.RLock()  # a handler of a signal may come in, and is told to leave
        self._is_asked = False
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False

    def start(self, *modules: str) -> None:
        """Starts the child, unless there is one, without waiting for it.

        Args:
            modules: to import as soon as it runs.

        Raises:
            MissingDependencyError: something that it needs is not installed.
        """
        with self._lock:
            if self._process is None:
                self._start(modules)

    def ask(
        self,
        module: str,
        request: Mapping[str, Any],
        payload: bytes = b"",
        *,
        cpu_s: float,
        memory_bytes: int,
    ) -> dict[str, Any]:
        """Has a module in the child answer a request.

        Args:
            module: its name; its function ``answer`` takes the request and the payload.
            request: anything that JSON can express.
            payload: more of it, as it is.
            cpu_s: processor time that the answer may take.
            memory_bytes: address space that it may take beyond what the child has.

        Returns:
            what the module answers, or ``{"error": <why there is no answer>}``, in which
            ``is_limit`` is true if a limit ended it: on a machine that has less to do, or once
            more, the same request may be answered.

        Raises:
            MissingDependencyError: the child does not start.
            InputError: a handler of a signal asks while its thread waits for an answer.
        """
        limits = {"cpu_us": int(1e6 * cpu_s), "memory_bytes": memory_bytes}
        header = {**request, **limits, "module": module, "payload_bytes": len(payload)}
        message = json.dumps(header).encode() + b"\n" + payload
        with self._lock:
            if self._is_asked:
                raise InputError(
                    "a handler of a signal uses a chat template, a tokenizer or a grammar while "
                    "its thread does: keep there what you need, and use the model afterwards"
                )
            try:
                self._is_asked = True
                self._await_ready()
                answer = self._exchange(message, WALL_S + WALL_S_PER_CPU_S * cpu_s)
            finally:
                self._is_asked = False
            if answer.endswith(b"\n"):
                reply: dict[str, Any] = json.loads(answer)
                return reply
            self.close()
        needs = f"{cpu_s:.3g} s or {memory_bytes >> 20} MB"
        reason = f"it needs more time or memory ({needs}) than is allowed"
        return {"error": reason, "is_limit": True}

    def close(self) -> None:
        """Ends the child, whatever it does; the next request starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def leave(self) -> None:
        """In a forked process: leaves the child to the parent, which goes on asking it."""
        process, self._process = self._process, None
        self._lock, self._is_asked = threading.RLock(), False
        if process is not None:
            process.poll()  # it is no child of this process, so there is nothing to wait for
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def _await_ready(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start(())
        if not self._is_ready:
            self._is_ready = self._exchange(b"", START_S).endswith(b"\n")
            if not self._is_ready:
                self.close()
                raise MissingDependencyError(
                    f"the process for templates and tokenizers ({sys.executable}) does not start"
                )

    def _exchange(self, message: bytes, seconds: float) -> bytes:
        """Writes a message, reads a line; kills the process when that takes too long."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        clock = None if CAN_POLL else threading.Timer(seconds, process.kill)
        try:
            if clock is not None:
                clock.start()
            _write(process.stdin, message)
            if clock is None and not _has_come(process.stdout, seconds):
                process.kill()
            return _read_line(process.stdout)
        except BrokenPipeError:
            return b""
        except BaseException:  # Ctrl-C: the answer would be taken for the next request's
            self.close()
            raise
        finally:
            if clock is not None:
                clock.cancel()

    def _start(self, modules: Sequence[str]) -> None:
        if not sys.executable:
            raise MissingDependencyError(
                "chat templates and tokenizers run in a process of their own, "
                "for which there is no Python executable (sys.executable)"
            )
        setup = {"path": _module_path(), "modules": modules}
        self._is_ready = False
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # a buffer has a lock, on which a process waits forever that is forked then
            env=environment_of_child(ENVIRONMENT),
            start_new_session=True,  # Ctrl-C at the terminal is for the chat, not for the child
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which the first request notices
            _write(self._process.stdin, json.dumps(setup).encode() + b"\n")


def _has_come(stream: IO[bytes], seconds: float) -> bool:
    """Whether there is something to read before the time is over."""
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _write(pipe: IO[bytes], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[pipe.write(rest) :]


def _read_line(pipe: IO[bytes]) -> bytes:
    """Reads up to the end of a line, of which there is no more than one, or of all."""
    parts = [b""]
    while not parts[-1].endswith(b"\n"):
        parts.append(pipe.read(CHUNK_BYTES))
        if not parts[-1]:
            break
    return b"".join(parts)


def _module_path() -> list[str]:
    """Folders in which the child finds what it imports."""
    folders = [Path(__file__).parents[3]]
    for package in (*PACKAGES, *OPTIONAL_PACKAGES):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            folders.append(Path(spec.origin).parents[1])
        elif package in PACKAGES:
            raise MissingDependencyError(f"{package} is not installed: pip install {package}")
    return [str(folder) for folder in dict.fromkeys(folders)]


_SANDBOXES: dict[str, Sandbox] = {}


def sandbox(work: str = "texts") -> Sandbox:
    """The sandbox of this process for some kind of work, which waits for work of its kind alone."""
    shared = _SANDBOXES.get(work)
    if shared is None:
        shared = _SANDBOXES.setdefault(work, fresh := Sandbox())
        if shared is fresh:  # and no other thread's
            atexit.register(shared.close)
            in_forked_child(shared.leave)
    return shared
