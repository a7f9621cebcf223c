"""The driver in another process, seen from edgerun's: a ``port.Overlay`` that sends messages.

What needs no answer is posted, and the worker fetches the results of what was waited for, so that
a matrix costs one round trip.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

import edgerun
from edgerun_hw.board_side import messages as msg
from edgerun_hw.board_side.devices import DEVICES
from edgerun_hw.board_side.memory_file import map_file
from edgerun_hw.overlay.command import Capabilities, Command, check_command
from edgerun_hw.overlay.errors import (
    CommandError,
    OverlayError,
    OverlayTimeoutError,
    WorkerError,
    WrongOverlayError,
)
from edgerun_hw.overlay.port import Counters, Ticket

START_TIMEOUT_S = 120.0
# Longer than any request takes, device resets and large copies included.
REPLY_TIMEOUT_S = 60.0
FAREWELL_S = 5.0
# A killed process is gone at once, unless the machine is busy or a device holds it in the kernel.
DEATH_S = 60.0
LOG_BYTES = 2000
# Only the packages named: whatever else lies beside them belongs to another environment.
BOOT = """
import importlib.util, sys
module, file, device, *folders = sys.argv[1:]
for folder in folders:
    name = folder.rpartition("/")[2]
    spec = importlib.util.spec_from_file_location(
        name, folder + "/__init__.py", submodule_search_locations=[folder])
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
sys.exit(importlib.import_module(module).main([file, device]))
"""
PACKAGE = Path(__file__).resolve().parents[1]
# What opens boards needs nothing of edgerun; simulations do.
WORKERS: dict[str, tuple[str, tuple[Path, ...]]] = {
    kind: ("edgerun_hw.board_side.worker", (PACKAGE,)) for kind in DEVICES
}
SIMULATION = (
    "edgerun_hw.simulate.board.worker",
    (PACKAGE, Path(edgerun.__file__).resolve().parent),
)
ERRORS: dict[str, type[Exception]] = {
    "overlay": OverlayError,
    "wrong": WrongOverlayError,
    "timeout": OverlayTimeoutError,
    "memory": MemoryError,
    "worker": WorkerError,
}

M = TypeVar("M", bound=msg.Message)


class WorkerBuffer:
    """Device memory, and this process's copy of it in a memory file shared with the worker."""

    def __init__(self, client: WorkerClient, nbytes: int) -> None:
        self._client, self.nbytes = client, nbytes
        self._live = True
        # The last command that writes here, until its results were asked for.
        self.written_by: Ticket | None = None
        # Commands have written behind its beginning, which does not come with their completion.
        self.written_inside = False
        file = os.memfd_create("edgerun-buffer", os.MFD_CLOEXEC)
        try:
            os.ftruncate(file, nbytes)
            self._array: NDArray[np.uint8] | None = map_file(file, nbytes)
            self._number, self._address = client.request_buffer(self, nbytes, file)
        finally:
            os.close(file)

    @property
    def array(self) -> NDArray[np.uint8]:
        """The copy, uint8 [nbytes]."""
        if self._array is None:
            raise ValueError("this buffer was freed or handed over")
        return self._array

    @property
    def address(self) -> int:
        """What the device calls the first byte."""
        return self._address

    def flush(self) -> None:
        """Copies everything to the device."""
        self._client.post(msg.Flush(self._number_in_use()))

    def hand_over(self) -> None:
        """Copies everything to the device, for good: the copy is let go."""
        self._client.post(msg.Flush(self._number_in_use(), last=True))
        self._array = None

    def invalidate(self) -> None:
        """Copies everything from the device, unless that came with the command's completion."""
        number, command = self._number_in_use(), self.written_by
        came = command is not None and self._client.is_complete(command)
        if self.written_inside or not came:
            self._client.call(msg.Invalidate(number), msg.Done)
        self.written_by, self.written_inside = None, False

    def free(self) -> None:
        """Frees the device's memory, and the copy once no array refers to it."""
        if self._live:
            self._live, self._array = False, None
            self._client.free_buffer(self._number, self._address)

    def _number_in_use(self) -> int:
        if self._array is None:
            raise ValueError("this buffer was freed or handed over")
        return self._number


