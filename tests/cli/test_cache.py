"""``edgerun cache`` deletes what edgerun can make again, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgerun.cli.cache import CONTENTS, clear, contents
from tests.cli.conftest import Run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache with all that there may be, beside files of somebody else."""
    cache = tmp_path / "cache"
    for pattern in CONTENTS:
        if pattern == "machine.json":
            (cache / pattern).write_text("{}")
        else:
            (cache / pattern.replace("*", "0123") / "part").mkdir(parents=True)
            (cache / pattern.replace("*", "0123") / "part" / "file").write_bytes(b"x" * 1000)
    (cache / "notes").write_text("mine")
    return cache


def test_contents_are_listed_with_their_sizes(folder: Path) -> None:
    sizes = {item.name: item.bytes for item in contents(folder)}
    assert sizes["kernels-0123"] == 1000
    assert sizes["machine.json"] == 2
    assert len(sizes) == len(CONTENTS)


def test_clearing_leaves_the_files_of_others(folder: Path) -> None:
    clear(folder, list(contents(folder)))
    assert [path.name for path in folder.iterdir()] == ["notes"]


def test_a_link_is_deleted_and_not_what_it_leads_to(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"x" * 5000)
    (folder / "kernels-link").symlink_to(tmp_path / "precious")
    (folder / "kernels-0123" / "link").symlink_to(tmp_path / "precious")
    assert all(item.bytes < 2000 for item in contents(folder))
    clear(folder, list(contents(folder)))
    assert (tmp_path / "precious" / "file").exists()
    assert not (folder / "kernels-link").is_symlink()


def test_the_command(run: Run, folder: Path, cache_of: None) -> None:
    shown = run("cache")
    assert (shown.code, shown.err) == (0, "")
    assert "compiled CPU kernels" in shown.out
    assert json.loads(run("cache", "show", "--json").out)["folder"] == str(folder)
    assert "deleted" in run("cache", "clear").out
    assert run("cache").out == f"{folder}: nothing is kept\n"
    wrong = run("cache", "purge")
    assert (wrong.code, wrong.out) == (2, "")
    assert "expected show or clear" in wrong.err


@pytest.fixture
def cache_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgerun import env

    settings = env.read_settings({"EDGERUN_CACHE": str(folder)})
    monkeypatch.setattr(env, "settings", lambda: settings)
