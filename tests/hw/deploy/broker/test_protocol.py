"""Requests are read strictly, and may come only in their order."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgerun_hw.deploy.broker.application import check as application
from edgerun_hw.deploy.broker.application.manifest import MANIFEST, read_manifest
from edgerun_hw.deploy.broker.errors import ProtocolError, RefusalError
from edgerun_hw.deploy.broker.protocol import MAX_LINE_BYTES, Request, parse_request
from edgerun_hw.deploy.emulate import fuzz
from tests.hw.deploy.harness import board, check_tidy, converse, deployment, digest_of, running


def test_good_requests_are_read() -> None:
    for request in fuzz.requests():
        fields = {name: value for name, value in request.items() if name != "op"}
        assert parse_request(json.dumps(request).encode()) == Request(request["op"], fields)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"status",
        b"[]",
        b'"status"',
        b'{"op": "shell"}',
        b'{"op": ["status"]}',
        b'{"op": "status", "op": "status"}',
        b'{"op": "status", "more": 1}',
        b'{"op": "begin"}',
        b'{"op": "hello", "protocol": true}',
        b'{"op": "hello", "protocol": 1.0}',
        b'{"op": "hello", "protocol": NaN}',
        b'{"op": "put", "file": "../x.bit", "size": 1}',
        b'{"op": "put", "file": "x.bit.bin\\n", "size": 1}',
        b'{"op": "put", "file": "x.bit.bin", "size": 0}',
        b'{"op": "put", "file": "x.bit.bin", "size": 67108865}',
        b'{"op": "chunk", "size": 262145}',
        b'{"op": "recover", "by": "a b"}',
        b'{"op": "status"}' + b" " * MAX_LINE_BYTES,
        b'{"op":' * 1000,
        b"\xff\xfe",
    ],
)
def test_bad_requests_are_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_request(line)


def test_fuzzed_messages_find_nothing(tmp_path: Path) -> None:
    generator = random.Random(2)
    fuzz.fuzz_parser(generator, 10_000)
    assert fuzz.fuzz_sessions(generator, 500, tmp_path) > 0


@pytest.mark.parametrize(
    "count", [pytest.param(60, id="share"), pytest.param(5000, id="all", marks=pytest.mark.slow)]
)
def test_altered_applications_are_refused(tmp_path: Path, count: int) -> None:
    """Bitstreams and overlays, with manifests that are right about them."""
    fuzz.fuzz_applications(random.Random(count), count, tmp_path)


@pytest.mark.parametrize("check", ["check_overlay", "check_bitstream"])
def test_fuzzer_finds_a_check_that_is_left_out(tmp_path: Path, monkeypatch, check: str) -> None:
    monkeypatch.setattr(application, check, lambda data, other: None)
    with pytest.raises(fuzz.Finding):
        fuzz.fuzz_applications(random.Random(1), 60, tmp_path)


def test_fuzzer_finds_planted_bugs() -> None:
    def lenient(line: bytes) -> Request:
        value = json.loads(line)  # neither an object nor its fields are checked
        return Request(value.pop("op"), value)

    def careless(line: bytes) -> Request:
        request = parse_request(line.replace(b"..", b"aa"))
        fields = {k: "../x" if v == "aa" else v for k, v in request.fields.items()}
        return Request(request.op, fields)

    for parse in (lenient, careless):
        with pytest.raises(fuzz.Finding):
            fuzz.fuzz_parser(random.Random(2), 20_000, parse)


def test_steps_out_of_order_end_the_conversation(tmp_path: Path, first, second) -> None:
    root, steps = board(tmp_path / "board", True, first), deployment(second)
    for index in range(1, len(steps)):
        for wrong in ("install", "load", "verify", "confirm", "recover"):
            if steps[index][0] == wrong:
                continue
            fields = {"by": "test"} if wrong == "recover" else {}
            result = converse(root, [*steps[:index], (wrong, b"", fields)])
            assert result.error is not None and result.error["code"] == "protocol"
    assert running(root) == digest_of(first)
    check_tidy(root)


def clocked(**changes: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A manifest whose clock differs."""
    clock = {"source": "IOPLL", "divisors": [15, 1], "hertz": 100_000_000}
    return lambda m: m | {"clocks": {"pl0": {**clock, **changes}}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m | {"board": "kv26"}, "board 'kv26' is not known"),
        (lambda m: m | {"part": "xc7z020clg400"}, "part"),
        (lambda m: m | {"application": "../x"}, "name"),
        (lambda m: m | {"extra": 1}, "unknown ones"),
        (lambda m: m | {"format": 1}, "format is 1 and not 3: package it again"),
        (lambda m: m | {"release": -1}, "number"),
        (lambda m: m | {"release": 1 << 31}, "number"),
        (lambda m: m | {"release": True}, "number"),
        (clocked(divisors=[3, 1]), "too fast"),
        (lambda m: m | {"clocks": {"pl9": {}}}, "clock 'pl9'"),
        (clocked(divisors=[0, 1]), "divisors"),
        (clocked(source="X"), "source"),
        (
            clocked(hertz=24_999_999),
            "clock pl0 of 24.999999 MHz; AMD Kria KV260 takes 25 MHz to 400",
        ),
        (clocked(hertz=400_000_001), "clock pl0 of 400.000001 MHz"),
        (clocked(hertz=1e8), "number"),
        (lambda m: m | {"port_widths": {"DDR": 32}}, "port 'DDR'"),
        (lambda m: m | {"port_widths": {"S_AXI_LPD": 33}}, "width"),
        (lambda m: m | {"registers": m["registers"] | {"base": 0xFF5E_0000}}, "base"),
        (lambda m: m | {"registers": m["registers"] | {"base": 0xA000_0004}}, "base"),
        (lambda m: m | {"files": {"/etc/passwd": {"size": 1, "sha256": "0" * 64}}}, "files"),
        (lambda m: m | {"design": "a\u001b[2J"}, "text"),
    ],
)
def test_manifest_that_asks_for_too_much_is_refused(first, change, message: str) -> None:
    manifest = json.loads(first[MANIFEST])
    assert read_manifest(json.dumps(manifest).encode())
    with pytest.raises(RefusalError, match=message):
        read_manifest(json.dumps(change(manifest)).encode())
