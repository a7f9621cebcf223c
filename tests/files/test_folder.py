"""A folder takes a name that is free, or that of a folder which may be replaced."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from edgerun.errors import InputError, StorageError
from edgerun.files.folder import atomic_folder, check_target


def appear(target: Path, kind: str) -> None:
    """Somebody else gives the name away."""
    if kind == "file":
        target.write_text("theirs")
    else:
        target.mkdir()
        (target / "model").write_text("theirs")


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_appeared_meanwhile_is_not_replaced(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "out"
    said = r"out' was made by another command while this one was at work; choose another output"
    with pytest.raises(InputError, match=said), atomic_folder(target) as folder:
        (folder / "model").write_text("ours")
        appear(target, kind)
    file = target if kind == "file" else target / "model"
    assert file.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("before", [True, False])
def test_an_empty_folder_is_replaced(tmp_path: Path, before: bool) -> None:
    target = tmp_path / "out"
    if before:
        target.mkdir()
    with atomic_folder(target) as folder:
        (folder / "model").write_text("ours")
        target.mkdir(exist_ok=True)
    assert (target / "model").read_text() == "ours"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("replace", [True, False])
def test_a_mount_is_refused_before_any_work(tmp_path: Path, replace: bool) -> None:
    link = tmp_path / "link"
    link.symlink_to("/")
    for mount in (Path("/"), link):
        with pytest.raises(InputError, match=f"'{mount}' is a mount point, .*; choose a folder in"):
            check_target(mount, replace=replace)


def test_a_mount_that_only_renaming_tells_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a folder of the same file system."""
    (tmp_path / "out").mkdir()

    def refuse(*_: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr("edgerun.files.folder.os.replace", refuse)
    said = r"out' is a mount point, which cannot be replaced; choose a folder in it"
    with pytest.raises(StorageError, match=said), atomic_folder(tmp_path / "out"):
        pass


def test_what_appeared_meanwhile_is_replaced_where_that_was_asked_for(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with atomic_folder(target, replace=True, foreign=lambda _: ["notes"]) as folder:
        (folder / "model").write_text("ours")
        appear(target, "folder")
        (target / "notes").write_text("theirs")
    assert {file.name: file.read_text() for file in target.iterdir()} == {
        "model": "ours",
        "notes": "theirs",
    }
    assert list(tmp_path.iterdir()) == [target]
