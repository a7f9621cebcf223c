"""Finding the reader by content, and refusing what is no checkpoint."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
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

from edgerun.errors import (
    CheckpointError,
    MissingDependencyError,
    StorageError,
    UnsupportedError,
)
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.checkpoint.hub import _SMALL_FILES, _WEIGHTS, download
from tests.export.checkpoint.integers.layouts import compressed

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


def test_a_folder_is_no_gguf_file_whatever_its_name(hf_folder: Path) -> None:
    folder = hf_folder.rename(hf_folder.with_name("model.gguf"))
    with open_checkpoint(str(folder)) as checkpoint:
        assert checkpoint.source.kind == "safetensors"


def test_a_gguf_file_has_its_own_tokenizer(make_gguf: Make, tensors: Tensors) -> None:
    with pytest.raises(UnsupportedError, match="a GGUF file has its own"):
        open_checkpoint(str(make_gguf(tensors)), tokenizer="tokenizer.bin")


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


def test_in_a_folder_of_llama2c_files_names_one_to_give(
    make_llama2c: Make, tensors: Tensors, tmp_path: Path
) -> None:
    folder = tmp_path / "stories"
    folder.mkdir()
    content = make_llama2c(tensors, 0).read_bytes()
    for name in ("b.bin", "a.bin"):
        (folder / name).write_bytes(content)
    (folder / "tokenizer.bin").write_bytes(bytes(40))
    said = f"2 llama2.c files and no other checkpoint; give the file itself, such as '{folder}/a."
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(str(folder))


def test_the_working_folder_has_a_name(hf_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hf_folder)
    with open_checkpoint(".") as checkpoint:
        assert checkpoint.source.location == "model"
    with pytest.raises(CheckpointError, match="the checkpoint's name is empty"):
        open_checkpoint("")


@pytest.mark.parametrize(
    "name",
    ["./nope", "/nope/nope.gguf", "nope", "a/b/c", "nope nope", "\0", "x" * 9999, "~nobody here/x"],
)
def test_a_missing_path_is_a_clear_error(name: str) -> None:
    with pytest.raises(CheckpointError, match="no file or folder|not a usable path"):
        open_checkpoint(name)


def test_refuses_an_unknown_file(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"hello, world" * 10)
    for target in (path, tmp_path):
        with pytest.raises((CheckpointError, UnsupportedError)):
            open_checkpoint(str(target))


@pytest.mark.parametrize(
    "content", [b"", bytes(16), b"\xff" * 8 + b"{}", (1 << 25).to_bytes(8, "little") + b"{" * 9]
)
def test_what_cannot_begin_a_header_is_no_safetensors_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a checkpoint that can be read"):
        open_checkpoint(str(tmp_path / "x"))


def test_refuses_a_pipe_without_waiting_for_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(CheckpointError, match="not a regular file"):
            open_checkpoint(str(path))


Download = Callable[..., str]


def fake_hub(
    monkeypatch: pytest.MonkeyPatch, download: Download, snapshot: Download | None = None
) -> None:
    module = ModuleType("huggingface_hub")
    module.snapshot_download = snapshot or download  # type: ignore[attr-defined]
    module.hf_hub_download = download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)


class Repository:
    """A hub with one repository; writes down what is asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, **config: Any) -> None:
        self.commit = folder.rename(folder.parent / "0123abcd")
        self.asked: list[tuple[Any, ...]] = []
        (self.commit / "config.json").write_text(json.dumps({**CONFIG, **config}))
        fake_hub(monkeypatch, self.file, self.snapshot)

    def file(self, repository: str, name: str, *, revision: str | None) -> str:
        self.asked.append((repository, name, revision))
        return str(self.commit / name)

    def snapshot(self, repository: str, *, revision: str, allow_patterns: list[str]) -> str:
        self.asked.append((repository, tuple(allow_patterns), revision))
        return str(self.commit)


CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 260,
}


def test_fetches_only_safe_files_from_the_hub(
    monkeypatch: pytest.MonkeyPatch, hf_folder: Path
) -> None:
    repository = Repository(monkeypatch, hf_folder)
    with open_checkpoint("owner/tiny-llama", revision="main") as checkpoint:
        assert checkpoint.source.location == "owner/tiny-llama"
        assert checkpoint.source.revision == "0123abcd"
        assert checkpoint.source.kind == "safetensors"
    # What follows the configuration is of the same commit, whatever "main" is by then.
    assert repository.asked == [
        ("owner/tiny-llama", "config.json", "main"),
        ("owner/tiny-llama", _SMALL_FILES, "0123abcd"),
        ("owner/tiny-llama", _WEIGHTS, "0123abcd"),
    ]
    names = {*_SMALL_FILES, *_WEIGHTS}
    assert not any(name.endswith((".bin", ".py", ".pt", "*")) for name in names)
    assert "hf_quant_config.json" in names  # says of old ModelOpt's weights what they are
    # Have the chat templates of models that see pictures, and what a refusal is about.
    assert {"chat_template.json", "processor_config.json", "tekken.json"} <= names


def test_fetches_one_gguf_from_the_hub(
    monkeypatch: pytest.MonkeyPatch, make_gguf: Make, tensors: Tensors
) -> None:
    path = make_gguf(tensors)
    asked: list[Any] = []

    def download(*arguments: Any, **options: Any) -> str:
        asked.extend([*arguments, options["revision"]])
        return str(path)

    fake_hub(monkeypatch, download)
    with open_checkpoint("owner/name/tiny.gguf", revision="v1") as checkpoint:
        assert checkpoint.source.kind == "gguf"
    assert asked == ["owner/name", "tiny.gguf", "v1"]
    with pytest.raises(CheckpointError, match="--revision v1 is for hub ids"):
        open_checkpoint(str(path), revision="v1")


