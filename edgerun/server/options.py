"""What a server is told when it starts, checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edgerun.errors import InputError
from edgerun.server.hosts import host_and_port, is_loopback
from edgerun.values import shown

MAX_QUEUE = 10_000
SHORTEST_KEY = 16
PRINTABLE = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class ServerOptions:
    """Where a server listens, and to whom.

    Attributes:
        host: address to listen at, a name or a number.
        port: to listen at; 0 takes one that is free.
        key: that callers have to show; None asks for none.
        origins: web pages that may call, as browsers name them: ``https://example.org``.
        hosts: names by which callers may call this machine, besides its own.
        name: of the model; None takes that of its folder.
        queue: replies that may wait while as many run as the model was loaded for.

    Raises:
        InputError: one is unusable, or other machines could call without a key.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    key: str | None = None
    origins: Sequence[str] = ()
    hosts: Sequence[str] = ()
    name: str | None = None
    queue: int = 64

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InputError(f"the port is {self.port}; expected 0 to 65535")
        if not 0 <= self.queue <= MAX_QUEUE:
            raise InputError(f"queue is {self.queue}; expected 0 to {MAX_QUEUE} places")
        if self.name is not None and not PRINTABLE.fullmatch(self.name):
            raise InputError(f"the model's name is {shown(self.name)}; expected letters, no spaces")
        self._check_key()
        for origin in self.origins:
            scheme, separator, rest = origin.partition("://")
            if scheme not in ("http", "https") or not separator or host_and_port(rest) is None:
                raise InputError(
                    f"the origin {shown(origin)} is none; expected one such as https://example.org"
                )
        for host in self.hosts:
            if host_and_port(host) != (host.lower(), None):
                raise InputError(f"{shown(host)} is no name of a host; expected one without a port")

    def _check_key(self) -> None:
        if self.key is None:
            if not is_loopback(self.host):
                raise InputError(
                    f"{self.host} can be reached from other machines, so callers need a key: put "
                    f"one of at least {SHORTEST_KEY} characters into a file for --api-key-file"
                )
        elif len(self.key) < SHORTEST_KEY or not PRINTABLE.fullmatch(self.key):
            raise InputError(
                f"the key has {len(self.key)} characters; expected at least {SHORTEST_KEY} "
                "printable ones of ASCII without spaces"
            )
