"""Connections that end: those that send nothing, send no end, or do not read what was sent."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_S = 30  # for which a connection may stay without a whole head of a request
SEND_S = 120.0  # for which a caller may leave unread what was sent
MOST_WAITING_BYTES = 1 << 16  # of further requests, while one is answered
MOST_CONNECTIONS = 4096
BACKLOG = 128  # connections that are taken at once, before the first of them is looked at
OTHER_FILES = 64  # that a model, its sandbox and libraries open


class Connection(H11Protocol):
    """One connection, with the limits that uvicorn's has not.

    uvicorn itself waits for the first request without end, and for the rest of each, and for
    callers who do not read. While a further request waits it does not look at the connection, so it
    would not see that the caller has gone.
    """

    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a connection, or ends it where there are too many."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.abort()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        """Takes what came; goes on reading where requests wait, for the end may come behind."""
        super().data_received(data)
        self._watch()
        if self._is_answering() and self.conn.their_state is h11.DONE:
            waiting, _ = self.conn.trailing_data
            if len(waiting) > MOST_WAITING_BYTES:
                self.transport.abort()
            elif waiting:
                self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets what was waited for."""
        super().connection_lost(exc)
        _cancel(self._waiting)
        _cancel(self._unread)

    def on_response_complete(self) -> None:
        """Closes a connection even if the end of the answer is never read."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._close_unread()

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection, also if the last answer is never read."""
        super().timeout_keep_alive_handler()
        self._close_unread()

    def pause_writing(self) -> None:
        """More is unread than there is to be."""
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(SEND_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The caller goes on reading."""
        _cancel(self._unread)
        self._unread = None
        super().resume_writing()

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _watch(self) -> None:
        """Waits for a request, a while; what is no whole head makes that while no longer."""
        if self._is_answering():
            _cancel(self._waiting)
            self._waiting = None
        elif self._waiting is None:
            self._waiting = self.loop.call_later(IDLE_S, self.timeout_keep_alive_handler)

    def _close_unread(self) -> None:
        if self._unread is None and self.transport.get_write_buffer_size():
            self._unread = self.loop.call_later(SEND_S, self.transport.abort)


def most_connections() -> int:
    """As many as the files that this process may open leave room for.

    Without files no further connection could be taken or refused, and no sandbox started.
    """
    try:
        import resource
    except ImportError:  # of systems that do not count files like that
        return MOST_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(BACKLOG // 8, min(MOST_CONNECTIONS, files - BACKLOG - OTHER_FILES))


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
