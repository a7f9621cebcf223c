"""Weights are hashed once, in the background, and remembered by what the system says of them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgerun.env import read_settings
from edgerun.errors import BundleError, SessionError
from edgerun.llm.llm import load
from edgerun.llm.loading import prepare
from edgerun.llm.options import LoadOptions
from edgerun.model import bundle_files, verification
from edgerun.model.bundle import Bundle, open_bundle
from tests.support.bundles import bundle_of

NAME = "model.onnx.data"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is remembered; files count as settled, and all weights as large."""
    chosen = read_settings({"EDGERUN_CACHE": str(tmp_path / "cache")})
    monkeypatch.setattr(verification, "settings", lambda: chosen)
    monkeypatch.setattr(verification, "SETTLED_NS", 0)
    monkeypatch.setattr("edgerun.model.bundle_files.ALWAYS_HASHED_BYTES", 0)
    return tmp_path / "cache" / verification.FOLDER


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    shutil.copytree(bundle_of("llama", weights="int4"), folder)
    return folder


def flip(path: Path) -> None:
    """Changes a bit of the weights; nothing but the digest can tell."""
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def verified(folder: Path) -> Bundle:
    opened = open_bundle(folder)
    with opened.files.verification() as check:
        check.finish()
    return opened


def test_large_weights_are_hashed_when_a_model_is_loaded(bundle: Path, cache: Path) -> None:
    flip(bundle / NAME)
    with pytest.raises(BundleError, match=f"{NAME} does not match the digest"):
        load(bundle, threads=1)
    assert NAME in open_bundle(bundle).files.unhashed


def test_a_loaded_model_was_found_whole(bundle: Path, cache: Path) -> None:
    with load(bundle, threads=1) as llm:
        assert llm.generate("a", max_tokens=2, ignore_eos=True).ids
    assert cache.is_dir()
    assert NAME not in open_bundle(bundle).files.unhashed


