"""Links in a checkpoint: what they lead to ends in a bundle, so they may not lead out of it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.files import check_inside
from edgerun_export.checkpoint.registry import open_checkpoint
from edgerun_export.pipeline import export

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "llama"
NAMES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
ALL_NAMES = (
    *NAMES,
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
    "README.md",
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A whole one, every file that is read included."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(GOLDEN / name, folder / name)
    for name in ("generation_config.json", "special_tokens_map.json"):
        (folder / name).write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    return folder


def read_all(path: Path) -> dict[str, bytes]:
    """Everything that an export reads of a checkpoint's small files, and one weight."""
    with open_checkpoint(str(path)) as opened:
        assert opened.read("model.norm.weight").size
        return opened.tokenizer_files()


def move_out(folder: Path, name: str, *, relative: bool = False) -> Path:
    """Replaces a file by a link to where it lies now, outside."""
    outside = folder.parent / "outside"
    outside.mkdir(exist_ok=True)
    os.replace(folder / name, outside / name)
    target = Path("..") / "outside" / name if relative else outside / name
    (folder / name).symlink_to(target)
    return outside / name


def as_hub_cache(checkpoint: Path) -> Path:
    """Lays a checkpoint out as huggingface_hub does: a snapshot of links to blobs."""
    repository = checkpoint.parent / "hub" / "models--owner--name"
    snapshot, blobs = repository / "snapshots" / ("0" * 40), repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(checkpoint.iterdir())):
        blob = blobs / f"{number:040x}"
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / blob.name)
    return snapshot


def test_the_checkpoint_is_read(checkpoint: Path) -> None:
    assert b"messages" in read_all(checkpoint)["tokenizer_config.json"]


@pytest.mark.parametrize("name", ALL_NAMES)
@pytest.mark.parametrize("relative", [False, True])
def test_a_link_that_leaves_the_folder_is_refused(
    checkpoint: Path, name: str, relative: bool
) -> None:
    target = move_out(checkpoint, name, relative=relative)
    with pytest.raises(CheckpointError, match="outside of the checkpoint's folder") as caught:
        read_all(checkpoint)
    assert str(checkpoint / name) in str(caught.value)
    assert str(target) in str(caught.value)


@pytest.mark.parametrize("name", [name for name in ALL_NAMES if name != "README.md"])
def test_a_link_to_nowhere_is_not_overlooked(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    (checkpoint / name).symlink_to(checkpoint / "nowhere")
    with pytest.raises(CheckpointError):
        read_all(checkpoint)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_pipe_is_not_waited_for(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    os.mkfifo(checkpoint / name)
    with pytest.raises(CheckpointError, match="not a regular file: it is a pipe"):
        read_all(checkpoint)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_a_link_inside_the_folder_is_followed(checkpoint: Path, name: str) -> None:
    expected = read_all(checkpoint)
    os.replace(checkpoint / name, checkpoint / "elsewhere")
    (checkpoint / name).symlink_to("elsewhere")
    assert read_all(checkpoint) == expected


def test_a_folder_that_is_reached_by_a_link_is_a_checkpoint(checkpoint: Path) -> None:
    (checkpoint.parent / "link").symlink_to(checkpoint)
    assert read_all(checkpoint.parent / "link") == read_all(checkpoint)


def test_a_snapshot_of_the_hub_cache_is_read(checkpoint: Path) -> None:
    assert read_all(as_hub_cache(checkpoint)) == read_all(checkpoint)


def test_a_snapshot_that_a_file_is_named_of_is_read(checkpoint: Path) -> None:
    assert read_all(as_hub_cache(checkpoint) / "model.safetensors") == read_all(checkpoint)


@pytest.mark.parametrize(
    "target",
    [
        "../../../models--other--name/blobs/secret",
        "../../refs/secret",
        "../../../../secret",
        "../../blobs/../../../secret",
    ],
)
def test_a_snapshot_links_to_blobs_of_its_own_repository_only(
    checkpoint: Path, target: str
) -> None:
    snapshot = as_hub_cache(checkpoint)
    path = snapshot / "chat_template.jinja"
    path.unlink()
    path.symlink_to(target)
    secret = Path(os.path.normpath(snapshot / target))
    secret.parent.mkdir(parents=True, exist_ok=True)
    secret.write_text("{{ secret }}")
    with pytest.raises(CheckpointError, match="outside of the checkpoint's folder"):
        read_all(snapshot)


def test_a_folder_of_blobs_that_is_itself_a_link_is_refused(checkpoint: Path) -> None:
    snapshot = as_hub_cache(checkpoint)
    blobs = snapshot.parent.parent / "blobs"
    os.replace(blobs, checkpoint.parent / "keys")
    blobs.symlink_to(checkpoint.parent / "keys")
    with pytest.raises(CheckpointError, match="outside of the checkpoint's folder"):
        read_all(snapshot)


def test_only_snapshots_have_blobs_beside_them(checkpoint: Path) -> None:
    """A folder of another name gains nothing by a neighbour called blobs."""
    snapshot = as_hub_cache(checkpoint)
    repository = snapshot.parent.parent
    os.replace(snapshot.parent, repository / "copies")
    with pytest.raises(CheckpointError, match="outside of the checkpoint's folder"):
        read_all(repository / "copies" / snapshot.name)
    os.replace(repository / "copies", snapshot.parent)
    os.replace(repository, repository.with_name("name"))
    with pytest.raises(CheckpointError, match="outside of the checkpoint's folder"):
        read_all(repository.with_name("name") / "snapshots" / snapshot.name)


def test_a_shard_that_leaves_the_folder_is_refused(checkpoint: Path) -> None:
    with open_checkpoint(str(checkpoint)) as opened:
        names = list(opened.tensors())
    os.replace(checkpoint / "model.safetensors", checkpoint / "model-1.safetensors")
    index = {"weight_map": dict.fromkeys(names, "model-1.safetensors")}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    read_all(checkpoint)
    move_out(checkpoint, "model-1.safetensors")
    with pytest.raises(CheckpointError, match="model-1.safetensors' is a link"):
        read_all(checkpoint)


def test_the_only_gguf_file_of_a_folder_may_not_be_a_link_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"GGUF")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.gguf").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="outside of the checkpoint's folder"):
        open_checkpoint(str(tmp_path / "folder"))
    with pytest.raises(CheckpointError) as caught:  # named by the user: followed
        open_checkpoint(str(tmp_path / "folder" / "model.gguf"))
    assert "link" not in str(caught.value)


def test_links_in_a_circle_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(CheckpointError):
        check_inside(tmp_path / "a").open()
        raise CheckpointError("resolved to itself")  # from Python 3.13 on


def test_no_key_ends_in_a_bundle(checkpoint: Path) -> None:
    key = checkpoint.parent / "id_ed25519"
    key.write_text("SECRET KEY")
    (checkpoint / "chat_template.jinja").unlink()
    (checkpoint / "chat_template.jinja").symlink_to(key)
    with pytest.raises(CheckpointError, match="chat_template.jinja"):
        export(checkpoint, checkpoint.parent / "bundle")
    assert not (checkpoint.parent / "bundle").exists()
