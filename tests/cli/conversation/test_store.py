"""What chats keep is written and read where nobody else can."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgerun.cli.conversation.reader import _history
from edgerun.cli.conversation.store import HISTORY, ChatStore
from edgerun.errors import SessionError


def test_messages_are_the_users_alone(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "state")
    _history(store).store_string("a secret")
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((store.folder / HISTORY).stat().st_mode) == 0o600
    assert list(_history(store).load_history_strings()) == ["a secret"]


@pytest.mark.parametrize("kind", ["link", "pipe", "open to all"])
def test_a_file_that_may_be_somebody_elses_is_left_alone(tmp_path: Path, kind: str) -> None:
    """Neither read (a pipe would be waited for) nor written (a link could lead anywhere)."""
    store = ChatStore(tmp_path / "state")
    store.folder.mkdir()
    path, other = store.folder / HISTORY, tmp_path / "other"
    other.write_text("\n# now\n+somebody's\n")
    if kind == "link":
        path.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_text(other.read_text())
        path.chmod(0o666)
    before = other.read_text()
    assert list(_history(store).load_history_strings()) == []
    _history(store).store_string("a secret")
    assert other.read_text() == before
    assert kind == "pipe" or path.read_text() == before


def saying(text: str) -> Any:
    """Of a session, what is kept."""
    return SimpleNamespace(messages=[{"role": "user", "content": text}])


DIGEST = "0123456789abcdef" * 4
WAY_OUT = "; start without --continue for a new chat$"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("link", "it is a symbolic link"),
        ("open to all", "others than its owner may write to it"),
        ("empty", "it lacks the header line"),
        ("damaged", "its checksum or length does not match"),
    ],
)
def test_a_last_chat_that_cannot_be_trusted_is_refused_and_replaced(
    tmp_path: Path, kind: str, words: str
) -> None:
    store = ChatStore(tmp_path / "state")
    store.keep(saying("one"), DIGEST)
    path, other = store.last_chat(DIGEST), tmp_path / "other"
    whole = path.read_bytes()
    other.write_bytes(whole)
    if kind == "link":
        path.unlink()
        path.symlink_to(other)
    elif kind == "open to all":
        path.chmod(0o666)
    else:
        path.write_bytes(b"" if kind == "empty" else whole[:-1])
    with pytest.raises(SessionError, match=words + WAY_OUT):
        store.read(DIGEST)
    store.keep(saying("two"), DIGEST)
    assert store.read(DIGEST) == [{"role": "user", "content": "two"}]
    assert other.read_bytes() == whole
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_of_somebody_else_is_not_written(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "state")
    store.folder.mkdir(mode=0o700)
    os.chown(store.folder, 65534, 0)
    _history(store).store_string("a secret")
    assert list(store.folder.iterdir()) == []


def test_clearing_leaves_the_chats_that_somebody_saved(tmp_path: Path) -> None:
    store = ChatStore(tmp_path)
    saved, last = tmp_path / "story.chat", store.last_chat("0123456789abcdef" * 4)
    for path in (saved, last, tmp_path / "last-one.chat"):
        path.touch()
    assert store.clear() == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last-one.chat", "story.chat"]
