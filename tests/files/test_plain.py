"""Files that a model names: opened without following, waiting or reading too much."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from edgerun.files import plain as plain_files
from edgerun.files.plain import (
    NotPlainError,
    TooLargeError,
    check_replaceable,
    is_plain_name,
    open_plain,
    read_plain,
)
from tests.support.oddities import ODDITIES, make_oddity


@pytest.mark.parametrize("name", ["a", "model.onnx.data", ".hidden", "...", "a b", "ü"])
def test_plain_names(name: str) -> None:
    assert is_plain_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "../a", "a\\b", "a\0b", "a/", "//"])
def test_names_that_could_lead_elsewhere(name: str) -> None:
    assert not is_plain_name(name)


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    assert read_plain(tmp_path / "file", 7) == b"content"
    os.close(open_plain(tmp_path / "file"))


@pytest.mark.parametrize(("kind", "says"), ODDITIES.items())
def test_anything_else_is_named(tmp_path: Path, kind: str, says: str) -> None:
    path = make_oddity(tmp_path / "file", kind)
    start = time.perf_counter()
    with pytest.raises(NotPlainError, match=says):
        read_plain(path, 100)
    assert time.perf_counter() - start < 5  # a pipe without a writer would be waited for


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_plain(tmp_path / "file")


def test_nothing_of_a_large_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    monkeypatch.setattr(plain_files.os, "pread", None)
    with pytest.raises(TooLargeError, match=f"{1 << 40} bytes; at most 100 "):
        read_plain(path, 100)


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder"])
def test_only_files_are_replaced(tmp_path: Path, kind: str) -> None:
    path = make_oddity(tmp_path / "file", kind)
    with pytest.raises(NotPlainError):
        check_replaceable(path)


@pytest.mark.parametrize(
    "seconds", [0.3, pytest.param(20.0, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_a_file_that_is_exchanged_while_it_is_opened(tmp_path: Path, seconds: float) -> None:
    """Somebody replaces it by links, pipes and back; what is read is the file or nothing."""
    secret, path, draft = (tmp_path / name for name in ("secret", "file", "draft"))
    secret.write_bytes(b"secret")
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            draft.write_bytes(b"public")
            os.replace(draft, path)
            os.symlink(secret, draft)
            os.replace(draft, path)
            os.mkfifo(draft)
            os.replace(draft, path)

    thread = threading.Thread(target=exchange)
    thread.start()
    seen = {"public": 0, "refused": 0}
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end or not all(seen.values()):
            try:
                data = read_plain(path, 100)
            except (NotPlainError, FileNotFoundError):
                seen["refused"] += 1
                continue
            assert data == b"public"
            seen["public"] += 1
    finally:
        stop.set()
        thread.join()


def test_what_is_refused_is_closed(tmp_path: Path) -> None:
    """Refusing leaves no descriptor behind."""
    path = make_oddity(tmp_path / "file", "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(NotPlainError):
            open_plain(path)
    assert len(os.listdir("/proc/self/fd")) == before
