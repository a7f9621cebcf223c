"""Which names of this machine callers may use, and which pages come from it."""

from __future__ import annotations

import socket

import pytest

from edgerun.server.hosts import (
    Hosts,
    host_and_port,
    is_loopback,
    is_same_origin,
    split_target,
)

LOOPBACK = ("localhost", "localhost:80", "LOCALHOST:1", "127.0.0.1", "127.9.9.9:8080", "[::1]:8080")
FOREIGN = (
    "",
    " ",
    "evil.example",
    "evil.example:8080",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "localhost:80:80",
    "localhost:x",
    "localhost:99999",
    "localhost@evil.example",
    "localhost/",
    "evil.example#localhost",
    "::1",
    "[::1",
    "0",
    "2130706433",
    "127.1",
    "0x7f.0.0.1",
    "localhost\x00",
    "ⓛocalhost",
    "localhost, localhost",
    "-localhost",
)


@pytest.mark.parametrize("host", LOOPBACK)
def test_a_server_of_this_machine_is_called_by_its_loopback_names(host: str) -> None:
    assert Hosts("127.0.0.1").allow(host)
    assert Hosts("0.0.0.0").allow(host)


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("bound", ["127.0.0.1", "::1", "localhost", "0.0.0.0", "192.168.1.7"])
def test_names_of_others_are_refused(bound: str, host: str) -> None:
    assert not Hosts(bound).allow(host)


@pytest.mark.parametrize("host", ["192.168.1.7", "192.168.1.7:8080", "[fe80::1]:8080"])
def test_addresses_are_allowed_where_others_can_call(host: str) -> None:
    assert not Hosts("127.0.0.1").allow(host)
    assert Hosts("0.0.0.0").allow(host)


def test_names_can_be_added_and_the_machines_own_are_there() -> None:
    assert Hosts("127.0.0.1", ["box.lan"]).allow("BOX.lan:80")
    assert not Hosts("127.0.0.1", ["box.lan"]).allow("fox.lan:80")
    assert Hosts("0.0.0.0").allow(socket.gethostname())


@pytest.mark.parametrize(
    ("origin", "host", "is_same"),
    [
        ("http://localhost:8080", "localhost:8080", True),
        ("http://LOCALHOST", "localhost:80", True),
        ("https://localhost", "localhost:443", True),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("http://localhost:8081", "localhost:8080", False),
        ("http://127.0.0.1:8080", "localhost:8080", False),
        ("ftp://localhost:8080", "localhost:8080", False),
        ("null", "localhost:8080", False),
        ("", "localhost:8080", False),
        ("localhost:8080", "localhost:8080", False),
        ("http://localhost:8080/", "localhost:8080", False),
        ("http://x@localhost:8080", "localhost:8080", False),
    ],
)
def test_a_page_is_of_the_server_that_it_calls(origin: str, host: str, is_same: bool) -> None:
    assert is_same_origin(origin, host) is is_same


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("/health", (None, "/health")),
        ("*", (None, "*")),
        ("//evil.example/health", (None, "//evil.example/health")),
        ("/http://localhost/health", (None, "/http://localhost/health")),
        ("http://localhost:80/health", ("localhost:80", "/health")),
        ("HTTPS://[::1]", ("[::1]", "/")),
        ("http:///health", ("", "/health")),
        ("http://a@b/x\ny", ("a@b", "/x\ny")),
    ],
)
def test_a_target_is_a_path_or_has_a_host_before_it(
    target: str, parts: tuple[str | None, str]
) -> None:
    assert split_target(target) == parts


def test_addresses_and_ports_are_split() -> None:
    assert host_and_port("[::1]:80") == ("::1", 80)
    assert host_and_port("Example.ORG") == ("example.org", None)
    assert is_loopback("::1") and is_loopback("LocalHost") and not is_loopback("example.org")
