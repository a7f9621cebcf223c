"""``edgerun cache`` deletes what edgerun can make again, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgerun.cli.cache import CONTENTS, MACHINE, clear, contents
from tests.cli.conftest import Run

DIGESTS = "0123456789abcdef" * 2, "0123456789abcdef"
PROFILE = '{"format": 1, "profiles": {}}'
KERNELS = f"kernels-{DIGESTS[1]}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache with all that there may be, beside files of somebody else."""
    cache = tmp_path / "cache"
    for pattern in CONTENTS:
        if pattern == MACHINE:
            (cache / pattern).write_text(PROFILE)
        else:
            part = cache / pattern.replace("*", DIGESTS[pattern == "kernels-*"]) / "part"
            part.mkdir(parents=True)
            (part / "file").write_bytes(b"x" * 1000)
    (cache / "notes").write_text("mine")
    return cache


def test_contents_are_listed_with_their_sizes(folder: Path) -> None:
    sizes = {item.name: item.bytes for item in contents(folder)}
    assert sizes[KERNELS] == sizes["fpga/synthesis"] == 1000
    assert sizes[MACHINE] == len(PROFILE)
    assert len(sizes) == len(CONTENTS)


def test_clearing_leaves_the_files_of_others(folder: Path) -> None:
    clear(folder)
    assert [path.name for path in folder.iterdir()] == ["notes"]


def test_a_link_is_deleted_and_not_what_it_leads_to(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"x" * 5000)
    link = folder / f"kernels-{'f' * 16}"
    link.symlink_to(tmp_path / "precious")
    (folder / KERNELS / "link").symlink_to(tmp_path / "precious")
    assert all(item.bytes < 2000 for item in contents(folder))
    clear(folder)
    assert (tmp_path / "precious" / "file").exists()
    assert not link.is_symlink()


@pytest.mark.parametrize(
    "name",
    [
        "fpga/my.v",
        "fpga/synthesis/notes.txt",
        "openvino/notes.txt",
        "ssh/id_ed25519",
        "verified/0123456789abcdef",
        "simulators/board.json",
        "kernels-mine/file",
        f"{KERNELS}-backup/file",
        "machine.json",
    ],
)
def test_what_somebody_else_has_under_our_names_stays(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"speed": "high"}')
    assert list(contents(tmp_path)) == []
    clear(tmp_path)
    assert path.read_text() == '{"speed": "high"}'


@pytest.mark.parametrize("link", ["verified", "fpga", "fpga/synthesis"])
def test_a_folder_that_leads_elsewhere_is_not_followed(tmp_path: Path, link: str) -> None:
    elsewhere, cache = tmp_path / "elsewhere", tmp_path / "cache"
    file = elsewhere / ("synthesis" if link == "fpga" else "") / DIGESTS[0]
    for path in (file, cache / link):
        path.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    (cache / link).symlink_to(elsewhere)
    assert list(contents(cache)) == []
    clear(cache)
    assert file.exists()


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
