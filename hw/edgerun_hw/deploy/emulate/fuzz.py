"""Throws broken messages at the helper.

Run as::

    python -m edgerun_hw.deploy.emulate.fuzz --messages 1000000 --seed 0

Nine in ten messages go to the parser, which must return a request or refuse; what it returns is
judged by rules written apart from it. The others are conversations with the whole helper on an
emulated board, which must afterwards run what it ran before or what a complete, correct deployment
has put there, with nothing changed outside the folders that are its own. Last, applications whose
bitstream or overlay was altered and whose manifest is right about that (``altered.py``): the board
must refuse each, and go on running.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edgerun_hw.deploy.broker import PROTOCOL
from edgerun_hw.deploy.broker.application.manifest import MANIFEST
from edgerun_hw.deploy.broker.application.store import HOME
from edgerun_hw.deploy.broker.board.boards import BOARDS
from edgerun_hw.deploy.broker.board.loader import FIRMWARE
from edgerun_hw.deploy.broker.errors import ProtocolError
from edgerun_hw.deploy.broker.protocol import Channel, EndOfSession, Request, parse_request
from edgerun_hw.deploy.broker.session import Session
from edgerun_hw.deploy.emulate.altered import alter
from edgerun_hw.deploy.emulate.board import EmulatedSystem, make_root
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.sample import sample_package
from edgerun_hw.deploy.package import DEFAULT_NAME

Parse = Callable[[bytes], Request]
OWN = (FIRMWARE, HOME, ".emulator", "sys", "run/edgerun-fpga.lock")
LIVE_SHARE, ALTERED_SHARE = 0.1, 0.01
HOSTILE: tuple[Any, ...] = (
    "../../etc/passwd", "/etc/shadow", "a/b", "a\0b", "..", ".", "", "tlmm\n", "-rf", "$(id)",
    ";id", "tlmm.bit.bin/../x", "é" * 30, "\ud800", "a" * 5000, -1, 0, 1 << 64, 10**400, 1.5, 1e308,
    True, None, [], {}, [[[[]]]], {"op": "status"}, "f" * 64, "F" * 64, "g" * 64, 2**26, 2**18 + 1,
)  # fmt: skip


class Finding(AssertionError):  # noqa: N818, what a fuzzer finds
    """The helper did what it must not do."""


def requests() -> list[dict[str, Any]]:
    """One good request of every kind."""
    digest, me = hashlib.sha256(b"").hexdigest(), "somebody@here"
    plain = ("status", "seal", "install", "load", "verify", "confirm", "abort")
    return [
        {"op": "hello", "protocol": PROTOCOL},
        {"op": "begin", "application": "tlmm", "manifest": digest, "by": me},
        {"op": "put", "file": "tlmm.bit.bin", "size": 4096},
        {"op": "chunk", "size": 4096},
        {"op": "rollback", "by": me},
        {"op": "recover", "by": me},
        *({"op": name} for name in plain),
    ]


def mutate(generator: random.Random, request: dict[str, Any]) -> bytes:
    """Breaks a request in one of several ways."""
    changed = dict(request)
    kind = generator.randrange(8)
    if kind == 0:
        changed[generator.choice(list(changed))] = generator.choice(HOSTILE)
    elif kind == 1:
        changed.pop(generator.choice(list(changed)))
    elif kind == 2:
        changed[generator.choice(("path", "op ", "size", "file", "__proto__"))] = 1
    elif kind == 3:
        changed = {**generator.choice(requests()), **changed, "op": request["op"]}
    text = json.dumps(changed)
    if kind == 4:
        text = text.replace("{", "{" + text[1:-1] + ",", 1)  # every name twice
    elif kind == 5:
        text = generator.choice(("[" * 3000, '{"op":' * 600, "NaN", "\ufeff" + text, text + "}"))
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(generator.randrange(1, 6) if kind >= 6 else 0):
        _damage(generator, data)
    return bytes(data).replace(b"\n", b" ")


def _damage(generator: random.Random, data: bytearray) -> None:
    at = generator.randrange(len(data) + 1)
    how = generator.randrange(4)
    if how == 0 and at < len(data):
        data[at] ^= 1 << generator.randrange(8)
    elif how == 1:
        data[at:at] = generator.randbytes(generator.randrange(1, 9))
    elif how == 2:
        del data[at : at + generator.randrange(1, 9)]
    else:
        data[at:at] = data[: generator.randrange(len(data) + 1)]


def judge(request: Request) -> None:
    """Says whether a request that was accepted may be; knows nothing of the parser's tables.

    Raises:
        Finding: it may not.
    """
    kinds = {
        example["op"]: {k: type(v) for k, v in example.items() if k != "op"}
        for example in requests()
    }
    types = kinds.get(request.op)
    if types is None or {k: type(v) for k, v in request.fields.items()} != types:
        raise Finding(f"accepted {request}")
    for name, value in request.fields.items():
        if isinstance(value, str):
            plain = value.isascii() and value.isprintable() and not set(value) & set("/\\ $;|&'\"")
            good = plain and 0 < len(value) <= 64 and value[0] not in ".-" and ".." not in value
            if not (good or name == "by") or not plain:
                raise Finding(f"accepted {name} = {value!r}")
        elif not 0 <= value <= 64 << 20:
            raise Finding(f"accepted {name} = {value}")


def fuzz_parser(generator: random.Random, count: int, parse: Parse = parse_request) -> int:
    """Parses ``count`` broken messages; returns how many were requests after all.

    Raises:
        Finding: the parser accepted what it must not, or failed in another way than refusing.
    """
    good, accepted = requests(), 0
    for _ in range(count):
        line = mutate(generator, generator.choice(good))
        try:
            request = parse(line)
        except ProtocolError:
            continue
        except Exception as error:
            raise Finding(f"{type(error).__name__} on {line[:200]!r}: {error}") from error
        judge(request)
        accepted += 1
    return accepted


class Script(Channel):
    """A channel whose other side says a fixed text and then goes."""

    def __init__(self, text: bytes) -> None:
        super().__init__(-1, -1)
        self._buffer = bytearray(text)
        self.answers: list[dict[str, Any]] = []

    def send(self, answer: Any) -> None:
        """Collects."""
        self.answers.append(answer)

    def _fill(self) -> None:
        raise EndOfSession


class QuickSystem(EmulatedSystem):
    """Does not wait for the disk."""

    def sync(self, descriptor: int) -> None:
        """Nothing is lost while the fuzzer runs."""


def conversation(generator: random.Random, files: dict[str, bytes]) -> tuple[bytes, int]:
    """A deployment with something broken in it, as bytes; and how many messages it has."""
    lines = _lines(files)
    text, count = b"", 0
    for request, data in lines:
        chance = generator.random()
        if chance < 0.03:
            text += mutate(generator, request) + b"\n"
        elif chance < 0.08:
            text += json.dumps(generator.choice(requests())).encode() + b"\n"
        elif chance < 0.1 and data:
            broken = bytearray(data)
            broken[generator.randrange(len(broken))] ^= 1 << generator.randrange(8)
            text, count = text + json.dumps(request).encode() + b"\n" + broken, count + 1
            continue
        if chance >= 0.11:
            text += json.dumps(request).encode() + b"\n" + data
        count += 1
    return text[: generator.randrange(len(text))] if generator.random() < 0.2 else text, count


def _lines(files: dict[str, bytes]) -> list[tuple[dict[str, Any], bytes]]:
    """The requests of a deployment, each with the bytes behind it."""
    digest = hashlib.sha256(files[MANIFEST]).hexdigest()
    lines: list[tuple[dict[str, Any], bytes]] = [
        ({"op": "begin", "application": DEFAULT_NAME, "manifest": digest, "by": "fuzz"}, b"")
    ]
    for name, data in files.items():
        lines.append(({"op": "put", "file": name, "size": len(data)}, b""))
        lines.append(({"op": "chunk", "size": len(data)}, data))
    return lines + [({"op": op}, b"") for op in ("seal", "install", "load", "verify", "confirm")]


def fuzz_sessions(generator: random.Random, count: int, folder: Path) -> int:
    """Sends about ``count`` messages in conversations; returns how many deployments succeeded.

    Raises:
        Finding: an error escaped, a file elsewhere changed, or the board does not work.
    """
    make_root(folder)
    board = BOARDS["kv260"]
    packages = [sample_package(example_bit(board, seed)) for seed in range(3)]
    good = {hashlib.sha256(files[MANIFEST]).hexdigest() for files in packages}
    sent = succeeded = 0
    for name, data in _elsewhere().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    before = _snapshot(folder)
    while sent < count:
        text, messages = conversation(generator, generator.choice(packages))
        sent += messages
        channel = Script(text)
        try:
            Session(QuickSystem(folder), channel).serve()
        except Exception as error:
            raise Finding(f"{type(error).__name__} escaped: {error}; script {text!r}") from error
        status = Script(b'{"op": "status"}\n')
        Session(QuickSystem(folder), status).serve()
        report = status.answers[0]
        succeeded += any("active" in answer for answer in channel.answers)
        if report["interrupted"] or report["damaged"]:
            raise Finding(f"left {report}; script {text!r}")
        active = report["active"]
        if active and (not report["is_loaded"] or active["digest"] not in good):
            raise Finding(f"does not run {active}; script {text!r}")
        if active and not (report["registers"] or {}).get("as_expected"):
            raise Finding(f"registers {report['registers']}; script {text!r}")
        if _snapshot(folder) != before:
            raise Finding(f"changed a file elsewhere; script {text!r}")
    return succeeded


def fuzz_applications(generator: random.Random, count: int, folder: Path) -> None:
    """Sends altered applications to a board that runs another.

    Raises:
        Finding: one was taken, or the board no longer runs what it ran.
    """
    make_root(folder)
    board = BOARDS["kv260"]
    old, new = (sample_package(example_bit(board, seed)) for seed in range(2))
    _deploy(folder, old)
    before = Script(b'{"op": "status"}\n')
    Session(QuickSystem(folder), before).serve()
    for _ in range(count):
        files = alter(generator, new)
        answer = _deploy(folder, files)
        if answer["ok"] or answer["error"]["code"] != "refused":
            raise Finding(f"answered {answer} to {_differing(new, files)}")
        after = Script(b'{"op": "status"}\n')
        Session(QuickSystem(folder), after).serve()
        if after.answers != before.answers:
            raise Finding(f"changed {before.answers} into {after.answers}")


def _deploy(folder: Path, files: dict[str, bytes]) -> dict[str, Any]:
    """The last answer that is not about the end of the conversation."""
    channel = Script(_whole(files))
    Session(QuickSystem(folder), channel).serve()
    failures = (answer for answer in channel.answers if not answer["ok"])
    return next(failures, channel.answers[-1])


def _whole(files: dict[str, bytes]) -> bytes:
    return b"".join(json.dumps(request).encode() + b"\n" + data for request, data in _lines(files))


def _differing(first: dict[str, bytes], second: dict[str, bytes]) -> dict[str, str]:
    return {name: data.hex() for name, data in second.items() if data != first[name]}


def _elsewhere() -> dict[str, bytes]:
    return {"etc/passwd": b"root", "lib/firmware/other.bin": b"other", "home/x": b"x"}


def _snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): stamp for path, stamp in _files(folder) if not _is_own(folder, path)}


def _files(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    for path in folder.rglob("*"):
        if path.is_file():
            info = path.lstat()
            yield path, (info.st_size, info.st_mtime_ns)


def _is_own(folder: Path, path: Path) -> bool:
    return str(path.relative_to(folder)).startswith(OWN)


def main(arguments: Sequence[str]) -> int:
    """Runs the fuzzer; 1 if it finds something."""
    parser = argparse.ArgumentParser(prog="python -m edgerun_hw.deploy.emulate.fuzz")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    generator = random.Random(options.seed)
    live, altered = int(options.messages * LIVE_SHARE), int(options.messages * ALTERED_SHARE)
    began = time.perf_counter()
    try:
        accepted = fuzz_parser(generator, options.messages - live)
        with tempfile.TemporaryDirectory() as folder:
            succeeded = fuzz_sessions(generator, live, Path(folder) / "sessions")
            fuzz_applications(generator, altered, Path(folder) / "applications")
    except Finding as finding:
        sys.stderr.write(f"found with seed {options.seed}: {finding}\n")
        return 1
    sys.stdout.write(
        f"{options.messages} messages, {live} of them in conversations, in "
        f"{time.perf_counter() - began:.1f} s: nothing found; {accepted} were good requests, "
        f"{succeeded} conversations deployed, {altered} altered applications refused\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
