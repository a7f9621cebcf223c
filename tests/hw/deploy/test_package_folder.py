"""Packages take the place of packages, and of nothing else."""

import dataclasses
import json
from pathlib import Path

import pytest

from edgerun.errors import InputError
from edgerun_hw.deploy.emulate.sample import sample_overlay
from edgerun_hw.deploy.errors import PackageError
from edgerun_hw.deploy.package import Sources, make_package, read_package, write_package


def renamed(sources: Sources) -> Sources:
    """The same design as another application."""
    overlay = sources.bitstream.with_name("renamed.dtbo")
    overlay.write_bytes(sample_overlay("renamed.bit.bin", hertz=250_000_000))
    return dataclasses.replace(sources, name="renamed", overlay=overlay)


def test_existing_folder_is_replaced_only_when_asked_and_only_a_package(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = make_package(sources)
    write_package(package, tmp_path / "out")
    with pytest.raises(PackageError, match="--force"):
        write_package(package, tmp_path / "out")
    write_package(package, tmp_path / "out", force=True)
    monkeypatch.chdir(tmp_path / "out")
    write_package(package, Path("."), force=True)
    assert read_package(tmp_path / "out").files == package.files
    (tmp_path / "home").mkdir()
    with pytest.raises(PackageError, match="not a package"):
        write_package(package, tmp_path / "home", force=True)
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


@pytest.mark.parametrize(
    "manifest",
    [
        {"format": "edgerun-bundle", "format_version": 1, "files": {"model.onnx": {"size": 1}}},
        {"format": 3, "files": {}},
        {"format": 3, "application": "../up", "board": "kv260"},
        {"format": 3, "application": "up", "board": ["kv260"]},
        ["format", "application", "board"],
    ],
)
def test_what_has_another_manifest_is_not_replaced(
    sources: Sources, tmp_path: Path, manifest: object
) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "model.onnx").write_text("hours of work")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(PackageError, match="is not a package, so --force does not replace it"):
        write_package(make_package(sources), folder, force=True)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_package_is_replaced_and_what_else_its_folder_holds_stays(
    sources: Sources, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    write_package(make_package(sources), out)
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps(manifest | {"format": 1}))  # an older edition
    (out / "manifest.json.sig").write_bytes(b"of the old manifest")
    (out / "notes.txt").write_text("precious")
    (out / "reports").mkdir()
    (out / "reports" / "timing.rpt").write_text("precious, too")
    package = make_package(renamed(sources))
    write_package(package, out, force=True)
    assert {file.name for file in out.iterdir()} == {*package.files, "notes.txt", "reports"}
    assert read_package(out).files == package.files
    assert (out / "notes.txt").read_text() == "precious"
    assert (out / "reports" / "timing.rpt").read_text() == "precious, too"


def test_a_file_in_the_way_of_a_packages_is_not_replaced(sources: Sources, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_package(make_package(sources), out)
    (out / "renamed.dtbo").write_text("precious")
    with pytest.raises(InputError, match=r"holds a 'renamed\.dtbo' that was not made by this"):
        write_package(make_package(renamed(sources)), out, force=True)
    assert (out / "renamed.dtbo").read_text() == "precious"
