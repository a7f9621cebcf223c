"""Saved sessions survive crashes, and broken ones are refused."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.engine import session_file
from edgerun.engine.session_file import load_session, save_session
from edgerun.errors import SessionError, StorageError

DIGEST = "d" * 64
MESSAGES = [{"role": "user", "content": "héllo\n😀"}]


def test_a_session_survives_a_round_trip(tmp_path: Path) -> None:
    save_session(tmp_path / "chat", DIGEST, MESSAGES)
    assert load_session(tmp_path / "chat", DIGEST) == MESSAGES
    assert [path.name for path in tmp_path.iterdir()] == ["chat"]


def test_a_message_of_mappings_survives_it(tmp_path: Path) -> None:
    function = {"name": "f", "arguments": "{}"}
    call = {"id": "1", "type": "function", "function": function}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    shared = {**message, "tool_calls": [{**call, "function": MappingProxyType(function)}]}
    save_session(tmp_path / "chat", DIGEST, [MappingProxyType(shared)])
    assert load_session(tmp_path / "chat", DIGEST) == [message]


def test_another_model_is_refused(tmp_path: Path) -> None:
    save_session(tmp_path / "chat", DIGEST, MESSAGES)
    with pytest.raises(SessionError, match="another model"):
        load_session(tmp_path / "chat", "e" * 64)


def test_content_that_is_no_text_is_named_however_deep_it_is(tmp_path: Path) -> None:
    content: Any = []
    for _ in range(100_000):
        content = [content]
    for message in ({"role": "user", "content": content}, {"role": "x" * 999, "content": ""}):
        with pytest.raises(SessionError, match="message 0 cannot be saved: ") as error:
            save_session(tmp_path / "chat", DIGEST, [message])
        assert len(str(error.value)) < 200


def test_a_missing_file_and_a_folder_are_session_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(SessionError, match="cannot read"):
            load_session(path, DIGEST)


def test_a_name_that_no_file_can_have_is_a_session_error(tmp_path: Path) -> None:
    path = tmp_path / "a\0b"
    with pytest.raises(SessionError, match="cannot save"):
        save_session(path, DIGEST, MESSAGES)
    with pytest.raises(SessionError, match="cannot read"):
        load_session(path, DIGEST)
    assert list(tmp_path.iterdir()) == []


def test_another_version_says_so(tmp_path: Path) -> None:
    save_session(tmp_path / "chat", DIGEST, MESSAGES)
    data = (tmp_path / "chat").read_bytes().replace(b"session 1 ", b"session 2 ", 1)
    (tmp_path / "chat").write_bytes(data)
    with pytest.raises(SessionError, match="version '2'"):
        load_session(tmp_path / "chat", DIGEST)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@settings(max_examples=300)
@given(data=st.data())
def test_any_change_of_a_file_is_noticed(folder: Path, data: st.DataObject) -> None:
    save_session(folder / "whole", DIGEST, MESSAGES)
    whole = (folder / "whole").read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, 60))
    changed = whole[:start] + data.draw(st.binary(max_size=20)) + whole[start + length :]
    (folder / "changed").write_bytes(changed)
    if changed != whole:
        with pytest.raises(SessionError):
            load_session(folder / "changed", DIGEST)


PAYLOADS = [
    b"[]",
    b"{}",
    b"null",
    b"[" * 100_000,
    b'{"model_digest": 1, "messages": []}',
    b'{"model_digest": "d", "messages": 5}',
    b'{"model_digest": "d"}',
    b'{"model_digest": "d", "messages": [{"role": "user"}]}',
    b'{"model_digest": "d", "messages": [{"role": "x", "content": ""}]}',
    b'{"model_digest": "d", "messages": [5]}',
    b"\xff\xfe",
]


def write(path: Path, payload: bytes) -> None:
    header = f"edgerun-session 1 {hashlib.sha256(payload).hexdigest()} {len(payload)}\n"
    path.write_bytes(header.encode() + payload)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_wellformed_files_with_strange_content_are_refused(tmp_path: Path, payload: bytes) -> None:
    write(tmp_path / "chat", payload)
    with pytest.raises(SessionError, match="unexpected content"):
        load_session(tmp_path / "chat", "d")


def test_an_unwritable_folder_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot save"):
        save_session(tmp_path / "none" / "chat", DIGEST, MESSAGES)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_session(tmp_path / "chat", DIGEST, MESSAGES)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgerun.files.private.os.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        save_session(tmp_path / "chat", DIGEST, [])
    assert load_session(tmp_path / "chat", DIGEST) == MESSAGES
    assert len(list(tmp_path.iterdir())) == 1


def test_an_oversized_session_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session_file, "MAX_BYTES", 10)
    with pytest.raises(SessionError, match="at most 10"):
        save_session(tmp_path / "chat", DIGEST, MESSAGES)


@pytest.mark.parametrize("part", [b"[],", b"{},", b"0,", b'"",', b'{"role":"user","content":""},'])
def test_more_parts_than_a_chat_has_are_refused_before_they_take_memory(
    tmp_path: Path, part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of 64 MB of them took 1.7 GB."""
    write(tmp_path / "chat", b'{"model_digest":"d","messages":[' + 600_000 * part + b"0]}")
    monkeypatch.setattr(session_file.json, "loads", None)
    with pytest.raises(SessionError, match="over 524288 parts; no chat has so many"):
        load_session(tmp_path / "chat", "d")


