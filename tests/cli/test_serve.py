"""``edgerun serve`` from its first line to its last; what it answers is tested in tests/server."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import edgerun
from edgerun.server.serving import listen
from tests.cli.conftest import Run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_ends_when_it_is_told(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "edgerun", "serve", "--port", "0", "--parallel", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        while "answers at" not in line:  # the first run on a machine has more to say
            assert line, "it ended"
            line = process.stderr.readline()
        match = re.search(
            r"edgerun answers at (\S+)/v1, 1 reply at a time; to chat, open \1; Ctrl-C ends it",
            line,
        )
        assert match, line
        with urllib.request.urlopen(f"{match[1]}/health", timeout=30) as answer:
            assert answer.status == 200
        process.send_signal(number)
        rest = process.stderr.read()
        assert (process.wait(30), "edgerun: ended" in rest) == (0, True)
    assert "GET /health 200" in rest and "Traceback" not in rest


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "callers need a key"),
        (["--port", "99999"], "expected 0 to 65535"),
        (["--port", "x"], "--port is 'x'"),
        (["--api-key-file", "no/such/file"], "no/such/file cannot be read: No such file"),
        (["--allow-origin", "*"], "the origin '*' is none"),
        (["--queue", "-1"], "--queue is -1; expected 0 to"),
        (["--name", "a b"], "the model's name is 'a b'"),
        (["--parallel", "0"], "--parallel is 0; expected a whole number from 1 to 1024"),
        (["--host", "no.such.host.invalid"], "callers need a key"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(run: Run, arguments: list[str], says: str) -> None:
    result = run("serve", *arguments)
    assert (result.code, says in result.err) == (2, True), result.err
    assert result.err.count("\n") == 1


def test_a_port_that_is_taken_is_named(run: Run) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        result = run("serve", "--port", port)
    assert result.code == 2
    assert f"cannot listen at 127.0.0.1 port {port}: Address already in use" in result.err


@pytest.mark.parametrize("key", [b"short", b"\xff" * 20, b""])
def test_a_key_that_protects_nothing_is_refused(run: Run, tmp_path: Path, key: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(key)
    result = run("serve", "--api-key-file", str(path))
    assert result.code == 2 and "key" in result.err


def test_a_key_without_an_end_is_not_read_to_its_end(run: Run) -> None:
    result = run("serve", "--api-key-file", "/dev/zero")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "the key in /dev/zero has more than 4096 bytes" in result.err


def test_without_its_packages_it_says_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = importlib.import_module("edgerun.server")
    monkeypatch.setattr(edgerun, "server", server)  # importing it anew puts another one there
    for name in [name for name in sys.modules if name.startswith("edgerun.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = run("serve")
    assert result.code == 1
    assert "a server needs uvicorn" in result.err and "edgerun[serve]" in result.err
