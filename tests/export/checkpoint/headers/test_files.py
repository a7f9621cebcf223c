"""What reads a checkpoint's files stays within them, and within its bounds."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.files import (
    CONFIG_LIMIT_BYTES,
    ByteFile,
    decode_config,
    decode_json,
    read_small,
)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[ByteFile]:
    (tmp_path / "four").write_bytes(b"1234")
    opened = ByteFile(tmp_path / "four")
    yield opened
    opened.close()


def test_all_of_a_file_can_be_read(file: ByteFile) -> None:
    assert file.read(0, 4).tobytes() == b"1234"
    assert file.read(3, 1).tobytes() == b"4"
    assert file.read(4, 0).tobytes() == b""


@pytest.mark.parametrize(
    ("offset", "count"), [(0, 5), (4, 1), (5, 0), (-1, 1), (2, -1), (0, 1 << 62)]
)
def test_nothing_else_can_be_read(file: ByteFile, offset: int, count: int) -> None:
    message = f"'four' is truncated: {count} bytes at offset {offset} were expected"
    with pytest.raises(CheckpointError, match=message):
        file.read(offset, count)


class Failing(io.BytesIO):
    """A file on a disk that fails."""

    def readinto(self, _: object) -> int:
        raise OSError(5, "Input/output error")


def test_a_disk_that_fails_is_told(file: ByteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(file, "_file", Failing())
        with pytest.raises(CheckpointError, match="cannot read 'four': .*Input/output error"):
            file.read(0, 4)


@pytest.mark.parametrize(
    ("name", "message"),
    [("none", "no file '.*none'"), ("x" * 300, "cannot open '.*xxx': File name too long")],
)
def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        ByteFile(tmp_path / name)


@pytest.mark.parametrize("name", ["nul\0l", "circle"])
def test_a_name_that_leads_nowhere_is_no_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "circle").symlink_to("circle")
    for inside in (False, True):
        with pytest.raises(CheckpointError, match="no file '"):
            ByteFile(tmp_path / name, inside=inside)


def test_small_files_are_as_small_as_asked_for(tmp_path: Path) -> None:
    (tmp_path / "four").write_bytes(b"1234")
    assert read_small(tmp_path / "four", 4) == b"1234"
    with pytest.raises(CheckpointError, match="'four' has 4 bytes; at most 3 are accepted"):
        read_small(tmp_path / "four", 3)


@pytest.mark.parametrize("value", ["1", "NaN"])
def test_a_configuration_has_a_bound(value: str) -> None:
    text = f'{{"a": {value}}}'.encode()
    assert decode_config(text.ljust(CONFIG_LIMIT_BYTES), "config.json").keys() == {"a"}
    with pytest.raises(CheckpointError, match="'config.json' has 4194305 bytes; at most 4194304"):
        decode_config(text.ljust(CONFIG_LIMIT_BYTES + 1), "config.json")


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'"NaN"', b'{"a": "\xff"}', b'{"a": ' + b"[" * 100_000, b'{"a": tru}']
)
@pytest.mark.parametrize("also", [b"", b" NaN"])
def test_what_is_no_object_is_refused(text: bytes, also: bytes) -> None:
    with pytest.raises(CheckpointError, match="'config.json' is not the JSON expected"):
        decode_config(text + also, "config.json")
    with pytest.raises(CheckpointError, match="'config.json' is not the JSON expected"):
        decode_json(text + also, "config.json")
