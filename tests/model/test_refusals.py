"""Where there is no model, the sentence says what is there instead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgerun.errors import BundleError
from edgerun.model.bundle import open_bundle
from edgerun.model.refusals import POINTER, why_no_model


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.gguf", b"", "a.gguf is empty, so it is no GGUF file"),
        ("a.gguf", b"GGU", "a.gguf does not begin with 'GGUF', so it is no GGUF file"),
        ("a.gguf", POINTER + b"v1\noid sha256:12\n", "is a pointer of Git LFS"),
        ("a.safetensors", POINTER + b"v1\n", "is a pointer of Git LFS"),
        ("a.bin", b"\1\2\3", "`edgerun export` makes a bundle of a llama2.c file"),
        ("notes.txt", b"hi", "is no model: expected the folder of a bundle"),
    ],
)
def test_a_file_that_is_no_model(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert words in why_no_model(path)
    with pytest.raises(BundleError, match="no GGUF|Git LFS|is no model"):
        open_bundle(path)


def test_what_is_not_there_may_not_be_read_or_is_no_file(tmp_path: Path) -> None:
    assert why_no_model(tmp_path / "a").startswith(f"there is no model at {tmp_path / 'a'}: give")
    (tmp_path / "file").touch()
    assert why_no_model(tmp_path / "file" / "a").startswith("there is no model at")
    os.mkfifo(tmp_path / "a.gguf")  # which is not waited for
    assert "a.gguf is no model: expected" in why_no_model(tmp_path / "a.gguf")


def test_what_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this user were not allowed to, which root always is."""
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    for path in (file, tmp_path):
        assert why_no_model(path).startswith(f"cannot read {path}: Permission denied; ")


def test_a_folder_of_several_files_asks_for_one_of_them(tmp_path: Path) -> None:
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert "holds 2 GGUF files (a.gguf, b.gguf): name" in why_no_model(tmp_path)
    for name in ("c.gguf", "d.gguf"):
        (tmp_path / name).touch()
    assert "(a.gguf, b.gguf, c.gguf, ...)" in why_no_model(tmp_path)
