"""Checkpoints that are loaded as they are: made into bundles once, and anew when they change."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import edgerun
from edgerun import env
from edgerun.errors import BundleError, InputError, MissingDependencyError, StorageError
from edgerun.files.drafts import make_draft
from edgerun.llm import checkpoints
from edgerun.llm.checkpoints import bundle_of, is_checkpoint
from edgerun.llm.loading import open_model

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "llama", tmp_path / "my-llama"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of models alone: kernels stay where they are compiled already."""
    folder = tmp_path / "cache"
    own = env.settings()
    monkeypatch.setattr(
        checkpoints, "settings", lambda: env.Settings(**{**vars_of(own), "cache_dir": folder})
    )
    yield folder


def vars_of(settings: env.Settings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in settings.__slots__}


def test_a_checkpoint_is_told_from_a_bundle(checkpoint: Path, tmp_path: Path) -> None:
    assert is_checkpoint(checkpoint)
    own = Path(__file__).parents[2] / "models" / "default" / "bundle"
    gguf, text = tmp_path / "a.bin", tmp_path / "b.gguf"
    gguf.write_bytes(b"GGUF" + bytes(8))
    text.write_text("GG")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert is_checkpoint(gguf)
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(gguf, folder / "one.gguf")
    assert is_checkpoint(folder)
    shutil.copy(gguf, folder / "two.gguf")
    for other in (own, text, pipe, folder, tmp_path / "none", "nul\0l", "x" * 5000):
        assert not is_checkpoint(other)


def test_a_bundle_is_made_once_and_anew_when_the_checkpoint_changes(checkpoint: Path) -> None:
    said: list[str] = []
    first = bundle_of(checkpoint, said.append)
    assert first.name == "my-llama" and len(said) >= 2
    assert bundle_of(checkpoint, said.append) == first
    count = len(said)
    os.utime(checkpoint / "config.json", ns=(1, 1))
    assert bundle_of(checkpoint, said.append) != first
    assert len(said) > count
    assert not first.exists(), "what the checkpoint was is of no use"


