"""What other packages add is found beside our own; what is wrong with it is one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgerun import discovery
from edgerun.discovery import ADDED, entries, entry_names
from edgerun.errors import InputError

ROOM = "edgerun.formats"
FORMATS = ["int2", "int2_asym", "int2_offset", "int4", "int4_asym", "int4_offset", "int8"]
FORMATS += ["int8_asym", "int8_offset", "ternary"]
FORMAT = "from edgerun.formats.base import BlockFormat\nFORMAT = BlockFormat({!r}, 4, -3, 3)\n"


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where a package adds formats."""
    folder = tmp_path / "site" / ADDED / "formats"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(discovery, "_anything_added", lambda: True)
    before = set(sys.modules)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    assert not any(name.startswith(ADDED) for name in before)
    return folder


def test_nothing_is_added_where_no_package_adds() -> None:
    assert discovery.added_room("edgerun.formats") is None
    assert list(entries(ROOM, "FORMAT")) == FORMATS


def test_files_of_other_packages_come_after_ours_and_helpers_are_none(added: Path) -> None:
    (added / "aaa.py").write_text(FORMAT.format("aaa"), "utf-8")
    (added / "helper.py").write_text("of_no_FORMAT = 5", "utf-8")
    assert entry_names(ROOM, "FORMAT") == [*FORMATS, "aaa"]
    assert entries(ROOM, "FORMAT")["aaa"].high == 3
    assert entry_names("edgerun.ops", "OP") == list(entries("edgerun.ops", "OP"))


def test_a_file_that_cannot_be_imported_is_named(added: Path) -> None:
    (added / "broken.py").write_text("FORMAT = nowhere", "utf-8")
    with pytest.raises(InputError, match="edgerun_plugins/formats/broken.py, .* NameError: name"):
        entries(ROOM, "FORMAT")


def test_a_file_cannot_take_the_place_of_one_of_ours(added: Path) -> None:
    (added / "int4.py").write_text(FORMAT.format("int4"), "utf-8")
    with pytest.raises(InputError, match="holds int4, which is the name of one of edgerun's own"):
        entries(ROOM, "FORMAT")


def test_rooms_of_the_exporter_are_a_folder_deeper(added: Path) -> None:
    assert discovery.added_room("edgerun_export.architectures") == f"{ADDED}.export.architectures"
    assert discovery.added_room("edgerun.engine.sampling") == f"{ADDED}.engine.sampling"