class WorkerClient:
    """Starts a worker and speaks for it; satisfies ``port.Overlay``.

    Not for use by several threads at once. When the worker dies, hangs or talks nonsense, it is
    ended, and every call raises ``WorkerError`` from then on.

    Args:
        python: the interpreter to run it with.
        device: what it opens: a name of ``board_side/devices.py`` or
            ``simulate/board/worker.py``, a colon and an argument.
        start_timeout_s: for starting and loading the bitstream.
        reply_timeout_s: for one reply.

    Raises:
        WorkerError: it does not start.
        OverlayError: it finds no overlay that the driver can drive.
    """

    def __init__(
        self,
        python: Path,
        device: str,
        *,
        start_timeout_s: float = START_TIMEOUT_S,
        reply_timeout_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        self._dead: WorkerError | None = None
        self._epoch = self._submitted = self._completed = self._number = 0
        self._by_address: weakref.WeakValueDictionary[int, WorkerBuffer] = (
            weakref.WeakValueDictionary()
        )
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `_end`
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = _start(python, device, theirs, self._log)
            except BaseException:
                self._connection.close()
                self._log.close()
                raise
        self._finalizer = weakref.finalize(self, _end, self._process, self._connection, self._log)
        self._connection.settimeout(start_timeout_s)
        try:
            welcome = self.call(msg.Hello(msg.PROTOCOL), msg.Welcome)
        except BaseException:
            self.close()
            raise
        self._connection.settimeout(reply_timeout_s)
        self._capabilities = welcome.capabilities

    @property
    def capabilities(self) -> Capabilities:
        """What the overlay can do."""
        return self._capabilities

    @property
    def pid(self) -> int:
        """The worker's process."""
        return self._process.pid

    def allocate(self, nbytes: int) -> WorkerBuffer:
        """Allocates memory that the overlay can reach.

        Raises:
            MemoryError: there is not that much.
        """
        if not 1 <= nbytes <= msg.MAX_BUFFER_BYTES:
            raise ValueError(f"a buffer has 1 to {msg.MAX_BUFFER_BYTES} bytes, not {nbytes}")
        return WorkerBuffer(self, nbytes)

    def submit(self, command: Command) -> Ticket:
        """Queues a command; see ``driver.Tlmm.submit``. Errors of the overlay come with ``wait``.

        Raises:
            ValueError: the overlay cannot run it.
        """
        return self.submit_all([command])

    def submit_all(self, commands: Sequence[Command]) -> Ticket:
        """Queues commands in order; returns the last one's ticket.

        Raises:
            ValueError: there are none, or the overlay cannot run one of them.
        """
        if not commands:
            raise ValueError("there are no commands to submit")
        for command in commands:
            check_command(command, self._capabilities)
        for start in range(0, len(commands), msg.MAX_COMMANDS):
            self.post(msg.Submit(tuple(commands[start : start + msg.MAX_COMMANDS])))
        for command in commands:
            ticket = Ticket(self._epoch, self._submitted)
            self._submitted += 1
            results = self._by_address.get(command.y)
            if results is not None:
                results.written_by = ticket
            else:
                self._mark_written_inside(command.y)
        return ticket

    def _mark_written_inside(self, address: int) -> None:
        for start, buffer in self._by_address.items():
            if start < address < start + buffer.nbytes:
                buffer.written_inside = True

    def wait(self, ticket: Ticket) -> None:
        """Returns when the command of ``ticket``, and so all before it, is complete.

        Raises:
            CommandError: it failed, an earlier one did, or a reset dropped it.
            OverlayTimeoutError: no progress.
            WorkerError: the worker is gone.
        """
        if ticket.epoch != self._epoch:
            raise CommandError(f"command {ticket.number} was dropped by a reset", tag=ticket.number)
        if ticket.number >= self._submitted:
            raise ValueError(f"command {ticket.number} was not submitted to this overlay")
        if ticket.number < self._completed:
            return
        while isinstance(self.call(msg.Wait(ticket.number), msg.Message), msg.Pending):
            pass
        self._completed = ticket.number + 1

    def reset(self) -> None:
        """Drops all commands and brings the overlay into its first state.

        Raises:
            OverlayTimeoutError: it does not come out of reset.
            WorkerError: the worker is gone; only a new client helps.
        """
        self._epoch += 1
        self._submitted = self._completed = 0
        self.call(msg.Reset(), msg.Done)

    def counters(self) -> Counters:
        """Reads the counters."""
        return self.call(msg.ReadCounters(), msg.Counted).counters

    def close(self) -> None:
        """Ends the worker; a second call does nothing."""
        self._dead = self._dead or WorkerError("the overlay's worker process was closed")
        self._finalizer()

    # For buffers.

    def request_buffer(self, buffer: WorkerBuffer, nbytes: int, file: int) -> tuple[int, int]:
        """Has the worker allocate; returns the buffer's number and device address."""
        reply = self.call(msg.Allocate(nbytes), msg.Allocated, [file])
        self._by_address[reply.address] = buffer
        return reply.buffer, reply.address

    def is_complete(self, ticket: Ticket) -> bool:
        """Whether its command was waited for."""
        return ticket.epoch == self._epoch and ticket.number < self._completed

    def free_buffer(self, number: int, address: int) -> None:
        """Has the worker free a buffer, unless it is gone anyway."""
        self._by_address.pop(address, None)
        if self._dead is None:
            self.post(msg.Free(number))

    def post(self, message: msg.Message, files: Sequence[int] = ()) -> None:
        """Sends a message."""
        if self._dead is not None:
            raise self._dead
        self._number = (self._number + 1) % msg.NUMBERS
        packet = msg.encode(message, self._number)
        try:
            socket.send_fds(self._connection, [packet], list(files))
        except TimeoutError:
            self._give_up("takes no requests any more")
        except OSError:
            self._give_up("is gone")

    def call(self, message: msg.Message, expected: type[M], files: Sequence[int] = ()) -> M:
        """Sends a message and returns the reply."""
        self.post(message, files)
        # A reply to an earlier number is to a call that was interrupted, by Ctrl-C for one.
        number, reply = self._receive()
        while number != self._number:
            number, reply = self._receive()
        if isinstance(reply, msg.Failed):
            self._raise(reply)
        if not isinstance(reply, expected):
            self._give_up(f"answers {type(message).__name__} with {type(reply).__name__}")
        return reply

    def _receive(self) -> tuple[int, msg.Message]:
        try:
            packet = self._connection.recv(msg.MAX_MESSAGE_BYTES + 1)
        except TimeoutError:
            self._give_up(f"did not answer for {self._connection.gettimeout():g} s")
        except OSError:
            packet = b""
        if not packet:
            self._give_up("is gone")
        try:
            return msg.decode(packet)
        except msg.ProtocolError as error:
            self._give_up(f"talks nonsense ({error})")

    def _raise(self, failed: msg.Failed) -> None:
        kind = msg.ERROR_KINDS[failed.error]
        if kind == "worker":
            self._give_up(f"gave up: {failed.text}")
        if kind == "command":
            raise CommandError(failed.text, None if failed.tag < 0 else failed.tag, failed.flags)
        raise ERRORS[kind](failed.text)

    def _give_up(self, what: str) -> NoReturn:
        _stop(self._process, self._connection)
        last = _last_line(self._log)
        self._finalizer()
        status = self._process.returncode
        how = f"; it ended with status {status}" if status and what == "is gone" else ""
        last_words = f"; its last words: {last}" if last else ""
        self._dead = WorkerError(f"the overlay's worker process {what}{how}{last_words}")
        raise self._dead


def _start(
    python: Path, device: str, connection: socket.socket, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    module, folders = WORKERS.get(device.partition(":")[0], SIMULATION)
    file = connection.fileno()
    try:
        return subprocess.Popen(
            [str(python), "-I", "-c", BOOT, module, str(file), device, *map(str, folders)],
            pass_fds=[file],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    except OSError as error:
        # What is missing need not be the interpreter: a process also wants os.devnull.
        what = error.filename if error.filename not in (None, str(python)) else "it"
        raise WorkerError(
            f"the interpreter {python} cannot be run ({what}: {error.strerror}): "
            "set EDGERUN_PYNQ_PYTHON to the Python that has pynq"
        ) from error


def _end(process: subprocess.Popen[bytes], connection: socket.socket, log: IO[bytes]) -> None:
    _stop(process, connection)
    log.close()


def _stop(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    """Closing the socket tells the worker to reset the overlay and to leave; then it must."""
    connection.close()
    asks = ((None, FAREWELL_S), (process.terminate, FAREWELL_S), (process.kill, DEATH_S))
    for ask, patience_s in asks:
        if ask is not None:
            ask()
        try:
            process.wait(patience_s)
            return
        except subprocess.TimeoutExpired:
            continue


def _last_line(log: IO[bytes]) -> str:
    end = log.seek(0, os.SEEK_END)
    log.seek(max(0, end - LOG_BYTES))
    lines = log.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
