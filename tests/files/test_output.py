"""What a command was told to write: refused before the work, or written whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from edgerun.errors import InputError, StorageError
from edgerun.files.output import check_output, write_output
from tests.support.oddities import make_oddity


def test_where_a_file_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    check_output(path, replace=False)
    path.write_bytes(b"old")
    with pytest.raises(InputError, match="exists: choose another output, or add --force"):
        check_output(path, replace=False)
    check_output(path, replace=True)
    with pytest.raises(InputError, match=f"there is no folder {tmp_path}/no"):
        check_output(tmp_path / "no" / "file", replace=True)
    with pytest.raises(InputError, match=f"there is no folder {path}"):
        check_output(path / "file", replace=True)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(InputError, match=f"no permission to write in {tmp_path}"):
        check_output(path, replace=True)


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder"])
def test_nothing_but_a_file_is_replaced(tmp_path: Path, kind: str) -> None:
    path = make_oddity(tmp_path / "file", kind)
    for write in (lambda: check_output(path, replace=True), lambda: write_output(path, b"new")):
        with pytest.raises(InputError, match=f"cannot write {path}: it is a {kind}"):
            write()
    assert path.lstat().st_mode & 0o777 != 0o600


def test_a_file_has_its_mode_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    replace = os.replace

    def replaced(draft: Path, path: Path) -> None:
        modes.append(stat.S_IMODE(draft.stat().st_mode))
        replace(draft, path)

    monkeypatch.setattr(os, "replace", replaced)
    write_output(tmp_path / "a", b"content", mode=0o755)
    write_output(tmp_path / "b", b"content", mode=0o600)
    assert modes == [0o755, 0o600]


def test_what_the_system_refuses_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match=f"cannot write {tmp_path}/file: No space left"):
        write_output(tmp_path / "file", b"content")
    assert not list(tmp_path.iterdir())


def test_a_file_that_a_user_asked_for_has_the_permissions_of_others(tmp_path: Path) -> None:
    path, before = tmp_path / "plan.svg", os.umask(0o027)
    try:
        write_output(path, b"<svg/>")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(before)
