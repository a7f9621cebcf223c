"""The driver in a process of its own: carries out the messages of one client until it leaves.

pynq pins numpy below 2 and one grpcio, so it cannot live where edgerun does. edgerun starts this
file with the interpreter that has pynq (``devices/client.py``), holding the other end of a socket
pair that nobody else can reach. Registers and DMA memory stay here; of every buffer the client has
a copy in a memory file, and ``flush`` and ``invalidate`` copy between the two. A copy, because what
pynq allocates belongs to this process's XRT context and cannot be mapped elsewhere in a supported
way, and because operands are small beside the weights, which are copied once. Memory files and
the socket vanish with the processes, however they end.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.board_side import messages as msg
from edgerun_hw.board_side.devices import DEVICES
from edgerun_hw.board_side.memory_file import map_file
from edgerun_hw.overlay.command import Command, check_command, sizes
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import (
    CommandError,
    OverlayError,
    OverlayTimeoutError,
    WrongOverlayError,
)
from edgerun_hw.overlay.port import Buffer, Ticket

# How long a WAIT may take before it is answered with PENDING.
WAIT_S = 0.5
# Between looks at a queue with room, while commands are still to be queued.
FEED_S = 0.0002
MAX_BUFFERS = 1 << 16
_DONE = msg.Done()


class _Shared:
    """A buffer of the device, and the memory file that the client sees."""

    def __init__(self, buffer: Buffer, copy: NDArray[np.uint8]) -> None:
        self.buffer = buffer
        self.live = True
        self._copy: NDArray[np.uint8] | None = copy

    def flush(self, last: bool) -> None:
        self.buffer.array[...] = self._client_side
        self.buffer.flush()
        if last:
            self._copy = None

    def invalidate(self) -> None:
        copy = self._client_side
        self.buffer.invalidate()
        copy[...] = self.buffer.array

    def fetch(self, nbytes: int) -> None:
        """Copies the first ``nbytes`` from the device, unless the buffer was freed meanwhile."""
        if self.live:
            copy = self._client_side
            self.buffer.invalidate()
            copy[:nbytes] = self.buffer.array[:nbytes]

    def free(self) -> None:
        self.live = False
        self._copy = None
        self.buffer.free()

    @property
    def _client_side(self) -> NDArray[np.uint8]:
        if self._copy is None:
            raise msg.ProtocolError("the client has handed this buffer over")
        return self._copy


class Worker:
    """Serves one client.

    Args:
        overlay: the driver; closed at the end.
        connection: the worker's end of the socket pair.
    """

    def __init__(self, overlay: Tlmm, connection: socket.socket) -> None:
        self._overlay = overlay
        self._connection = connection
        self._buffers: dict[int, _Shared] = {}
        self._next_buffer = 0
        self._by_address: dict[int, _Shared] = {}
        self._backlog: deque[Command] = deque()
        # Results that the client does not have yet: number of the command, where, how many bytes.
        self._results: deque[tuple[int, _Shared, int]] = deque()
        self._last = Ticket(0, -1)
        self._posted = 0
        self._broken: msg.Failed | None = None
        self._files: list[int] = []
        self._number = 0

    def serve(self) -> None:
        """Carries out requests until the client leaves or talks nonsense."""
        try:
            while self._serve_one():
                pass
        finally:
            self._end()

    def _serve_one(self) -> bool:
        if not self._await_request():
            return True
        packet, files, flags, _ = socket.recv_fds(self._connection, msg.MAX_MESSAGE_BYTES, 4)
        self._files = files
        try:
            if not packet:
                return False
            if flags & socket.MSG_TRUNC:
                raise msg.ProtocolError("a message is too long")
            self._number, request = msg.decode(packet)
            if isinstance(request, msg.Bye):
                return False
            self._answer(request)
        except msg.ProtocolError as error:
            # Nothing that follows can be trusted to be what it seems.
            self._send(_failed("worker", str(error)))
            return False
        finally:
            for file in files:
                os.close(file)
        return True

    def _await_request(self) -> bool:
        """Waits for a request, feeding the queue meanwhile; False: look again."""
        if not self._backlog:
            return True
        ready, _, _ = select.select([self._connection], [], [], FEED_S)
        self._guard(self._feed)
        return bool(ready)

    def _answer(self, request: msg.Message) -> None:
        handler = _HANDLERS.get(type(request))
        if handler is None:
            raise msg.ProtocolError(f"{type(request).__name__} is no request")
        if self._broken is None or isinstance(request, (msg.Free, msg.Reset)):
            reply = self._guard(lambda: handler(self, request))
        if not isinstance(request, msg.POSTED):
            self._send(self._broken or reply)

    def _guard(self, action: Callable[[], msg.Message]) -> msg.Message:
        """Runs ``action``; an error of the device is the answer to all requests until a reset."""
        try:
            return action()
        except msg.ProtocolError:
            raise
        except MemoryError as error:
            return _describe(error)
        except Exception as error:  # what a device's own code raises is not known here
            self._backlog.clear()
            self._broken = self._broken or _describe(error)
            return self._broken

    def _send(self, reply: msg.Message) -> None:
        self._connection.send(msg.encode(reply, self._number))

    # Requests.

    def _hello(self, request: msg.Hello) -> msg.Message:
        if request.protocol != msg.PROTOCOL:
            raise msg.ProtocolError(
                f"the client speaks protocol {request.protocol}, this worker {msg.PROTOCOL}"
            )
        return msg.Welcome(self._overlay.capabilities)

    def _allocate(self, request: msg.Allocate) -> msg.Message:
        if len(self._files) != 1 or os.fstat(self._files[0]).st_size < request.nbytes:
            raise msg.ProtocolError("Allocate comes with a memory file of at least its size")
        if not 1 <= request.nbytes <= msg.MAX_BUFFER_BYTES or len(self._buffers) >= MAX_BUFFERS:
            raise msg.ProtocolError(f"no buffer can have {request.nbytes} bytes")
        copy = map_file(self._files[0], request.nbytes)  # first: if this fails nothing is lost
        buffer = self._overlay.allocate(request.nbytes)
        shared = _Shared(buffer, copy)
        self._buffers[self._next_buffer] = self._by_address[buffer.address] = shared
        self._next_buffer += 1
        return msg.Allocated(self._next_buffer - 1, buffer.address)

    def _free(self, request: msg.Free) -> msg.Message:
        shared = self._buffer(request.buffer)
        del self._buffers[request.buffer], self._by_address[shared.buffer.address]
        shared.free()
        return _DONE

    def _flush(self, request: msg.Flush) -> msg.Message:
        self._buffer(request.buffer).flush(request.last)
        return _DONE

    def _invalidate(self, request: msg.Invalidate) -> msg.Message:
        self._buffer(request.buffer).invalidate()
        return _DONE

    def _submit(self, request: msg.Submit) -> msg.Message:
        for command in request.commands:
            try:
                check_command(command, self._overlay.capabilities)
            except ValueError as error:
                raise msg.ProtocolError(str(error)) from error
            self._note_results(command)
            self._posted += 1
        self._backlog.extend(request.commands)
        self._feed()
        return _DONE

    def _wait(self, request: msg.Wait) -> msg.Message:
        if request.number >= self._posted:
            raise msg.ProtocolError(f"command {request.number} was not submitted")
        until = time.monotonic() + WAIT_S
        while self._broken is None:
            self._feed()
            ticket = Ticket(self._last.epoch, min(request.number, self._last.number))
            if self._overlay.poll(ticket) and ticket.number == request.number:
                self._fetch_results(request.number)
                return _DONE
            if time.monotonic() >= until:
                break
        return msg.Pending()

    def _note_results(self, command: Command) -> None:
        shared = self._by_address.get(command.y)
        if shared is not None:
            size = sizes(command, self._overlay.capabilities.rows_per_beat).y
            self._results.append((self._posted, shared, size))

    def _fetch_results(self, number: int) -> None:
        """Saves the client the round trip of an `Invalidate` after its `Wait`."""
        while self._results and self._results[0][0] <= number:
            _, shared, nbytes = self._results.popleft()
            shared.fetch(nbytes)

    def _reset(self, request: msg.Reset) -> msg.Message:
        self._backlog.clear()
        self._results.clear()
        self._last = Ticket(0, -1)
        self._posted = 0
        self._broken = None
        self._overlay.reset()
        return _DONE

    def _counters(self, request: msg.ReadCounters) -> msg.Message:
        return msg.Counted(self._overlay.counters())

    def _buffer(self, number: int) -> _Shared:
        if number not in self._buffers:
            raise msg.ProtocolError(f"there is no buffer {number}")
        return self._buffers[number]

    def _feed(self) -> msg.Message:
        """Queues what was posted, as long as that needs no waiting."""
        while self._backlog and self._overlay.has_room():
            self._last = self._overlay.submit(self._backlog.popleft())
        return _DONE

    def _end(self) -> None:
        # The overlay must not write to memory that is about to be somebody else's.
        with contextlib.suppress(Exception):
            self._overlay.reset()
        for shared in self._buffers.values():
            shared.free()
        self._overlay.close()


_HANDLERS: dict[type[msg.Message], Callable[..., msg.Message]] = {
    msg.Hello: Worker._hello,
    msg.Allocate: Worker._allocate,
    msg.Free: Worker._free,
    msg.Flush: Worker._flush,
    msg.Invalidate: Worker._invalidate,
    msg.Submit: Worker._submit,
    msg.Wait: Worker._wait,
    msg.Reset: Worker._reset,
    msg.ReadCounters: Worker._counters,
}
# Looked through in order: the first that fits names the error.
_ERRORS: dict[type[Exception], str] = {
    WrongOverlayError: "wrong",
    CommandError: "command",
    OverlayTimeoutError: "timeout",
    OverlayError: "overlay",
    MemoryError: "memory",
}


def _describe(error: Exception) -> msg.Failed:
    kind = next((name for base, name in _ERRORS.items() if isinstance(error, base)), None)
    tag = getattr(error, "tag", None)
    if kind is None:
        return _failed("overlay", f"the device failed: {type(error).__name__}: {error}")
    return _failed(kind, str(error), -1 if tag is None else tag, getattr(error, "flags", ()))


def _failed(kind: str, text: str, tag: int = -1, flags: tuple[str, ...] = ()) -> msg.Failed:
    return msg.Failed(msg.ERROR_KINDS.index(kind), tag, flags, text)


Devices: TypeAlias = Mapping[str, Callable[[str], Tlmm]]


def main(arguments: Sequence[str], devices: Devices = DEVICES) -> int:
    """Runs a worker.

    Args:
        arguments: the number of its socket, and the device, as in ``pynq:/lib/edgerun-tlmm.bit``.
        devices: what can be opened: functions of what follows the colon, by name.
    """
    file, device = arguments
    # Ctrl-C goes to every process of the terminal; the client decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with socket.socket(fileno=int(file)) as connection:
        try:
            overlay = _open_device(device, devices)
        except ImportError as error:
            return _refuse(connection, _failed("worker", f"{sys.executable}: {error}"))
        except Exception as error:
            return _refuse(connection, _describe(error))
        Worker(overlay, connection).serve()
    return 0


def _open_device(name: str, devices: Devices) -> Tlmm:
    kind, _, argument = name.partition(":")
    if kind not in devices:
        raise WrongOverlayError(f"a worker has no device {kind!r}: there are {', '.join(devices)}")
    return devices[kind](argument)


def _refuse(connection: socket.socket, failed: msg.Failed) -> int:
    """Answers the first request with what is wrong; returns the exit status."""
    number, _ = msg.decode(connection.recv(msg.MAX_MESSAGE_BYTES))
    connection.send(msg.encode(failed, number))
    return 1
