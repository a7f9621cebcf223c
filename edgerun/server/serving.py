"""Listens, and ends in order when it is told to."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn

from edgerun.errors import InputError
from edgerun.server.app import Server
from edgerun.server.connections import BACKLOG, IDLE_S, Connection

ENDING_S = 10  # for which callers may still read what was sent


def listen(host: str, port: int) -> socket.socket:
    """Opens a socket for a server.

    Raises:
        InputError: there is no such address, or it is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        errno = getattr(error, "errno", None)
        reason = os.strerror(errno) if errno and errno > 0 else str(error)  # of names errno is < 0
        raise InputError(
            f"cannot listen at {host} port {port}: {reason}; another one is --port N"
        ) from error
    # Connections inherit it. Without it each piece of a stream waits for the caller to confirm the
    # one before, 40 ms; asyncio sets it on sockets of its own alone.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def address_of(listening: socket.socket) -> str:
    """Where callers find a server on this machine."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(
    server: Server, listening: socket.socket, ready: Callable[[Callable[[], None]], None]
) -> None:
    """Answers until Ctrl-C, SIGTERM or a call of ``stop``.

    Replies under way then end, and their callers are told so. A second Ctrl-C waits for nobody.

    Args:
        server: what answers.
        listening: is closed at the end.
        ready: called with ``stop``, a function for any thread, when answers begin.
    """
    config = uvicorn.Config(
        server.app,
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",  # answers tell callers what is wrong, and its hints are of packages
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=ENDING_S,
    )
    asyncio.run(_Uvicorn(config, server, ready).serve([listening]))


class _Uvicorn(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        server: Server,
        ready: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__(config)
        self._edgerun, self._ready = server, ready
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._ready(lambda: _soon(loop, self._end))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Does not raise the signal once more when all is done, as uvicorn's own does.

        It comes in the middle of whatever the loop does, a reply that is being begun for example.
        """
        self.force_exit = self.should_exit
        self.should_exit = True
        if self._loop is not None:
            _soon(self._loop, self._end)

    def _end(self) -> None:
        self.should_exit = True
        if self.started:
            self._edgerun.replies.stop()


def _soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # it has ended already
        loop.call_soon_threadsafe(function)