def test_what_could_not_be_loaded_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_file, "MAX_PARTS", 32)
    save_session(tmp_path / "chat", DIGEST, MESSAGES * 10)
    with pytest.raises(SessionError, match="over 32 parts, which are too many"):
        save_session(tmp_path / "chat", DIGEST, MESSAGES * 11)
    assert load_session(tmp_path / "chat", DIGEST) == MESSAGES * 10


WRITER = """
import itertools, pathlib, sys
from edgerun.engine.session_file import save_session
print("ready", flush=True)
for count in itertools.count():
    messages = [{"role": "user", "content": str(count)}] * (count % 500)
    save_session(pathlib.Path(sys.argv[1]), "d" * 64, messages)
"""


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is POSIX")
@pytest.mark.parametrize(
    "kills", [5, pytest.param(500, marks=(pytest.mark.slow, pytest.mark.timeout(1800)))]
)
def test_a_killed_writer_leaves_a_whole_session(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "chat"
    save_session(path, DIGEST, MESSAGES)
    for attempt in range(kills):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.01 + 0.007 * (attempt % 10))
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        messages = load_session(path, DIGEST)
        counts = {int(message["content"]) % 500 for message in messages if messages != MESSAGES}
        assert counts <= {len(messages)}


def special_files(folder: Path) -> dict[str, Path]:
    """Paths that are no files, with what a message calls them."""
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "to-device").symlink_to(os.devnull)
    (folder / "to-pipe").symlink_to("pipe")
    return {
        "a pipe": folder / "pipe",
        "a pipe, through a link": folder / "to-pipe",
        "a folder": folder / "folder",
        "a device": Path(os.devnull),
        "a device, through a link": folder / "to-device",
    }


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices are POSIX")
def test_what_is_no_file_is_neither_replaced_nor_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(source: Path, target: Path) -> None:
        raise AssertionError(f"{target} would be replaced")

    monkeypatch.setattr("edgerun.files.private.os.replace", replace)
    for kind, path in special_files(tmp_path).items():
        before = path.lstat()
        words = f"it is {kind.split(',')[0]}"
        with pytest.raises(SessionError, match=f"cannot save the session to .*{words}"):
            save_session(path, DIGEST, MESSAGES)
        with pytest.raises(SessionError, match=f"cannot read the session .*{words}"):
            load_session(path, DIGEST)  # a pipe would wait for a writer
        assert path.lstat() == before or kind == "a device"
    assert len(list(tmp_path.iterdir())) == 4


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("chat", "none-yet"):
        (tmp_path / name).symlink_to(tmp_path / "elsewhere" / name)
    save_session(tmp_path / "elsewhere" / "chat", DIGEST, [])
    for name in ("chat", "none-yet"):
        save_session(tmp_path / name, DIGEST, MESSAGES)
        assert (tmp_path / name).is_symlink()
        assert load_session(tmp_path / "elsewhere" / name, DIGEST) == MESSAGES


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "user", "content": None},
        {"role": "cat", "content": "x"},
        {"content": "x"},
        "x",
    ],
)
def test_a_message_that_could_not_be_loaded_again_is_not_saved(
    tmp_path: Path, message: Any
) -> None:
    with pytest.raises(SessionError, match="message 0 cannot be saved"):
        save_session(tmp_path / "chat", DIGEST, [message])
    assert list(tmp_path.iterdir()) == []
