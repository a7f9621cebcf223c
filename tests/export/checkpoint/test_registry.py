"""Finding the reader by content, and refusing what is no checkpoint."""

from __future__ import annotations

import os
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, MissingDependencyError, UnsupportedError
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.checkpoint.hub import _SAFE_FILES

Make = Callable[..., Path]
Tensors = dict[str, np.ndarray]


def test_goes_by_content_not_by_suffix(
    make_gguf: Make, make_llama2c: Make, hf_folder: Path, tensors: Tensors
) -> None:
    paths = {
        "gguf": make_gguf(tensors),
        "llama2c": make_llama2c(tensors, 1),
        "safetensors": hf_folder / "model.safetensors",
    }
    for kind, path in paths.items():
        renamed = path.rename(path.parent / f"{kind}.data")
        with open_checkpoint(str(renamed)) as checkpoint:
            assert checkpoint.source.kind == kind
            assert checkpoint.source.location == f"{kind}.data"


def test_opens_a_folder_with_one_gguf_and_asks_with_two(make_gguf: Make, tensors: Tensors) -> None:
    path = make_gguf(tensors)
    with open_checkpoint(str(path.parent)) as checkpoint:
        assert checkpoint.source.location == path.name
    (path.parent / "second.gguf").write_bytes(path.read_bytes())
    with pytest.raises(CheckpointError, match=r"several GGUF files \(second.gguf, tiny.gguf\)"):
        open_checkpoint(str(path.parent))


def test_never_opens_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "ran").mkdir()
    marker = tmp_path / "ran" / "yes"

    class Evil:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(marker),))

    bare, zipped = tmp_path / "bare.bin", tmp_path / "zipped.bin"
    bare.write_bytes(pickle.dumps(Evil(), protocol=2) + bytes(100))
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("data.pkl", pickle.dumps(Evil()))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(bare.read_bytes())
    for path in (bare, zipped, folder):
        with pytest.raises(UnsupportedError, match="pickle files.*never loaded.*safetensors"):
            open_checkpoint(str(path))
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", ["./nope", "/nope/nope.gguf", "nope", "a/b/c", "", "\0", "x" * 9999]
)
def test_a_missing_path_is_a_clear_error(name: str) -> None:
    name = name or "nope nope"
    with pytest.raises(CheckpointError, match="no file or folder|not a usable path"):
        open_checkpoint(name)


def test_refuses_an_unknown_file(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"hello, world" * 10)
    for target in (path, tmp_path):
        with pytest.raises((CheckpointError, UnsupportedError)):
            open_checkpoint(str(target))


def test_refuses_a_pipe_without_waiting_for_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(CheckpointError, match="not a regular file"):
            open_checkpoint(str(path))


def fake_hub(monkeypatch: pytest.MonkeyPatch, download: Callable[..., str]) -> None:
    module = ModuleType("huggingface_hub")
    module.snapshot_download = download  # type: ignore[attr-defined]
    module.hf_hub_download = download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)


def test_fetches_only_safe_files_from_the_hub(
    monkeypatch: pytest.MonkeyPatch, hf_folder: Path
) -> None:
    asked: dict[str, Any] = {}
    commit = hf_folder.rename(hf_folder.parent / "0123abcd")

    def download(repository: str, **options: Any) -> str:
        asked.update(options, repository=repository)
        return str(commit)

    fake_hub(monkeypatch, download)
    with open_checkpoint("owner/tiny-llama", revision="main") as checkpoint:
        assert checkpoint.source.location == "owner/tiny-llama"
        assert checkpoint.source.revision == "0123abcd"
        assert checkpoint.source.kind == "safetensors"
    assert asked["repository"] == "owner/tiny-llama" and asked["revision"] == "main"
    assert asked["allow_patterns"] == list(_SAFE_FILES)
    assert not any(name.endswith((".bin", ".py", ".pt", "*")) for name in _SAFE_FILES)


def test_fetches_one_gguf_from_the_hub(
    monkeypatch: pytest.MonkeyPatch, make_gguf: Make, tensors: Tensors
) -> None:
    path = make_gguf(tensors)
    asked: list[Any] = []

    def download(*arguments: Any, **options: Any) -> str:
        asked.extend(arguments)
        return str(path)

    fake_hub(monkeypatch, download)
    with open_checkpoint("owner/name/tiny.gguf") as checkpoint:
        assert checkpoint.source.kind == "gguf"
    assert asked == ["owner/name", "tiny.gguf"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("GatedRepoError", "gated"),
        ("RepositoryNotFoundError", "no such public repository"),
        ("RevisionNotFoundError", "no such revision"),
        ("LocalEntryNotFoundError", "cannot be reached"),
        ("OfflineModeIsEnabled", "HF_HUB_OFFLINE"),
    ],
)
def test_explains_why_a_download_failed(
    monkeypatch: pytest.MonkeyPatch, error: str, message: str
) -> None:
    kind = getattr(pytest.importorskip("huggingface_hub.errors"), error)

    def download(*_: Any, **__: Any) -> str:
        raise kind.__new__(kind)

    fake_hub(monkeypatch, download)
    with pytest.raises(CheckpointError, match=f"cannot download 'owner/name'.*{message}"):
        open_checkpoint("owner/name")


def test_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'edgerun\[export\]'"):
        open_checkpoint("owner/name")
