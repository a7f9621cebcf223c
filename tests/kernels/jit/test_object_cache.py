"""Compiled kernels on disk."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edgerun.kernels.jit.compile_pool import helpers_allowed
from edgerun.kernels.jit.object_cache import FOLDERS_KEPT, Entry, ObjectCache

NOBODY = 65534
ENTRY = Entry(b"\x7fELF\n\x00code", "rows x")


def test_entry_comes_back(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "missing", "1")
    assert cache.load("add") is None
    cache.save("add", ENTRY)
    assert cache.load("add") == ENTRY
    assert ObjectCache(tmp_path / "missing", "2").load("add") is None
    assert [path.name for path in cache.folder.iterdir()] == ["add"]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"{}\n"])
def test_damaged_entry_counts_as_missing(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    cache = ObjectCache(tmp_path, "1")
    cache.save("add", ENTRY)
    path = cache.folder / "add"
    path.write_bytes(damage(path.read_bytes()))
    assert cache.load("add") is None
    cache.save("add", ENTRY)
    assert cache.load("add") == ENTRY


def change_header(data: bytes) -> bytes:
    return data.replace(b'"rows x"', b'"x rows"')


def drop_arguments(data: bytes) -> bytes:
    return data.replace(b'"arguments"', b'"argumemts"')


@pytest.mark.parametrize(
    "damage",
    [change_header, drop_arguments, lambda data: b"[1]\n" + data, lambda data: b"[" * 99999],
)
def test_the_digest_covers_the_header(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    cache = ObjectCache(tmp_path, "1")
    cache.save("add", ENTRY)
    path = cache.folder / "add"
    before = path.read_bytes()
    path.write_bytes(damage(before))
    assert path.read_bytes() != before
    assert cache.load("add") is None


def test_an_entry_is_good_under_its_name_and_version_only(tmp_path: Path) -> None:
    cache, other = ObjectCache(tmp_path, "1"), ObjectCache(tmp_path, "2")
    cache.save("add", ENTRY)
    other.save("gate", ENTRY)
    shutil.copy(cache.folder / "add", cache.folder / "gate")
    shutil.copy(cache.folder / "add", other.folder / "add")
    assert cache.load("gate") is None
    assert other.load("add") is None
    assert other.load("gate") == ENTRY


def give_away(path: Path) -> None:
    os.chown(path, NOBODY, 0)


def open_to_all(path: Path) -> None:
    path.chmod(0o666)


def make_link(path: Path) -> None:
    os.replace(path, path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("change", [give_away, open_to_all, make_link])
def test_code_that_somebody_else_could_have_written_is_compiled_again(
    tmp_path: Path, change: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    if change is give_away and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    cache = ObjectCache(tmp_path, "1")
    cache.save("add", ENTRY)
    change(cache.folder / "add")
    assert cache.load("add") is None
    cache.save("add", ENTRY)
    assert cache.load("add") == ENTRY
    assert cache.all_kept
    assert len(caplog.records) <= 1


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, "1")
    cache.save("add", ENTRY)
    make_pipe(cache.folder / "add")
    assert cache.load("add") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("whose", ["root", "folder"])
def test_a_cache_of_somebody_else_is_not_used_and_this_is_said_once(
    tmp_path: Path, whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As when root runs with a folder that another user made."""
    planted = ObjectCache(tmp_path / "cache", "1")
    planted.save("add", ENTRY)
    give_away(planted.root if whose == "root" else planted.folder)
    before = (planted.folder / "add").read_bytes()
    cache = ObjectCache(planted.root, "1")
    for _ in range(2):
        assert cache.load("add") is None
        cache.save("add", Entry(b"other", ()))
    assert (planted.folder / "add").read_bytes() == before
    (record,) = caplog.records
    says = record.getMessage()
    assert str(planted.folder) in says
    assert f"belongs to user {NOBODY}" in says
    assert "chown" in says
    assert "EDGERUN_CACHE" in says
    assert not cache.all_kept


def test_folder_that_cannot_be_made_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cache = ObjectCache(tmp_path / "file", "1")
    with caplog.at_level(logging.WARNING):
        cache.save("add", ENTRY)
        cache.save("gate", ENTRY)
    (record,) = caplog.records
    assert "EDGERUN_CACHE" in record.getMessage()
    assert cache.load("add") is None


def test_oldest_versions_are_removed(tmp_path: Path) -> None:
    for age in range(8):
        folder = tmp_path / f"kernels-old{age}"
        folder.mkdir()
        os.utime(folder, (time.time() - age * 1000,) * 2)
    (tmp_path / "profile.json").write_text("{}")
    ObjectCache(tmp_path, "new").save("add", ENTRY)
    left = sorted(path.name for path in tmp_path.glob("kernels-*"))
    assert left == ["kernels-new", *(f"kernels-old{age}" for age in range(FOLDERS_KEPT - 1))]
    assert (tmp_path / "profile.json").exists()


SCRIPT = """
import sys
from edgerun.kernels.jit.service import compiled
from edgerun.kernels.run.program import ThreadTeam
ThreadTeam(1)
compiled("add", lanes=4).address
print(*sorted({"numba", "llvmlite"} & set(sys.modules)))
"""


@pytest.mark.skipif(not helpers_allowed(), reason="there is no interpreter for helpers")
def test_compiling_leaves_the_compiler_out_of_this_process(tmp_path: Path) -> None:
    environment = {**os.environ, "EDGERUN_CACHE": str(tmp_path)}
    printed = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for _ in range(2)
    ]
    assert printed == ["\n"] * 2
    assert len(list(tmp_path.glob("kernels-*/add-lanes=4"))) == 1
