"""What edgerun keeps for itself: only what nobody else could have written is used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from edgerun.files import private as private_files
from edgerun.files.plain import NotPlainError, TooLargeError
from edgerun.files.private import (
    UnsafeError,
    advice,
    make_folder,
    open_private,
    private_folder,
    read_private,
    write_atomically,
)
from tests.support.oddities import make_oddity

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def umask():
    """Others may write what is made, as with private groups."""
    old = os.umask(0)
    yield
    os.umask(old)


def test_what_is_written_is_read(tmp_path: Path, umask: None) -> None:
    folder = private_folder(tmp_path / "a" / "b" / "c")
    assert [mode(tmp_path / part) for part in ("a", "a/b", "a/b/c")] == [0o700] * 3
    write_atomically(folder / "file", b"content", durable=True)
    assert mode(folder / "file") == 0o600
    assert read_private(folder / "file", 7) == b"content"
    with pytest.raises(TooLargeError, match="at most 6"):
        read_private(folder / "file", 6)


@pytest.mark.parametrize("bits", [0o020, 0o002, 0o022])
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, bits: int) -> None:
    write_atomically(tmp_path / "file", b"content")
    (tmp_path / "file").chmod(0o644 | bits)
    with pytest.raises(UnsafeError, match="others"):
        open_private(tmp_path / "file")


@as_root
def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"content")
    os.chown(tmp_path / "file", NOBODY, 0)
    with pytest.raises(UnsafeError, match="belongs to user 65534"):
        open_private(tmp_path / "file")


def test_a_file_of_root_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user: what an administrator provides is as good as one's own."""
    write_atomically(tmp_path / "file", b"content")
    owner = os.geteuid()
    monkeypatch.setattr(private_files.os, "geteuid", lambda: owner + 1)
    if owner == 0:
        assert read_private(tmp_path / "file", 7) == b"content"
        assert private_folder(tmp_path) == tmp_path
    else:
        with pytest.raises(UnsafeError):
            read_private(tmp_path / "file", 7)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_no_file_is_no_private_file(tmp_path: Path, kind: str) -> None:
    with pytest.raises(NotPlainError):
        open_private(make_oddity(tmp_path / "file", kind))


@pytest.mark.parametrize("bits", [0o020, 0o002, 0o022])
def test_a_folder_of_ours_is_closed_to_others(tmp_path: Path, bits: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o755 | bits)
    private_folder(folder)
    assert mode(folder) == 0o700


def test_a_folder_that_others_may_only_read_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o755)
    private_folder(folder)
    assert mode(folder) == 0o755


@as_root
@pytest.mark.parametrize("whose", ["folder", "parent"])
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, whose: str) -> None:
    folder = private_folder(tmp_path / "parent" / "folder")
    other = folder if whose == "folder" else folder.parent
    os.chown(other, NOBODY, 0)
    with pytest.raises(UnsafeError, match="belongs to user 65534") as caught:
        private_folder(folder)
    assert str(other) in advice(caught.value)
    assert mode(other) == 0o700


def test_a_folder_in_one_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(UnsafeError, match="everybody"):
        private_folder(shared / "folder")
    shared.chmod(0o1777)  # as /tmp: nobody can rename what is not theirs
    private_folder(shared / "folder")
    assert mode(shared) == 0o1777


def test_a_link_instead_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target").chmod(0o777)
    (tmp_path / "folder").symlink_to(tmp_path / "target")
    with pytest.raises(UnsafeError, match="link"):
        private_folder(tmp_path / "folder")
    assert mode(tmp_path / "target") == 0o777


@as_root
def test_a_link_above_it_must_be_ours(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    private_folder(tmp_path / "cache" / "folder")
    os.lchown(tmp_path / "cache", NOBODY, 0)
    with pytest.raises(UnsafeError, match="65534"):
        private_folder(tmp_path / "cache" / "folder")


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file" / "folder")
    with pytest.raises(UnsafeError, match="no folder"):
        private_folder(tmp_path / "file")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(tmp_path / "file", b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_files.os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_draft_takes_its_place_only_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    replace, fsync = os.replace, os.fsync
    monkeypatch.setattr(
        private_files.os, "replace", lambda *a: (steps.append("replace"), replace(*a))
    )
    monkeypatch.setattr(private_files.os, "fsync", lambda *a: (steps.append("sync"), fsync(*a)))
    write_atomically(tmp_path / "file", b"new", durable=True)
    assert steps == ["sync", "replace", "sync"]


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder"])
def test_nothing_but_a_file_is_replaced(tmp_path: Path, kind: str) -> None:
    path = make_oddity(tmp_path / "file", kind)
    before = path.lstat().st_mode
    with pytest.raises(NotPlainError):
        write_atomically(path, b"new")
    assert path.lstat().st_mode == before


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "file").symlink_to(tmp_path / "target")
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "target").read_bytes() == b"old"
    assert not (tmp_path / "file").is_symlink()
