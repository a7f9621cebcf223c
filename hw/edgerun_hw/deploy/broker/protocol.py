"""Requests and answers: one line of JSON each, strictly checked.

A request is an object with ``op`` and exactly the fields listed in ``REQUESTS``; after ``chunk``
follow ``size`` bytes. An answer has ``ok``, and on failure ``error`` with ``code`` and ``message``.
Anything else ends the session: a reader that tries to go on after nonsense is a reader to attack.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ProtocolError

MAX_LINE_BYTES = 4096
MAX_CHUNK_BYTES = 256 * 1024
MAX_FILE_BYTES = 64 * 1024 * 1024
REQUEST_S = 120.0
TOO_LONG = "it takes too long: the time for a request or a change is over"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}", re.ASCII)
FILE = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}(\.[a-z]{1,5}){1,2}", re.ASCII)
DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
PERSON = re.compile(r"[A-Za-z0-9_.@-]{1,64}", re.ASCII)

Check = Callable[[Any], bool]


def _text(pattern: re.Pattern[str]) -> Check:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _number(low: int, high: int) -> Check:
    # `type`, not isinstance: true and false are no numbers.
    return lambda value: type(value) is int and low <= value <= high


REQUESTS: Mapping[str, Mapping[str, Check]] = {
    "hello": {"protocol": _number(0, 1000)},
    "status": {},
    "begin": {"application": _text(NAME), "manifest": _text(DIGEST), "by": _text(PERSON)},
    "put": {"file": _text(FILE), "size": _number(1, MAX_FILE_BYTES)},
    "chunk": {"size": _number(1, MAX_CHUNK_BYTES)},
    "seal": {},
    "rollback": {"by": _text(PERSON)},
    "install": {},
    "load": {},
    "verify": {},
    "confirm": {},
    "abort": {},
    "recover": {"by": _text(PERSON)},
}


@dataclass(frozen=True)
class Request:
    """A request that has the right shape; whether it comes at the right time is not known yet."""

    op: str
    fields: Mapping[str, Any]


def parse_request(line: bytes) -> Request:
    """Reads one line, without its newline.

    Raises:
        ProtocolError: it is not one of ``REQUESTS``.
    """
    fields = parse_object(line)
    op = fields.pop("op", None)
    checks = REQUESTS.get(op) if isinstance(op, str) else None
    if checks is None:
        raise ProtocolError("the request names no operation that exists")
    if fields.keys() != checks.keys():
        raise ProtocolError(f"{op} takes the fields {', '.join(checks) or 'none'}")
    for name, check in checks.items():
        if not check(fields[name]):
            raise ProtocolError(f"{op} has an unusable value for {name}")
    return Request(str(op), fields)


def parse_object(data: bytes, limit: int = MAX_LINE_BYTES) -> dict[str, Any]:
    """Reads a JSON object, refusing what JSON readers differ about.

    Raises:
        ProtocolError: not an object; names twice; NaN or infinity; too long, too deep.
    """
    if len(data) > limit:
        raise ProtocolError(f"more than {limit} bytes")
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise ProtocolError("not valid JSON") from None
    if not isinstance(value, dict):
        raise ProtocolError("not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ProtocolError("a name stands twice in an object")
    return result


def _no_constant(name: str) -> Any:
    raise ProtocolError(f"{name} is no JSON")


class EndOfSession(Exception):  # noqa: N818, an event and no failure
    """The other side is gone, or has been silent for too long."""


class Channel:
    """Lines and bytes over two file descriptors.

    Args:
        source: descriptor to read from.
        sink: descriptor to write to.
        patience_s: seconds of silence after which the other side counts as gone.
        request_s: seconds that a request may take to arrive, from its first byte to its last.
    """

    def __init__(
        self, source: int, sink: int, patience_s: float = 60.0, request_s: float = REQUEST_S
    ) -> None:
        self._source, self._sink = source, sink
        self._patience_s, self._request_s = patience_s, request_s
        self._request_ends = self._change_ends = math.inf
        self._buffer = bytearray()

    def limit(self, seconds: float = math.inf) -> None:
        """Sets how long requests are taken from now on, however busy the other side is."""
        self._change_ends = time.monotonic() + seconds

    def read_request(self) -> Request:
        """Waits for a request.

        Raises:
            EndOfSession: end of the stream, or silence.
            ProtocolError: the line is too long, takes too long or is no request; or the time that
                ``limit`` gives is over, even if a request has come already.
        """
        self._request_ends = math.inf
        self._seconds_left()
        while b"\n" not in self._buffer:
            if len(self._buffer) > MAX_LINE_BYTES:
                raise ProtocolError(f"a line has more than {MAX_LINE_BYTES} bytes")
            self._start_clock()
            self._fill()
        self._start_clock()
        line, _, following = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(following)
        return parse_request(line)

    def read_bytes(self, size: int) -> bytes:
        """Waits for ``size`` bytes of the same request, at most ``MAX_CHUNK_BYTES``.

        Raises:
            EndOfSession: end of the stream, or silence.
            ProtocolError: they take too long.
        """
        while len(self._buffer) < size:
            self._fill()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def send(self, answer: Mapping[str, Any]) -> None:
        """Writes an answer.

        Raises:
            EndOfSession: nobody listens any more, or not before ``limit``.
        """
        data = json.dumps(answer, ensure_ascii=True, sort_keys=True).encode() + b"\n"
        try:
            while data:
                seconds = max(0.0, min(self._patience_s, self._change_ends - time.monotonic()))
                # A pipe that is ready takes this much without waiting.
                if not select.select([], [self._sink], [], seconds)[1]:
                    raise EndOfSession
                data = data[os.write(self._sink, data[: select.PIPE_BUF]) :]
        except OSError:
            raise EndOfSession from None

    def _start_clock(self) -> None:
        if self._buffer and self._request_ends == math.inf:
            self._request_ends = time.monotonic() + self._request_s

    def _seconds_left(self) -> float:
        seconds = min(self._request_ends, self._change_ends) - time.monotonic()
        if seconds <= 0:
            raise ProtocolError(TOO_LONG)
        return seconds

    def _fill(self) -> None:
        seconds = self._seconds_left()
        ready, _, _ = select.select([self._source], [], [], min(self._patience_s, seconds))
        if not ready and seconds < self._patience_s:
            raise ProtocolError(TOO_LONG)
        try:
            data = os.read(self._source, 65536) if ready else b""
        except OSError:
            data = b""
        if not data:
            raise EndOfSession
        self._buffer += data
