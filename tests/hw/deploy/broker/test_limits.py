"""Nothing waits for ever: not for the other side, not for a pipe, not for a program."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from edgerun_hw.deploy.broker import session
from edgerun_hw.deploy.broker.board.system import System
from edgerun_hw.deploy.broker.errors import FailureError, ProtocolError
from edgerun_hw.deploy.broker.protocol import Channel, EndOfSession
from edgerun_hw.deploy.errors import PackageError
from edgerun_hw.deploy.package import read_package
from edgerun_hw.deploy.signature import check_signature
from tests.hw.deploy.harness import (
    ROLLBACK,
    Quick,
    ask,
    board,
    check_tidy,
    converse,
    deploy,
    deployment,
    digest_of,
    running,
)

NAME = "edgerun-tlmm"


def test_request_that_arrives_byte_by_byte_ends_in_time() -> None:
    """Never silent, and never done."""
    source, sink = os.pipe()
    channel, is_over = Channel(source, -1, patience_s=30, request_s=0.5), threading.Event()

    def drip() -> None:
        while not is_over.wait(0.05):
            os.write(sink, b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(ProtocolError, match="takes too long"):
        channel.read_request()
    is_over.set()
    thread.join()
    os.close(source)
    os.close(sink)


def test_bytes_of_a_chunk_belong_to_the_time_of_their_request() -> None:
    source, sink = os.pipe()
    channel = Channel(source, -1, patience_s=30, request_s=0.5)
    os.write(sink, b'{"op": "chunk", "size": 4096}\n' + b"x" * 100)
    assert channel.read_request().op == "chunk"
    with pytest.raises(ProtocolError, match="takes too long"):
        channel.read_bytes(4096)
    os.close(source)
    os.close(sink)


def test_quiet_channel_is_no_slow_request() -> None:
    """Between requests only silence counts; a request may come late and then take its time."""
    source, sink = os.pipe()
    with pytest.raises(EndOfSession):
        Channel(source, -1, patience_s=0.2, request_s=0.1).read_request()
    channel = Channel(source, -1, patience_s=30, request_s=30)
    for _ in range(2):
        os.write(sink, b'{"op": "status"}\n')
        assert channel.read_request().op == "status"
    os.close(source)
    os.close(sink)


def test_reader_that_never_reads_is_given_up() -> None:
    source, sink = os.pipe()
    channel = Channel(-1, sink, patience_s=0.2)
    with pytest.raises(EndOfSession):
        channel.send({"text": "x" * (1 << 20)})
    os.close(source)
    os.close(sink)


def test_change_that_goes_on_and_on_is_taken_back(
    tmp_path: Path, first, second, monkeypatch
) -> None:
    root = board(tmp_path, True, first)
    monkeypatch.setattr(session, "CHANGE_S", 0.4)
    requests, end = os.pipe()
    answers, sink = os.pipe()
    lines = [json.dumps({"op": op, **f}).encode() + b"\n" + d for op, d, f in deployment(second)]
    os.write(end, b"".join(lines[:-1]))  # all but confirm; and the connection stays open
    session.Session(Quick(root), Channel(requests, sink, patience_s=30)).serve()
    last = json.loads(os.read(answers, 1 << 16).splitlines()[-1])
    assert "takes too long" in last["error"]["message"] and "undone" in last
    assert running(root) == digest_of(first)
    check_tidy(root)
    for descriptor in (requests, end, answers, sink):
        os.close(descriptor)


def test_requests_that_have_come_already_do_not_prolong_a_change() -> None:
    source, sink = os.pipe()
    channel = Channel(source, -1, patience_s=30)
    os.write(sink, b'{"op": "status"}\n' * 3)
    channel.limit(0.1)
    assert channel.read_request().op == "status"
    time.sleep(0.15)
    with pytest.raises(ProtocolError, match="takes too long"):
        channel.read_request()
    channel.limit()
    assert channel.read_request().op == "status"
    os.close(source)
    os.close(sink)


def test_reader_of_answers_does_not_prolong_a_change() -> None:
    source, sink = os.pipe()
    channel = Channel(-1, sink, patience_s=30)
    channel.limit(0.1)
    with pytest.raises(EndOfSession):
        channel.send({"text": "x" * (1 << 20)})
    os.close(source)
    os.close(sink)


def test_upload_has_the_files_of_a_package_alone(tmp_path: Path, first) -> None:
    """However small they are: their number would not be bounded otherwise."""
    root = board(tmp_path)
    begin = deployment(first)[0]
    for name in ("extra.x", "other.dtbo"):
        result = converse(root, [begin, ("put", b"", {"file": name, "size": 1})])
        assert result.error == {
            "code": "refused",
            "message": f"{name} is no file of an application: those of {NAME} are manifest.json, "
            f"manifest.json.sig, {NAME}.bit.bin, {NAME}.dtbo, shell.json, {NAME}.hwh",
        }
        check_tidy(root)


def test_programs_of_one_request_share_its_time(tmp_path: Path) -> None:
    system = System(tmp_path)
    system.allow(0.3)
    with pytest.raises(FailureError, match="took more than 0 s"):
        system.run("/bin/sleep", "1000")
    with pytest.raises(FailureError, match="time for a request is over"):
        system.run("/bin/echo", "late")
    with pytest.raises(FailureError, match="time for a request is over"):
        system.sleep(1)
    system.allow(60)
    assert system.run("/bin/echo", "again") == "again"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name", [f"{NAME}.bit.bin", f"{NAME}.dtbo", "shell.json", "manifest.json", "manifest.json.sig"]
)
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_package_with_something_else_than_files_is_refused(
    tmp_path: Path, first, name: str, kind: str
) -> None:
    for file, data in first.items():
        (tmp_path / file).write_bytes(data)
    (tmp_path / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    elif kind == "link":
        (tmp_path / name).symlink_to("/dev/zero")
    else:
        (tmp_path / name).mkdir()
    with pytest.raises(PackageError, match=r"it is a (pipe|folder|symbolic link)|is no package"):
        read_package(tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["manifest.json", "shell.json", f"{NAME}.dtbo", "other"])
def test_pipe_in_a_folder_of_the_board_does_not_stop_the_helper(
    tmp_path: Path, first, second, name: str
) -> None:
    root = board(tmp_path, True, first)
    place = root / "lib/firmware/xilinx" / NAME / name
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    assert ask(root, "status")["running"] == NAME
    assert deploy(root, second).is_confirmed  # the folder with the pipe is kept
    result = converse(root, ROLLBACK)
    assert result.error is not None
    assert running(root) == digest_of(second)


@pytest.mark.timeout(60)
def test_pipe_in_place_of_a_key_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    os.mkfifo(tmp_path / "key.pem")
    with pytest.raises(PackageError, match="it is a pipe"):
        check_signature(b"", b"", tmp_path / "key.pem")
