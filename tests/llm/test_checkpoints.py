"""Checkpoints that are loaded as they are: made into bundles once, and anew when they change."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import edgerun
from edgerun import env
from edgerun.errors import BundleError, InputError, MissingDependencyError, StorageError
from edgerun.llm import checkpoints
from edgerun.llm.checkpoints import bundle_of, is_checkpoint

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
    for other in (own, text, pipe, tmp_path, tmp_path / "none", "nul\0l", "x" * 5000):
        assert not is_checkpoint(other)


def test_a_bundle_is_made_once_and_anew_when_the_checkpoint_changes(checkpoint: Path) -> None:
    said: list[str] = []
    first = bundle_of(checkpoint, said.append)
    assert first.name == "my-llama" and len(said) >= 2
    assert bundle_of(checkpoint, said.append) == first
    link = checkpoint.parent / "link"
    link.symlink_to(checkpoint)
    assert bundle_of(link, said.append) == first
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


@pytest.mark.parametrize("name", ["", "nobody", "../x", "a/b/c", "/etc/passwd", "~/x"])
def test_what_is_no_name_of_the_hub_asks_nobody(name: str, cache: Path) -> None:
    with pytest.raises(InputError, match="hub id"):
        edgerun.load(f"hf:{name}")
    assert not list(cache.rglob("manifest.json"))


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
