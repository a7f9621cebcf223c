"""Compiled kernels on disk."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgerun.kernels.compile_pool import helpers_allowed
from edgerun.kernels.object_cache import FOLDERS_KEPT, Entry, ObjectCache

ENTRY = Entry(b"\x7fELF\n\x00code", ("rows", "x"))


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
from edgerun.kernels.registry import compiled
from edgerun.kernels.program import ThreadTeam
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