def test_a_model_says_what_its_exported_bundle_says(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from edgerun_export.pipeline import export

    with caplog.at_level(logging.WARNING), edgerun.load(checkpoint) as llm:
        direct = llm.generate([1, 2, 3], max_tokens=8, temperature=0).ids
    assert "making a bundle of" in caplog.text and "`edgerun export`" in caplog.text
    export(checkpoint, tmp_path / "bundle")
    with edgerun.load(tmp_path / "bundle") as llm:
        assert llm.generate([1, 2, 3], max_tokens=8, temperature=0).ids == direct


def test_what_cannot_be_made_leaves_nothing(checkpoint: Path, cache: Path) -> None:
    (checkpoint / "config.json").write_text('{"model_type": "nothing"}')
    with pytest.raises(InputError, match="nothing"):
        edgerun.load(checkpoint)
    assert not list(cache.rglob("manifest.json"))
    with pytest.raises(BundleError, match="nor is it a checkpoint"):
        edgerun.load(checkpoint.parent)


def test_a_cache_that_cannot_be_written_is_named(
    checkpoint: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file")
    with pytest.raises(StorageError, match="cannot make a bundle in .*models"):
        edgerun.load(checkpoint)


def test_a_full_disk_leaves_no_bundle_and_the_next_load_makes_one(
    checkpoint: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="no space left while writing"):
            edgerun.load(checkpoint)
    assert not list(cache.rglob("*.json")) and not list(cache.rglob("*.edgerun-part"))
    with edgerun.load(checkpoint) as llm:
        assert llm.generate([1, 2, 3], max_tokens=2).ids


def test_a_model_of_the_hub_is_fetched_once(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path
) -> None:
    make, asked = checkpoints._exporter(), list[str]()

    def fetch(source: str, folder: Path, progress: Callable[[str], None]) -> None:
        asked.append(source)
        make(os.fspath(checkpoint), folder, progress)

    monkeypatch.setattr(checkpoints, "_exporter", lambda: fetch)
    for _ in range(2):
        assert is_checkpoint("hf:owner/a-model")
        with edgerun.load("hf:owner/a-model") as llm:
            assert llm.model.path.name == "a-model"
    assert asked == ["hf:owner/a-model"]


@pytest.mark.parametrize(
    "name", ["", "nobody", "../x", "a/..", "a/b/c", "a/b/../c.gguf", "/etc/passwd", "~/x", " a b/c"]
)
def test_what_is_no_name_of_the_hub_asks_nobody(
    name: str, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not is_checkpoint(f"hf:{name}")
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(
            InputError, match=r"is no hub id: expected hf:owner/name or hf:owner/name/file\.gguf"
        ),
    ):
        edgerun.load(f"hf:{name}")
    assert not cache.exists() and not caplog.text


def test_without_the_exporter_a_sentence_says_what_is_missing(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "EXPORTERS", "edgerun.nobody")
    with pytest.raises(MissingDependencyError, match=r"edgerun\[export\]"):
        edgerun.load(checkpoint)


def test_another_process_may_be_faster(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = checkpoints._exporter()

    def slow(source: str, folder: Path, progress: object) -> None:
        make(source, folder, lambda text: None)
        make(source, folder, lambda text: None)

    monkeypatch.setattr(checkpoints, "_exporter", lambda: slow)
    assert (bundle_of(checkpoint, lambda text: None) / "manifest.json").is_file()


NAMES = {
    "Llama-3.2-1B-Instruct": "Llama-3.2-1B-Instruct",
    "tiny.gguf": "tiny",
    "..x": "..x",
    ".gguf": "model",
    "...gguf": "model",
    "x" * 255: "x" * 200,
    os.fsdecode(b"caf\xe9"): "caf\ufffd",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_is_called_as_the_checkpoint_is(checkpoint: Path, cache: Path, name: str) -> None:
    renamed = checkpoint.rename(checkpoint.parent / name)
    folder = bundle_of(renamed, lambda text: None)
    assert folder.name == NAMES[name] and len(folder.relative_to(cache / "models").parts) == 3
    with edgerun.load(renamed) as llm:
        assert llm.model.path == folder


@pytest.mark.parametrize("name", [".", "..", "my-llama", "sub/.."])
def test_where_one_is_says_no_more_than_a_name(
    checkpoint: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint / "sub").mkdir()
    here = {"..": checkpoint / "sub", "my-llama": checkpoint.parent}
    monkeypatch.chdir(here.get(name, checkpoint))
    assert bundle_of(Path(name), lambda text: None).name == "my-llama"


def test_a_file_behind_a_link_has_the_name_of_the_link(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / "0123abcd"
    blob.parent.mkdir()
    blob.write_bytes(b"GGUF")
    link = tmp_path / "tiny.Q4_0.gguf"
    link.symlink_to(blob)
    assert checkpoints._described(link)[::3] == (os.fspath(link), "tiny.Q4_0")
    assert checkpoints._described(link)[1] == os.fspath(blob)


def test_another_name_of_a_checkpoint_is_a_link_to_its_bundle(checkpoint: Path) -> None:
    said: list[str] = []
    first = bundle_of(checkpoint, said.append)
    link, count = checkpoint.parent / "link", len(said)
    link.symlink_to(checkpoint)
    for _ in range(2):
        second = bundle_of(link, said.append)
        assert second.name == "link" and second.resolve() == first
    assert len(said) == count
    with edgerun.load(link) as llm:
        assert llm.generate([1, 2, 3], max_tokens=2).ids
    shutil.rmtree(first)
    assert not bundle_of(link, said.append).is_symlink()


def test_without_links_a_bundle_has_its_first_name(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bundle_of(checkpoint, lambda text: None)
    link = checkpoint.parent / "link"
    link.symlink_to(checkpoint)

    def refuse(*args: object, **options: object) -> None:
        raise OSError

    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert bundle_of(link, lambda text: None) == first


def test_another_process_may_be_faster_than_an_import(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, made = checkpoints._exporter, list[Path]()

    def slow() -> Callable[[str, Path, Callable[[str], None]], None]:
        monkeypatch.setattr(checkpoints, "_exporter", load)
        made.append(bundle_of(checkpoint, lambda text: None))
        (made[0] / "mark").touch()
        return load()

    monkeypatch.setattr(checkpoints, "_exporter", slow)
    assert bundle_of(checkpoint, lambda text: None) == made[0]
    assert (made[0] / "mark").exists()


def test_a_draft_is_no_bundle(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is renamed, or removed, in a moment."""
    folder = bundle_of(checkpoint, lambda text: None)
    draft = make_draft(folder)
    for file in folder.iterdir():
        file.rename(draft.folder / file.name)
    assert not bundle_of(checkpoint, lambda text: None).is_symlink()
    draft.discard()


def test_what_others_make_meanwhile_stays(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process exports, the checkpoint changes, two others export, one has finished."""
    make, others = checkpoints._exporter(), list[Path]()

    def interrupted(source: str, folder: Path, progress: Callable[[str], None]) -> None:
        monkeypatch.setattr(checkpoints, "_exporter", lambda: make)
        os.utime(checkpoint / "config.json", ns=(1, 1))
        others.append(bundle_of(checkpoint, progress))
        others.append(others[0].parent.with_name("other") / "my-llama")
        others[1].parent.mkdir()
        draft = make_draft(others[1])
        (draft.folder / "manifest.json").write_text("{}")
        others.append(draft.folder)
        make(source, folder, progress)

    first = bundle_of(checkpoint, lambda text: None)
    os.utime(checkpoint / "config.json", ns=(2, 2))
    monkeypatch.setattr(checkpoints, "_exporter", lambda: interrupted)
    assert bundle_of(checkpoint, lambda text: None).exists()
    assert [each.exists() for each in (first, others[0], others[2])] == [False, True, True]


def test_drafts_of_killed_processes_go(checkpoint: Path) -> None:
    first = bundle_of(checkpoint, lambda text: None)
    killed = first.parent.with_name("killed")
    killed.mkdir()
    draft = make_draft(killed / "x")
    os.close(draft.lock)
    os.utime(checkpoint / "config.json", ns=(1, 1))
    bundle_of(checkpoint, lambda text: None)
    assert not draft.folder.exists()


def test_versions_that_share_a_cache_leave_each_other_their_bundles(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles = []
    for number in range(2 + checkpoints.OTHER_VERSIONS):
        monkeypatch.setattr(checkpoints, "__version__", f"{number}.0-rc1")
        bundles.append(bundle_of(checkpoint, lambda text: None))
        os.utime(bundles[-1].parent, (number, number))
    assert len(set(bundles)) == len(bundles), "another version makes others"
    assert [each.exists() for each in bundles] == [False] + [True] * (len(bundles) - 1)


def test_another_version_fetches_anew(monkeypatch: pytest.MonkeyPatch, checkpoint: Path) -> None:
    make = checkpoints._exporter()

    def fetch(source: str, folder: Path, progress: Callable[[str], None]) -> None:
        make(os.fspath(checkpoint), folder, progress)

    monkeypatch.setattr(checkpoints, "_exporter", lambda: fetch)
    first = bundle_of(Path("hf:a/b"), lambda text: None)
    monkeypatch.setattr(checkpoints, "__version__", "another")
    assert bundle_of(Path("hf:a/b"), lambda text: None) != first


def test_what_lost_its_manifest_is_made_anew(checkpoint: Path) -> None:
    (bundle_of(checkpoint, lambda text: None) / "manifest.json").unlink()
    with edgerun.load(checkpoint) as llm:
        assert (llm.model.path / "manifest.json").is_file()


@pytest.mark.parametrize("name", ["manifest.json", "model.onnx", "tokenizer.json"])
def test_a_damaged_bundle_of_ours_says_how_it_is_made_anew(
    checkpoint: Path, tmp_path: Path, name: str
) -> None:
    folder = bundle_of(checkpoint, lambda text: None)
    (folder / name).write_bytes(b"{")
    with pytest.raises(BundleError, match="`edgerun cache clear` deletes it") as caught:
        edgerun.load(checkpoint)
    assert "export the model again" not in str(caught.value)
    with pytest.raises(BundleError, match="`edgerun cache clear` deletes it"):
        open_model(checkpoint, verify=True)
    shutil.copytree(folder, tmp_path / "own")
    with pytest.raises(BundleError) as caught:
        edgerun.load(tmp_path / "own")
    assert "cache clear" not in str(caught.value)
