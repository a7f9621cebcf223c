"""Bundles appear whole or not at all, and take nothing away that is not theirs."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from edgerun.errors import InputError
from edgerun.files import drafts, folder
from edgerun_export.bundle_files import BUNDLE_FILES
from edgerun_export.calibrate.step import CalibrationOptions
from edgerun_export.pipeline import ExportOptions, export

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FORCE = ExportOptions(force=True)


def export_to(out, name="llama", options=FORCE):
    return export(GOLDEN / name, out, options)


def own_files(bundle):
    return {*json.loads((bundle / "manifest.json").read_text())["files"], "manifest.json"}


def check_whole(bundle, others=frozenset()):
    manifest = json.loads((bundle / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        assert sha256((bundle / name).read_bytes()).hexdigest() == entry["sha256"], name
    assert {path.name for path in bundle.iterdir()} == own_files(bundle) | set(others)


@pytest.fixture
def bundle(tmp_path):
    """A bundle with things of the user's in its folder."""
    out = tmp_path / "out"
    export_to(out)
    (out / "notes.txt").write_text("precious")
    (out / "runs" / "first").mkdir(parents=True)
    (out / "runs" / "first" / "log").write_text("precious, too")
    (out / "latest").symlink_to("runs/first/log")
    return out


OTHERS = {"notes.txt", "runs", "latest"}


def check_others(bundle):
    assert (bundle / "notes.txt").read_text() == "precious"
    assert (bundle / "latest").is_symlink()
    assert (bundle / "latest").read_text() == "precious, too"


def test_force_replaces_the_bundle_and_nothing_else(bundle):
    written = (bundle / "notes.txt").stat()
    old = bundle / "openvino_model.xml"  # of an export in another profile
    old.write_text("old")
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"]["openvino_model.xml"] = {"size": 3, "sha256": "0"}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    result = export_to(bundle, "qwen2")
    assert result.manifest["model"]["architecture"] == "qwen2"
    check_whole(bundle, OTHERS)
    check_others(bundle)
    assert (bundle / "notes.txt").stat().st_ino == written.st_ino
    assert list(bundle.parent.iterdir()) == [bundle]


def test_a_file_in_the_way_is_named_before_any_work(bundle):
    """The old manifest does not list it, so it is not the exporter's to replace."""
    (bundle / "openvino_model.bin").write_text("mine")
    before = (bundle / "manifest.json").read_bytes()
    with pytest.raises(InputError, match=r"'openvino_model\.bin', which its manifest does not"):
        export(Path("no such checkpoint"), bundle, FORCE)
    assert (bundle / "openvino_model.bin").read_text() == "mine"
    assert (bundle / "manifest.json").read_bytes() == before


def test_a_name_that_is_new_in_a_bundle_is_found_before_the_swap(bundle, monkeypatch):
    monkeypatch.setattr("edgerun_export.target.BUNDLE_FILES", frozenset())
    manifest = json.loads((bundle / "manifest.json").read_text())
    del manifest["files"]["config.json"]
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    before = (bundle / "config.json").read_bytes()
    with pytest.raises(InputError, match=r"holds a 'config\.json' that was not made by this"):
        export_to(bundle, "qwen2")
    assert (bundle / "config.json").read_bytes() == before
    check_others(bundle)
    assert list(bundle.parent.iterdir()) == [bundle]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "other"}', '{"files": "edgerun-bun"}'])
