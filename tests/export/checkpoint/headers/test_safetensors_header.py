"""Headers of safetensors files that are cut off, damaged or hostile, written by hand."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest

from edgerun.errors import CheckpointError, EdgerunError
from edgerun_export.checkpoint import open_checkpoint
from tests.export.checkpoint.headers.written import CONFIG, entry, write

HUGE = 2**40
BROKEN = {
    "too long": ({"w": entry("F32", [4], 0, 16)}, 12, "truncated"),
    "begins before": ({"w": entry("F32", [4], -16, 0)}, 16, "truncated or damaged"),
    "size differs": ({"w": entry("F32", [4], 0, 12)}, 12, "16 bytes is placed at 0 to 12"),
    "longer": ({"w": entry("F32", [3], 0, 16)}, 16, "12 bytes is placed at 0 to 16"),
    "huge": ({"w": entry("F32", [HUGE, HUGE], 0, HUGE * HUGE * 4)}, 16, "truncated"),
    "negative axis": ({"w": entry("F32", [-2, -2], 0, 16)}, 16, "shape"),
    "zero axis": ({"w": entry("F32", [0, HUGE], 0, 0)}, 0, "shape"),
    "axes": ({"w": entry("F32", [1] * 9, 0, 4)}, 4, "shape"),
    "as many axes as may be": ({"w": entry("F32", [1] * 8, 0, 4)}, 8, "belong to no tensor"),
    "overlap": (
        {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)},
        12,
        "'a' and 'b' overlap",
    ),
    "hole": ({"a": entry("F32", [1], 4, 8)}, 8, "belong to no tensor"),
    "tail": ({"a": entry("F32", [1], 0, 4)}, 8, "belong to no tensor"),
    "type": ({"w": entry("F4", [2], 0, 1)}, 1, "type 'F4'; supported: F32"),
    "no offsets": ({"w": {"dtype": "F32", "shape": [1]}}, 4, "'w' is not the JSON expected"),
    "not JSON": (b"{nope", 4, "not the JSON expected"),
    "nested": (b"[" * 100_000, 4, "not the JSON expected"),
    "no tensors": ({}, 0, "holds no tensors"),
    "no tensors but a note": ({"__metadata__": {"a": "b"}}, 0, "holds no tensors"),
    "a list": (b"[1, 2]", 4, "not the JSON expected"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_refuses_a_broken_header(tmp_path: Path, case: str) -> None:
    header, size, message = BROKEN[case]
    path = write(tmp_path / "m" / "model.safetensors", header, bytes(size))
    with pytest.raises(EdgerunError, match=message):
        open_checkpoint(str(path.parent))


def test_refuses_a_header_longer_than_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(CheckpointError, match="announces a header of 4611686018427387904 bytes"):
        open_checkpoint(str(tmp_path))


MANY = b'{"a":[' + b"{}," * 700_000 + b'{}],"b":NaN}'
COLONS, NUMBERS = (
    b"{" + b",".join(b'"%d":0' % number for number in range(count)) + b"}"
    for count in (1_000_000, (1 << 17) + 1)
)


def test_refuses_a_header_of_too_many_tensors(tmp_path: Path) -> None:
    path = write(tmp_path / "model" / "model.safetensors", NUMBERS, b"")
    with pytest.raises(CheckpointError, match="has 131073 tensors; at most 131072"):
        open_checkpoint(str(path))


def test_refuses_a_header_that_is_too_long(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", (16 << 20) + 1))
        file.truncate(1 << 30)  # sparse: zeros without disk
    with pytest.raises(CheckpointError, match="announces a header of 16777217 bytes"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (MANY, r"'model\.safetensors' is not the JSON expected"),
        (COLONS, r"'model\.safetensors' has more than 131072 tensors"),
    ],
    ids=["no number", "entries"],
)
def test_a_large_header_makes_few_objects(header: bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model" / "model.safetensors", header, b"")
    assert peak_of(path, message) < 5 * len(header)


def test_a_large_index_makes_few_objects(hf_folder: Path) -> None:
    (hf_folder / "model.safetensors").unlink()
    (hf_folder / "model.safetensors.index.json").write_bytes(MANY)
    assert peak_of(hf_folder, r"'model\.safetensors\.index\.json' is not") < 5 * len(MANY)
    (hf_folder / "model.safetensors.index.json").write_bytes(COLONS)
    assert peak_of(hf_folder, "lists more than 131072 tensors") < 5 * len(COLONS)


def peak_of(path: Path, message: str) -> int:
    """Bytes of memory that Python takes at most to refuse a checkpoint."""
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(str(path))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_what_is_said_of_a_file_may_have_many_colons(tmp_path: Path) -> None:
    header = {"__metadata__": {"config": ":" * 100_000}, "a": entry("F32", [1], 0, 4)}
    path = write(tmp_path / "model" / "model.safetensors", header, bytes(4))
    with open_checkpoint(str(path)) as checkpoint:
        assert list(checkpoint.tensors()) == ["a"]
