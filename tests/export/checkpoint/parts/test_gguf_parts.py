"""Models of several GGUF files, as the gguf package writes them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError
from edgerun.llm.checkpoints import _described, is_checkpoint
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.checkpoint.gguf_parts import COUNT, NUMBER, TENSORS, other_parts

gguf = pytest.importorskip("gguf")
Tensors = dict[str, np.ndarray]
Make = Callable[..., Path]


@pytest.fixture(params=[False, True], ids=["filled", "metadata alone"])
def parts(
    make_gguf: Make,
    tensors: Tensors,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> list[Path]:
    """The parts of a model, of which the first has some tensors, or none."""
    own = partial(gguf.GGUFWriter, split_max_tensors=8, small_first_shard=request.param)
    monkeypatch.setattr(gguf, "GGUFWriter", own)
    make_gguf(tensors, name="tiny.gguf")
    files = sorted(tmp_path.glob("tiny-*.gguf"))
    assert len(files) == 3 + request.param
    return files


def altered(part: Path, key: str, value: int) -> None:
    """Changes a number of a file's metadata, in place."""
    reader = gguf.GGUFReader(part, "r+")
    reader.fields[key].parts[reader.fields[key].data[0]][0] = value
    del reader


@pytest.mark.parametrize("by_folder", [False, True])
def test_a_model_of_several_files_has_the_tensors_of_all(
    parts: list[Path], tensors: Tensors, by_folder: bool
) -> None:
    path = parts[0].parent if by_folder else parts[0]
    assert is_checkpoint(path)
    with open_checkpoint(str(path)) as checkpoint:
        assert checkpoint.tensors().keys() == tensors.keys()
        for name, expected in tensors.items():
            np.testing.assert_array_equal(checkpoint.read(name), expected)
        assert checkpoint.tokenizer_files()


def test_files_are_closed_with_the_model(parts: list[Path]) -> None:
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("nobody tells which files are open")
    before = len(list(folder.iterdir()))
    with open_checkpoint(str(parts[0])):
        assert len(list(folder.iterdir())) == before + 3
    parts[-1].unlink()
    with pytest.raises(CheckpointError):
        open_checkpoint(str(parts[0]))
    assert len(list(folder.iterdir())) == before


def test_another_part_than_the_first_says_which_that_is(parts: list[Path]) -> None:
    said = f"'{parts[1].name}' is not the first of {len(parts)} parts"
    with pytest.raises(CheckpointError, match=f"{said}; give the first, '{parts[0].name}'"):
        open_checkpoint(str(parts[1]))


def test_a_part_that_is_missing_is_named(parts: list[Path]) -> None:
    parts[2].unlink()
    with pytest.raises(CheckpointError, match=parts[2].name):
        open_checkpoint(str(parts[0]))


def test_a_part_that_was_renamed_is_refused(parts: list[Path]) -> None:
    renamed = parts[0].rename(parts[0].with_name("model.gguf"))
    with pytest.raises(CheckpointError, match=r"ends with '-00001-of-0000\d.gguf'"):
        open_checkpoint(str(renamed))


def test_parts_of_several_models_are_told_apart(parts: list[Path]) -> None:
    shutil.copy(parts[2], parts[1])
    with pytest.raises(CheckpointError, match="says that it is part 3 of .; expected part 2"):
        open_checkpoint(str(parts[0]))
    altered(parts[1], NUMBER, 1)
    with pytest.raises(CheckpointError, match="which another part has, too"):
        open_checkpoint(str(parts[0]))


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        (0, TENSORS, 5, "have 5 tensors, and they have 21"),
        (1, COUNT, 9, "says that it is part 2 of 9"),
        (0, COUNT, 9, "ends with '-00001-of-00009.gguf'"),
        (0, COUNT, 10000, "one of 10000 parts; expected 9999 at most"),
        (0, NUMBER, 2, "is not the first of"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(
    parts: list[Path], part: int, key: str, value: int, message: str
) -> None:
    altered(parts[part], key, value)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(parts[0]))


def test_a_folder_with_parts_of_two_models_is_no_checkpoint(parts: list[Path]) -> None:
    shutil.copy(parts[1], parts[1].with_name("other-00001-of-00003.gguf"))
    assert not is_checkpoint(parts[0].parent)
    with pytest.raises(CheckpointError, match="holds several GGUF files"):
        open_checkpoint(str(parts[0].parent))


def test_a_part_that_leads_elsewhere_is_not_followed(parts: list[Path], tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    moved = parts[1].rename(outside / "secret.gguf")
    parts[1].symlink_to(moved)
    inside = tmp_path / "inside"
    inside.mkdir()
    for part in parts:
        part.rename(inside / part.name)
    with pytest.raises(CheckpointError, match=parts[1].name):
        open_checkpoint(str(inside / parts[0].name))


def test_a_bundle_is_called_as_the_whole_model_and_changes_with_each_part(
    parts: list[Path],
) -> None:
    *_, facts, name = _described(parts[0])
    assert name == "tiny"
    altered(parts[-1], NUMBER, 7)
    assert _described(parts[0])[2] != facts


def test_all_parts_are_fetched_from_the_hub(
    parts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(repository: str, name: str, *, revision: str | None) -> str:
        asked.append((name, revision))
        return str(parts[0].parent / name)

    module = ModuleType("huggingface_hub")
    module.hf_hub_download = download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    with open_checkpoint(f"hf:owner/name/{parts[0].name}") as checkpoint:
        assert checkpoint.tensors()
    commit = parts[0].parent.name
    assert asked == [(parts[0].name, None), *((each.name, commit) for each in parts[1:])]


@pytest.mark.parametrize("count", [0, 1, -3, 2.0, "3", None])
def test_what_is_no_number_of_parts_is_one(count: Any) -> None:
    assert other_parts(Path("model.gguf"), {COUNT: count}) == []