def test_a_folder_without_a_bundles_manifest_is_not_replaced(text, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text(text)
    with pytest.raises(InputError, match="is no bundle, so --force does not replace it"):
        export_to(tmp_path / "out")
    assert (tmp_path / "out" / "manifest.json").read_text() == text


@pytest.mark.parametrize("force", [True, False])
def test_the_working_folder_is_not_replaced(tmp_path, monkeypatch, force):
    monkeypatch.chdir(tmp_path)
    for out in (Path(), tmp_path):
        with pytest.raises(InputError, match=f"'{out}' is the working folder, which another would"):
            export_to(out, options=ExportOptions(force=force))
    assert list(tmp_path.iterdir()) == []


def test_every_name_that_an_export_uses_is_known_beforehand(exported):
    for options in ({}, {"profile": "genai"}):
        assert own_files(exported("llama", weights="fp32", **options).folder) <= BUNDLE_FILES
    pytest.importorskip("openvino_tokenizers")
    folder = exported("llama", weights="fp32", profile="openvino").folder
    assert own_files(folder) <= BUNDLE_FILES


def test_where_hard_links_are_not_to_be_had_files_are_copied(bundle, monkeypatch):
    def refuse(*_):
        raise OSError("no hard links here")

    monkeypatch.setattr("edgerun.files.folder.os.link", refuse)
    export_to(bundle, "qwen2")
    check_whole(bundle, OTHERS)
    check_others(bundle)


def test_a_link_to_a_folder_is_followed(bundle, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(bundle)
    assert export_to(link, "qwen2").folder == link
    assert link.is_symlink()
    check_whole(bundle, OTHERS)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "link"}


def test_the_old_and_the_new_bundle_change_places_in_one_step(bundle, monkeypatch):
    """No other way to rename is open; and whoever looks meanwhile always sees a bundle."""
    if not sys.platform.startswith("linux"):
        pytest.skip("renameat2 is Linux's")

    def refuse(*_):
        raise AssertionError("the folder is away for a moment")

    for name in ("replace", "rename", "renames"):
        monkeypatch.setattr(os, name, refuse)
    before = bundle.stat().st_ino
    export_to(bundle, "qwen2")
    assert bundle.stat().st_ino != before
    check_whole(bundle, OTHERS)


@pytest.mark.parametrize("again", [False, True])
def test_everything_has_reached_the_disk_before_it_takes_its_place(again, tmp_path, monkeypatch):
    out = tmp_path / "out"
    if again:
        export_to(out)
        (out / "runs").mkdir()
        (out / "runs" / "log").write_text("precious")
    events = []
    fsync, swap = os.fsync, folder._swap

    def record_fsync(descriptor):
        status = os.fstat(descriptor)
        kind = "folder" if stat.S_ISDIR(status.st_mode) else "file"
        events.append((kind, status.st_ino))
        fsync(descriptor)

    def record_rename(work, target, **how):
        events.append(("files before", {path.stat().st_ino for path in work.rglob("*")}))
        events.append(("folder before", work.stat().st_ino))
        swap(work, target, **how)

    monkeypatch.setattr("os.fsync", record_fsync)
    monkeypatch.setattr("edgerun.files.folder._swap", record_rename)
    export_to(out)
    at = next(i for i, event in enumerate(events) if event[0] == "files before")
    synced_before = {inode for _, inode in events[:at]}
    assert events[at][1] <= synced_before
    assert events[at + 1][1] == events[at - 1][1], "the folder itself comes last"
    assert ("folder", tmp_path.stat().st_ino) in events[at + 2 :]
    assert {path.stat().st_ino for path in out.rglob("*")} == events[at][1]


def killed_export(out, *, wait_for="files"):
    """Ends an export by SIGKILL when it has come to a step."""
    code = (
        "import sys; from pathlib import Path; from edgerun_export.pipeline import *\n"
        "def show(step, fraction): print(step, flush=True)\n"
        "export(sys.argv[1], Path(sys.argv[2]), ExportOptions(force=True), show)"
    )
    command = [sys.executable, "-c", code, str(GOLDEN / "qwen2"), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == wait_for:
                process.kill()


def test_what_a_killed_export_left_is_removed_by_the_next_and_mentioned(tmp_path):
    killed_export(tmp_path / "out")
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".out.") and left.name.endswith(".edgerun-part")
    result = export_to(tmp_path / "other")
    assert result.warnings == [
        f"removed '{left.name}', which an export that was killed had left behind"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_only_drafts_of_the_dead_are_removed(tmp_path):
    draft = drafts.make_draft(tmp_path / "of the living")
    (draft.folder / "model.onnx").write_text("half")
    others = tmp_path / "elsewhere"
    others.mkdir()
    (others / "precious").write_text("data")
    (tmp_path / ".link.12345678.edgerun-part").symlink_to(others)
    (tmp_path / ".file.12345678.edgerun-part").write_text("data")
    (tmp_path / ".rsync.part").mkdir()
    before = set(tmp_path.iterdir())
    result = export_to(tmp_path / "out")
    assert result.warnings == []
    assert set(tmp_path.iterdir()) == before | {tmp_path / "out"}
    assert (draft.folder / "model.onnx").exists() and (others / "precious").exists()
    draft.discard()
    assert not draft.folder.exists()


def test_a_draft_that_was_taken_for_a_dead_ones_is_made_again(tmp_path, monkeypatch):
    """Between its making and its lock another export may remove it."""
    lock, removed = drafts._lock, []

    def remove_first(descriptor):
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].rmdir()
        return lock(descriptor)

    monkeypatch.setattr("edgerun.files.drafts._lock", remove_first)
    draft = drafts.make_draft(tmp_path / "x")
    assert draft.folder.is_dir() and draft.folder != removed[0]
    draft.discard()


def test_exports_to_one_folder_do_not_share_what_calibration_has_done(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a house. " * 400, encoding="utf-8")
    options = ExportOptions(calibration=CalibrationOptions((text,), 4, 16))
    out, refusals = tmp_path / "out", []

    def start_another(step, fraction):
        if step == "calibrate" and fraction and not refusals:
            begun = {path.name for path in (tmp_path / ".out.edgerun-calibration").iterdir()}
            with pytest.raises(InputError, match="another export to .*out' is fitting weights"):
                export_to(out, "qwen2", options)
            refusals.append(begun)
            export_to(tmp_path / "other", "qwen2", options)
            assert begun == {p.name for p in (tmp_path / ".out.edgerun-calibration").iterdir()}

    result = export(GOLDEN / "llama", out, options, start_another)
    assert result.manifest["model"]["architecture"] == "llama" and refusals
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "out", "other"}


def test_a_calibrating_export_that_is_refused_leaves_no_folder(tmp_path):
    options = ExportOptions(calibration=CalibrationOptions((tmp_path / "no text",), 4, 16))
    for _ in range(2):  # nor a lock
        with pytest.raises(InputError, match="cannot read"):
            export_to(tmp_path / "out", options=options)
    assert not list(tmp_path.iterdir())


STORM = """
import os, random, signal, sys, time
from pathlib import Path
from edgerun_export.pipeline import *
golden, out, kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

def start(name):
    child = os.fork()
    if child == 0:
        export(golden / name, out, ExportOptions(force=True))
        os._exit(0)
    return child

begin = time.monotonic()
os.waitpid(start("llama"), 0)
needed = time.monotonic() - begin
draw = random.Random(kills)
for kill in range(kills):
    child = start("qwen2" if kill % 2 else "llama")
    time.sleep(draw.random() * 1.2 * needed)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(kill, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize(
    "kills", [6, pytest.param(300, marks=(pytest.mark.slow, pytest.mark.timeout(1800)))]
)
def test_killed_at_any_moment_there_is_a_whole_bundle_and_every_file_of_the_users(kills, bundle):
    command = [sys.executable, "-c", STORM, str(GOLDEN), str(bundle), str(kills)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    done = 0
    with subprocess.Popen(command, **pipes) as process:
        for _ in process.stdout:
            check_whole(bundle, OTHERS)
            check_others(bundle)
            assert len(list(bundle.parent.iterdir())) <= 2, "leftovers add up"
            done += 1
            process.stdin.write("\n")
    assert done == kills
    export_to(bundle)
    assert list(bundle.parent.iterdir()) == [bundle]
