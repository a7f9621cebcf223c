"""Who is called, and by which page: the headers ``Host`` and ``Origin``.

A page in a browser can make its own name mean this machine's address, and then call what only
listens to this machine as if that were the page's own server. It has to say that name in ``Host``,
though. So names are those that are expected; addresses in numbers cannot be feigned like that.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection

TARGET = re.compile(r"https?://([^/]*)(/.*)?", re.ASCII | re.DOTALL | re.IGNORECASE)
NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*", re.ASCII)


def host_and_port(text: str) -> tuple[str, int | None] | None:
    """Splits ``name:port``; the name in small letters, an IPv6 address without brackets.

    Returns:
        None where it is neither a name nor an address.
    """
    match = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?", text.lower(), re.ASCII)
    if match is None or (match[2] is not None and int(match[2]) > 65535):
        return None
    host = match[1].strip("[]")
    if _address(host) is None and not NAME.fullmatch(host):
        return None
    return host, None if match[2] is None else int(match[2])


def split_target(target: str) -> tuple[str | None, str]:
    """Splits what a request is for, ``http://name:port/path``, into the host and its path.

    Most callers send the path alone, and the host in a header; servers take both (RFC 9112, 3.2.2).

    Returns:
        None in place of the host where there is the path alone.
    """
    match = TARGET.fullmatch(target)
    return (None, target) if match is None else (match[1], match[2] or "/")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address, or what a name is the name of."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


class Hosts:
    """What callers may call this machine."""

    def __init__(self, bound: str, names: Collection[str] = ()) -> None:
        """Takes the address that is listened at, and names that are allowed besides."""
        self._only_loopback = is_loopback(bound)
        own = () if self._only_loopback else (bound, socket.gethostname(), socket.getfqdn())
        self._names = frozenset(name.lower() for name in ("localhost", *own, *names))

    def allow(self, header: str) -> bool:
        """Whether this is a ``Host`` of this machine, whatever its port."""
        parts = host_and_port(header)
        if parts is None:
            return False
        host, _ = parts
        if _address(host) is None:
            return host in self._names
        return is_loopback(host) or not self._only_loopback or host in self._names


def is_same_origin(origin: str, host: str) -> bool:
    """Whether a page came from the server that it calls."""
    scheme, _, rest = origin.lower().partition("://")
    default = {"http": 80, "https": 443}.get(scheme)
    page, server = host_and_port(rest), host_and_port(host)
    if default is None or page is None or server is None:
        return False
    return (page[0], page[1] or default) == (server[0], server[1] or default)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
