"""Connections of callers who send nothing, too much, or do not read."""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgerun.llm.llm import LLM
from edgerun.server import connections
from tests.server.served import CHAT, HELLO, TEXT, Paced, Served, served, until
from tests.support import fakes

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextmanager
def connected(client: Served) -> Iterator[socket.socket]:
    address = (client.base_url.host, client.base_url.port or 80)
    with socket.create_connection(address, timeout=10) as connection:
        yield connection


def request(path: str, fields: dict[str, Any]) -> bytes:
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def is_over(connection: socket.socket) -> bool:
    """Whether the server ended it; waits for that."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    ("first", "next_"),
    [
        (b"", b""),
        (b"GET /health HT", b""),
        (b"GET /health HTTP/1.1\r\n", b"A: b\r\n"),
        (HEALTH, b""),
        (HEALTH + b"GET /", b"x"),
        # Answered at once, while the body has no end.
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n", b"x"),
    ],
)
def test_who_asks_for_nothing_is_let_go(
    monkeypatch: pytest.MonkeyPatch, first: bytes, next_: bytes
) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.15)
    monkeypatch.setattr("edgerun.server.serving.IDLE_S", 0.15)
    with served() as client, connected(client) as connection:
        connection.sendall(first)
        connection.settimeout(0.1)
        end = time.monotonic() + 5
        while not is_over(connection):
            assert time.monotonic() < end
            connection.sendall(next_)


def test_who_takes_long_to_be_answered_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.1)
    executable = Paced()
    with served(LLM(fakes.fake_model(executable))) as client, connected(client) as connection:
        connection.sendall(request(TEXT, {"prompt": "a", "max_tokens": 1}))
        until(lambda: client.server.replies.under_way == 1)
        time.sleep(0.4)
        executable.let()
        assert b" 200 " in connection.recv(4096)


@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"])
def test_an_answer_that_nobody_reads_does_not_stay(
    monkeypatch: pytest.MonkeyPatch, header: bytes, is_short: bool
) -> None:
    """It is whole, so the server has no more to send, and waits for the caller alone."""
    monkeypatch.setattr(connections, "SEND_S", 0.2)
    if is_short:  # what is left of an answer does not count as too much by itself
        monkeypatch.setattr(connections.Connection, "pause_writing", H11Protocol.pause_writing)
        monkeypatch.setattr("edgerun.server.serving.IDLE_S", 0.2)
    with served() as client, connected(client) as connection:
        monkeypatch.setattr(client.server.metrics, "text", lambda: b"x" * (8 << 20))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n")
        time.sleep(0.7)
        came = 0
        with suppress(ConnectionResetError):
            while piece := connection.recv(1 << 20):
                came += len(piece)
        assert came < 8 << 20


def test_requests_may_wait_behind_one_another(client: Served) -> None:
    with connected(client) as connection:
        connection.sendall(request(TEXT, {"prompt": "a", "max_tokens": 5}) + HEALTH * 3)
        came = b""
        while came.count(b'{"status":"ok"}') < 3:
            piece = connection.recv(4096)
            assert piece
            came += piece
    assert came.index(b"text_completion") < came.index(b'{"status":"ok"}')


@pytest.mark.parametrize("more", [HEALTH, b"\r\n", HEALTH * 2000])
def test_who_goes_away_behind_further_requests_is_missed(more: bytes) -> None:
    executable = Paced()
    with served(LLM(fakes.fake_model(executable))) as client:
        with connected(client) as connection:
            connection.sendall(request(CHAT, {"messages": HELLO}))
            until(lambda: client.server.replies.under_way == 1)
            connection.sendall(more)
            time.sleep(0.1)
        until(lambda: executable.let(1) or client.server.replies.under_way == 0)
        assert len(executable.rows) < 200  # of 480 tokens that there is room for


def test_requests_without_end_do_not_wait() -> None:
    executable = Paced()
    with served(LLM(fakes.fake_model(executable))) as client, connected(client) as connection:
        connection.sendall(request(CHAT, {"messages": HELLO}))
        until(lambda: client.server.replies.under_way == 1)
        with pytest.raises(ConnectionError):
            while True:
                connection.sendall(HEALTH * 1000)
        until(lambda: executable.let(1) or client.server.replies.under_way == 0)
        assert len(executable.rows) < 200


def test_further_connections_than_there_may_be_are_ended(
    client: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.get("/health")
    monkeypatch.setattr(connections, "most_connections", lambda: 0)
    for _ in range(5):
        with connected(client) as connection:
            assert is_over(connection)
    assert client.get("/health").status_code == 200  # of one that there was
    monkeypatch.undo()
    with connected(client) as connection:
        connection.sendall(HEALTH)
        assert b" 200 " in connection.recv(4096)


@pytest.mark.parametrize(
    ("files", "most"),
    [(1024, 832), (256, 64), (0, 16), (1 << 20, 4096), (resource.RLIM_INFINITY, 4096)],
)
def test_there_are_files_left_for_other_things(
    monkeypatch: pytest.MonkeyPatch, files: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (files, files))
    assert connections.most_connections() == most


def test_a_body_of_two_lengths_is_refused(client: Served) -> None:
    """And what looks like a request behind it is none."""
    head = (
        f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    with connected(client) as connection:
        connection.sendall(head.encode() + HEALTH)
        came = b""
        while piece := connection.recv(4096):
            came += piece
    assert came.startswith(b"HTTP/1.1 400 ") and came.count(b"HTTP/1.1") == 1
    assert b"leave one out" in came


def test_the_end_of_the_server_waits_for_no_body() -> None:
    with served() as client, connected(client) as connection:
        connection.sendall(request(TEXT, {"prompt": "a"})[:-1])
        until(lambda: client.server.app._requests == 1)
        client.stop()
        began, came = time.monotonic(), b""
        while piece := connection.recv(4096):
            came += piece
        assert time.monotonic() - began < 5  # of 10 that callers have for reading what was sent
    assert came.startswith(b"HTTP/1.1 503 ") and b'"code":"stopped"' in came