def test_it_is_hashed_once(bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NAME in open_bundle(bundle).files.unhashed
    verified(bundle)
    monkeypatch.setattr(verification, "check_digest", None)
    assert verified(bundle).files.unhashed == {}


def test_asking_for_it_hashes_again(
    bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bit that a disk loses changes no times."""
    flip(bundle / NAME)
    monkeypatch.setattr(bundle_files, "is_remembered", lambda *_: True)
    assert open_bundle(bundle).files.unhashed == {}
    with pytest.raises(BundleError, match="does not match the digest"):
        open_bundle(bundle, verify=True)


def test_a_change_is_noticed_though_size_and_time_are_set_back(bundle: Path, cache: Path) -> None:
    verified(bundle)
    before = (bundle / NAME).stat()
    flip(bundle / NAME)
    os.utime(bundle / NAME, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(BundleError, match="does not match the digest"):
        verified(bundle)


def test_another_file_in_its_place_is_hashed(bundle: Path, cache: Path) -> None:
    verified(bundle)
    shutil.copy2(bundle / NAME, bundle / "draft")
    flip(bundle / "draft")
    os.replace(bundle / "draft", bundle / NAME)
    with pytest.raises(BundleError, match="does not match the digest"):
        verified(bundle)


def test_another_digest_is_not_remembered(bundle: Path, cache: Path) -> None:
    verified(bundle)
    manifest = bundle / "manifest.json"
    entry = open_bundle(bundle).manifest.files[NAME].sha256
    manifest.write_text(manifest.read_text().replace(entry, "0" * 64))
    with pytest.raises(BundleError, match="does not match the digest"):
        verified(bundle)


def test_what_somebody_else_could_have_remembered_does_not_count(bundle: Path, cache: Path) -> None:
    verified(bundle)
    for record in cache.iterdir():
        record.chmod(0o666)
    assert NAME in open_bundle(bundle).files.unhashed


def test_a_file_that_was_written_just_now_is_hashed_again(
    bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be written to again without its times changing."""
    monkeypatch.setattr(verification, "SETTLED_NS", 3600 * 10**9)
    verified(bundle)
    assert NAME in open_bundle(bundle).files.unhashed


def test_without_a_cache_it_is_hashed_every_time(bundle: Path, cache: Path) -> None:
    cache.parent.write_text("a file where the folder should be")
    for _ in range(2):
        assert NAME in open_bundle(bundle).files.unhashed
        verified(bundle)


def test_what_is_remembered_is_bounded(
    bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "MAX_REMEMBERED", 2)
    for _ in range(4):
        os.utime(bundle / NAME)
        verified(bundle)
    assert len(list(cache.iterdir())) == 2
    assert NAME not in open_bundle(bundle).files.unhashed


def changing(path: Path, changed_ns: int) -> Callable[..., str]:
    """Hashes a file, which gets another time meanwhile."""
    hash_ = verification._hash

    def hashed(*arguments: Any) -> str:
        digest = hash_(*arguments)
        os.utime(path, ns=(0, changed_ns))
        return digest

    return hashed


@pytest.mark.parametrize("changed_ns", [1, 1 << 62])
def test_a_file_that_changes_while_it_is_hashed_is_refused(
    bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, changed_ns: int
) -> None:
    opened = open_bundle(bundle)
    opened.files.unhashed = {NAME: opened.files.unhashed[NAME]}
    monkeypatch.setattr(verification, "_hash", changing(bundle / NAME, changed_ns))
    with opened.files.verification() as check, pytest.raises(BundleError, match="was changed"):
        check.finish()


def test_leaving_early_ends_the_hashing(
    bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, before = open_bundle(bundle).files, threading.active_count()
    monkeypatch.setattr(verification.os, "pread", lambda *_: b"a file without end")
    with files.verification():
        pass
    assert threading.active_count() == before
    assert not cache.exists()


def test_a_model_that_cannot_be_compiled_leaves_no_thread(
    bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise BundleError("no")

    monkeypatch.setattr("edgerun.llm.compiling.compile_plan", fail)
    before = threading.active_count()
    with pytest.raises(BundleError, match="no"):
        prepare(bundle, LoadOptions(threads=1))
    assert threading.active_count() == before


def test_who_waits_long_is_told(bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    release = threading.Event()
    check_digest = verification.check_digest

    def wait(*arguments: object, **options: object) -> None:
        release.wait(20)
        check_digest(*arguments, **options)  # type: ignore[arg-type]

    def progress(text: str) -> None:
        said.append(text)
        release.set()

    opened = open_bundle(bundle)
    monkeypatch.setattr(verification, "PATIENCE_S", 0.0)
    monkeypatch.setattr(verification, "check_digest", wait)
    with opened.files.verification() as check:
        check.finish(progress)
    assert said == [verification.CHECKING]


@pytest.fixture
def foreign(bundle: Path) -> Path:
    (bundle / "manifest.json").unlink()
    return bundle


def test_the_digest_of_a_foreign_model_covers_its_weights(
    foreign: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []
    hash_ = verification._hash

    def counting(descriptor: int, *others: Any) -> str:
        hashed.append(descriptor)
        return hash_(descriptor, *others)

    monkeypatch.setattr(verification, "_hash", counting)
    first = open_bundle(foreign)
    assert not hashed  # nobody has asked
    digest = first.digest
    assert len(hashed) == 1
    for _ in range(2):  # as other processes see it
        monkeypatch.setattr(verification, "_DIGESTS", {})
        assert open_bundle(foreign).digest == open_bundle(foreign).digest == digest
    assert len(hashed) == 1
    flip(foreign / NAME)
    other = open_bundle(foreign).digest
    assert other != digest
    flip(foreign / NAME)
    assert open_bundle(foreign).digest == digest
    for content in ("nonsense", "{}", "[1]", "null"):
        for record in cache.iterdir():
            record.write_text(content)
        monkeypatch.setattr(verification, "_DIGESTS", {})
        assert open_bundle(foreign).digest == digest


@pytest.mark.parametrize("changed_ns", [1, 1 << 62])
def test_weights_of_a_foreign_model_that_change_while_they_are_hashed_are_refused(
    foreign: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, changed_ns: int
) -> None:
    opened = open_bundle(foreign)
    monkeypatch.setattr(verification, "_hash", changing(foreign / NAME, changed_ns))
    with pytest.raises(BundleError, match="was changed while it was read"):
        _ = opened.digest


def test_a_chat_of_other_weights_is_refused(foreign: Path, cache: Path, tmp_path: Path) -> None:
    for is_changed in (False, True):
        if is_changed:
            flip(foreign / NAME)
        with load(foreign, threads=1) as llm, llm.session() as chat:
            if is_changed:
                with pytest.raises(SessionError, match="belongs to another model"):
                    chat.load(tmp_path / "saved")
            else:
                chat.save(tmp_path / "saved")
                chat.load(tmp_path / "saved")