def in_blobs(folder: Path, *, large: str) -> dict[str, Path]:
    """Puts files where the hub's library puts them: links to blobs that are called by digests."""
    blobs = folder.parent.parent / "blobs"
    blobs.mkdir()
    places = {}
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        of_git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        blob = blobs / (hashlib.sha256(data).hexdigest() if path.name == large else of_git)
        path.rename(blob)
        path.symlink_to(blob)
        places[path.name] = blob
    return places


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_download_with_a_flipped_bit_is_refused(
    monkeypatch: pytest.MonkeyPatch, hf_folder: Path, name: str
) -> None:
    """The hub's own library compares sizes."""
    snapshots = hf_folder.parent / "models--owner--tiny-llama" / "snapshots"
    snapshots.mkdir(parents=True)
    repository = Repository(monkeypatch, hf_folder.rename(snapshots / "new"))
    blob = in_blobs(repository.commit, large="model.safetensors")[name]
    monkeypatch.setattr("edgerun_export.checkpoint.hub._PIECE_BYTES", 1000)
    assert download("owner/tiny-llama") == (repository.commit, "0123abcd")
    data = bytearray(blob.read_bytes())
    data[data.index(b" ")] ^= ord(" ") ^ ord("\t")  # JSON stays JSON
    blob.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"'{name}' is damaged.* remove '{blob}' and run"):
        download("owner/tiny-llama")
    blob.rename(repository.commit / "other")  # called by no digest, as where there are no links
    (repository.commit / name).unlink()
    (repository.commit / "other").rename(repository.commit / name)
    assert download("owner/tiny-llama") == (repository.commit, "0123abcd")


def test_a_gguf_file_with_a_flipped_bit_is_refused(
    monkeypatch: pytest.MonkeyPatch, make_gguf: Make, tensors: Tensors, tmp_path: Path
) -> None:
    (tmp_path / "snapshots" / "0123abcd").mkdir(parents=True)
    path = make_gguf(tensors, name="snapshots/0123abcd/tiny.gguf")
    (blob,) = in_blobs(path.parent, large=path.name).values()
    fake_hub(monkeypatch, lambda *_, **__: str(path))
    assert download("owner/name/tiny.gguf")[0] == path
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    with pytest.raises(CheckpointError, match="'.*gguf' is damaged: its digest is "):
        download("owner/name/tiny.gguf")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "gpt2"},
            "architecture 'gpt2' is not supported; supported are: afmoe, ",
        ),
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantised with 'hqq'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "gptq weights of 3 bits"),
        ({"quantization_config": compressed("marlin-24")}, "in the format 'marlin-24'"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_its_weights_are_fetched(
    monkeypatch: pytest.MonkeyPatch, hf_folder: Path, changes: dict[str, Any], message: str
) -> None:
    repository = Repository(monkeypatch, hf_folder, **changes)
    with pytest.raises(UnsupportedError, match=message):
        open_checkpoint("owner/tiny-llama")
    assert repository.asked == [("owner/tiny-llama", "config.json", None)]


def test_floats_that_are_not_read_are_refused_before_weights_are_fetched(
    monkeypatch: pytest.MonkeyPatch, hf_folder: Path
) -> None:
    repository = Repository(monkeypatch, hf_folder)
    quantised = {"quantization": {"quant_algo": "NVFP4"}}
    (repository.commit / "hf_quant_config.json").write_text(json.dumps(quantised))
    with pytest.raises(UnsupportedError, match="quant_algo 'NVFP4'"):
        open_checkpoint("owner/tiny-llama")
    assert repository.asked[-1] == ("owner/tiny-llama", _SMALL_FILES, "0123abcd")


def test_a_tokenizer_that_is_missing_is_missed_before_weights_are_fetched(
    monkeypatch: pytest.MonkeyPatch, hf_folder: Path
) -> None:
    repository = Repository(monkeypatch, hf_folder)
    (repository.commit / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="neither tokenizer.json nor tokenizer.model"):
        open_checkpoint("owner/tiny-llama")
    assert repository.asked[-1] == ("owner/tiny-llama", _SMALL_FILES, "0123abcd")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("RemoteEntryNotFoundError", "no such file.*name a GGUF file of it"),
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


def test_a_hub_that_does_not_answer_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def download(*_: Any, **__: Any) -> str:
        theirs = logging.getLogger("huggingface_hub.utils._http")
        for attempt in range(3):
            theirs.warning("'no name' thrown while requesting HEAD https://hub/x")
            theirs.warning(f"Retrying in 1s [Retry {attempt}/5].")
        theirs.warning("something else")
        raise OSError("no name")

    fake_hub(monkeypatch, download)
    with pytest.raises(CheckpointError, match="cannot be reached"):
        open_checkpoint("owner/name")
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "the hub does not answer for 'owner/name': trying for half a minute",
        "something else",
    ]


def test_a_disk_that_is_full_is_not_taken_for_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", "/cache/blob")

    fake_hub(monkeypatch, download)
    with pytest.raises(StorageError, match=r"No space left on device \(/cache/blob\)"):
        open_checkpoint("owner/name")


def test_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'edgerun\[export\]'"):
        open_checkpoint("owner/name")
