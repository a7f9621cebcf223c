"""Hugging Face folders: single and sharded files, types, packed BitNet layers, broken headers."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.checkpoint.files import CONFIG_LIMIT_BYTES
from edgerun_export.checkpoint.safetensors import _with_quantization
from tests.export.checkpoint.headers.written import CONFIG, entry, write

save_file = pytest.importorskip("safetensors.numpy").save_file


def test_reads_every_tensor_as_written(hf_folder: Path, tensors: dict[str, np.ndarray]) -> None:
    with open_checkpoint(str(hf_folder)) as checkpoint:
        assert set(checkpoint.tensors()) == set(tensors)
        for name, weight in tensors.items():
            assert checkpoint.tensors()[name].shape == weight.shape
            np.testing.assert_array_equal(checkpoint.read(name), weight)
        assert checkpoint.config["hidden_size"] == 16
        assert checkpoint.source.kind == "safetensors"
        assert checkpoint.source.location == "model"
        assert checkpoint.source.licence == "apache-2.0"


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlanguage: en\nlicense: mit\n---\n", "mit"),
        ("---\r\nlicense : 'bsd-3-clause'  # the new one\r\n---\r\n", "bsd-3-clause"),
        ('---\nlicense: other\nlicense_name: "llama3.2"\n---\n', "llama3.2"),
        ("---\nlicense: other\n---\n", "other"),
        ("---\nlicense_name: llama3.2\n---\n", None),
        ("---\nlicense:\n- mit\n---\n", None),
        ("---\nx: y\n---\nlicense: mit\n", None),
        ("\n---\nlicense: mit\n---\n", None),
        ("# Model\nlicense: mit\n---\n", None),
        ("---\n  license: mit\n---\n", None),
        ("---\nlicense: mit and more\n---\n", None),
        ("---\nlicense: mit\x1b[2J\n---\n", None),
        (f"---\nlicense: {'m' * 65}\n---\n", None),
        ("---\nlicense: \u043cit\n---\n", None),
        (f"---\n{'x: y' + chr(10) * 20_000}license: mit\n---\n", None),
    ],
)
def test_the_licence_is_an_identifier_in_the_front_matter(
    hf_folder: Path, card: str, licence: str | None
) -> None:
    (hf_folder / "README.md").write_bytes(card.encode())
    with open_checkpoint(str(hf_folder)) as checkpoint:
        assert checkpoint.source.licence == licence


@pytest.mark.parametrize("rows", [slice(0, 5), slice(7, 8), slice(250, None), slice(3, 3)])
def test_reads_only_the_rows_asked_for(
    hf_folder: Path, tensors: dict[str, np.ndarray], rows: slice
) -> None:
    name = "model.embed_tokens.weight"
    with open_checkpoint(str(hf_folder)) as checkpoint:
        np.testing.assert_array_equal(checkpoint.read(name, rows), tensors[name][rows])


def test_rows_are_read_without_a_step(hf_folder: Path) -> None:
    with (
        open_checkpoint(str(hf_folder)) as checkpoint,
        pytest.raises(ValueError, match="must have step 1"),
    ):
        checkpoint.read("model.embed_tokens.weight", slice(0, 8, 2))


def test_a_slab_of_a_large_tensor_takes_the_memory_of_the_slab(tmp_path: Path) -> None:

    path = tmp_path / "m" / "model.safetensors"
    rows, width = 4096, 4096
    write(path, {"w": entry("BF16", [rows, width], 0, rows * width * 2)}, b"")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + rows * width * 2)  # sparse: zeros without disk
    with open_checkpoint(str(path.parent)) as checkpoint:
        tracemalloc.start()
        slab = checkpoint.read("w", slice(0, 256))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert slab.shape == (256, width)
    assert slab.nbytes <= peak < slab.nbytes + 24e6


def test_converts_half_precision_and_keeps_integers(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    draw = np.random.default_rng(0)
    weight = draw.standard_normal((6, 4), np.float32)
    halves, brains = weight.astype(np.float16), weight.astype(ml_dtypes.bfloat16)
    packed, small = draw.integers(0, 256, (3, 4), np.uint8), np.array([[-3, 5]], np.int8)
    parts = {"f": halves, "b": brains, "u": packed, "i": small, "s": np.float32(2.5)}
    header, data = {}, b""
    for (name, value), dtype in zip(parts.items(), ["F16", "BF16", "U8", "I8", "F32"], strict=True):
        raw = value.tobytes()
        header[name] = entry(dtype, list(value.shape), len(data), len(data) + len(raw))
        data += raw
    path = write(tmp_path / "m" / "model.safetensors", header, data)
    with open_checkpoint(str(path.parent)) as checkpoint:
        for name in "fb":
            assert checkpoint.read(name).dtype == np.float32
            np.testing.assert_array_equal(checkpoint.read(name), parts[name].astype(np.float32))
        for name in "ui":
            assert checkpoint.read(name).dtype == parts[name].dtype
            np.testing.assert_array_equal(checkpoint.read(name), parts[name])
        assert checkpoint.read("s").shape == () and checkpoint.read("s") == 2.5


def test_unreadable_types_fail_only_when_read(tmp_path: Path) -> None:
    header = {"ids": entry("I64", [2], 0, 16), "w": entry("F32", [1], 16, 20)}
    path = write(tmp_path / "m" / "model.safetensors", header, bytes(20))
    with open_checkpoint(str(path.parent)) as checkpoint:
        assert checkpoint.read("w") == 0
        with pytest.raises(UnsupportedError, match="'ids' is stored as I64.*supported: F32, F16"):
            checkpoint.read("ids")


def sharded(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(CONFIG)
    names = sorted(tensors)
    weight_map = {}
    for index, part in enumerate((names[::2], names[1::2])):
        file = f"model-{index + 1:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index_file = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_file))
    return folder


def test_reads_shards(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    with open_checkpoint(str(sharded(tmp_path / "m", tensors))) as checkpoint:
        assert set(checkpoint.tensors()) == set(tensors)
        for name, weight in tensors.items():
            np.testing.assert_array_equal(checkpoint.read(name), weight)


def test_reads_an_index_as_large_as_kimi_k2_thinkings(
    tmp_path: Path, tensors: dict[str, np.ndarray]
) -> None:
    index = sharded(tmp_path / "m", tensors) / "model.safetensors.index.json"
    index.write_bytes(index.read_bytes().ljust(21 << 20))
    with open_checkpoint(str(index.parent)) as checkpoint:
        assert set(checkpoint.tensors()) == set(tensors)
    index.write_bytes(index.read_bytes().ljust((32 << 20) + 1))
    with pytest.raises(CheckpointError, match="33554433 bytes"):
        open_checkpoint(str(index.parent))


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        ("../outside.safetensors", "not a .safetensors file name"),
        ("/etc/passwd", "not a .safetensors file name"),
        ("sub/model.safetensors", "not a .safetensors file name"),
        ("sub\\model.safetensors", "not a .safetensors file name"),
        ("config.json", "not a .safetensors file name"),
        ("model-00009-of-00002.safetensors", "no file"),
        ("model-00002-of-00002.safetensors", "lacks tensor 'lm_head.weight'"),
    ],
)
def test_refuses_a_bad_index(
    tmp_path: Path, tensors: dict[str, np.ndarray], shard: str, message: str
) -> None:
    folder = sharded(tmp_path / "m", tensors)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["lm_head.weight"] = shard
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(folder))


def test_refuses_a_tensor_that_two_shards_hold(
    tmp_path: Path, tensors: dict[str, np.ndarray]
) -> None:
    folder = sharded(tmp_path / "m", tensors)
    shards = sorted(folder.glob("*.safetensors"))
    save_file(tensors, shards[1])
    with pytest.raises(CheckpointError, match=f"'{shards[1].name}' holds tensor '.*' a second"):
        open_checkpoint(str(folder))


def test_refuses_a_tokenizer_of_another_format(hf_folder: Path) -> None:
    with pytest.raises(UnsupportedError, match="--tokenizer is for llama2.c files"):
        open_checkpoint(str(hf_folder), tokenizer=str(hf_folder / "tokenizer.json"))


@pytest.mark.parametrize("said", [{}, "packed", ["packed"], None])
def test_what_says_nothing_of_weights_is_left_alone(hf_folder: Path, said: object) -> None:
    config = json.loads((hf_folder / "config.json").read_text())
    config |= {"compression_config": said, "text_config": {"quantization_config": {}}}
    (hf_folder / "config.json").write_text(json.dumps(config))
    with open_checkpoint(str(hf_folder)) as checkpoint:
        assert "quantization_config" not in checkpoint.config


def test_the_first_place_that_speaks_of_weights_counts() -> None:
    own, text, old = ({"quant_method": name} for name in ("own", "text", "old"))
    config = {"text_config": {"quantization_config": text}, "compression_config": old}
    assert _with_quantization(config)["quantization_config"] == text
    config["quantization_config"] = own
    assert _with_quantization(config) is config


def pack_reference(values: np.ndarray) -> np.ndarray:
    """transformers' ``pack_weights``, one element at a time."""
    quarter = len(values) // 4
    packed = np.zeros((quarter, values.shape[1]), np.uint8)
    for row in range(len(values)):
        packed[row % quarter] |= (values[row] + 1).astype(np.uint8) << 2 * (row // quarter)
    return packed


@pytest.mark.parametrize(("linear", "scale"), [("autobitlinear", 2.5), ("bitlinear", 0.4)])
@pytest.mark.parametrize("rows", [None, slice(0, 3), slice(2, 11), slice(15, 16), slice(5, 5)])
def test_unpacks_bitnet_layers(
    tmp_path: Path, linear: str, scale: float, rows: slice | None
) -> None:
    values = np.random.default_rng(0).integers(-1, 2, (16, 8)).astype(np.int8)
    folder = tmp_path / "m"
    folder.mkdir()
    config = {"model_type": "bitnet", "quantization_config": {"linear_class": linear}}
    (folder / "config.json").write_text(json.dumps(config))
    stored = {
        "q.weight": pack_reference(values),
        "q.weight_scale": np.array([2.5], np.float32),
        "other.weight": np.zeros((4, 8), np.uint8),
    }
    save_file(stored, folder / "model.safetensors")
    with open_checkpoint(str(folder)) as checkpoint:
        ternary = checkpoint.ternary("q.weight", rows)
        assert ternary is not None
        assert ternary[0].dtype == np.int8 and ternary[1].shape == (1,)
        np.testing.assert_array_equal(ternary[0], values[rows or slice(None)])
        assert ternary[1][0] == np.float32(scale)
        assert checkpoint.ternary("other.weight") is None
        np.testing.assert_array_equal(checkpoint.read("q.weight"), stored["q.weight"])


def test_refuses_a_packed_code_that_is_no_trit(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    stored = {"w": np.full((1, 4), 0xC0, np.uint8), "w_scale": np.ones(1, np.float32)}
    save_file(stored, tmp_path / "model.safetensors")
    with (
        open_checkpoint(str(tmp_path)) as checkpoint,
        pytest.raises(CheckpointError, match="'w' holds a packed code of 3"),
    ):
        checkpoint.ternary("w")


@pytest.mark.parametrize("scale", [[1, 1], [0]])
def test_refuses_a_scale_of_a_packed_layer_that_is_none(tmp_path: Path, scale: list[int]) -> None:
    (tmp_path / "config.json").write_text("{}")
    stored = {"w": np.zeros((1, 4), np.uint8), "w_scale": np.float32(scale)}
    save_file(stored, tmp_path / "model.safetensors")
    with (
        open_checkpoint(str(tmp_path)) as checkpoint,
        pytest.raises(CheckpointError, match="'w_scale' must hold one scale other than 0"),
    ):
        checkpoint.ternary("w")


@pytest.mark.parametrize("shape", [(4,), (1, 2, 2)])
def test_only_matrices_are_packed_layers(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (tmp_path / "config.json").write_text("{}")
    stored = {"w": np.zeros(shape, np.uint8), "w_scale": np.ones(1, np.float32)}
    save_file(stored, tmp_path / "model.safetensors")
    with open_checkpoint(str(tmp_path)) as checkpoint:
        assert checkpoint.ternary("w") is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_names_the_tensor_that_is_not_finite(tmp_path: Path, bad: float, dtype: str) -> None:
    weight = np.ones((4, 4), {"F32": np.float32, "F16": np.float16}[dtype])
    weight[2, 1] = bad
    header = {"some.weight": entry(dtype, [4, 4], 0, weight.nbytes)}
    path = write(tmp_path / "m" / "model.safetensors", header, weight.tobytes())
    with open_checkpoint(str(path.parent)) as checkpoint:
        assert checkpoint.read("some.weight", slice(0, 2)).all()
        with pytest.raises(CheckpointError, match=r"'some\.weight' holds NaN or Inf"):
            checkpoint.read("some.weight")


def test_weights_of_a_type_without_a_decoder_are_refused_when_they_are_read(tmp_path: Path) -> None:
    header = {"w": entry("U16", [1, 2], 0, 4), "mask": entry("F32", [1], 4, 8)}
    path = write(tmp_path / "m" / "model.safetensors", header, bytes(8))
    message = r"'w' is stored as U16, which cannot be read.*: F32, F16, BF16.*take the checkp"
    with open_checkpoint(str(path.parent)) as checkpoint:
        assert checkpoint.read("mask").shape == (1,)
        with pytest.raises(UnsupportedError, match=message):
            checkpoint.read("w")


@pytest.mark.parametrize("also", ["1", "NaN"])
def test_refuses_a_config_that_is_nested_too_deep(hf_folder: Path, also: str) -> None:
    path = hf_folder / "config.json"
    deep = "[" * 500 + "]" * 500
    path.write_text(f'{path.read_text().rstrip()[:-1]}, "deep": {deep}, "also": {also}}}')
    with pytest.raises(CheckpointError, match=r"'config\.json' is nested more than 100 levels"):
        open_checkpoint(str(hf_folder))


def test_takes_a_config_with_what_python_writes_for_infinity(hf_folder: Path) -> None:
    path = hf_folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "time_step_limit": [0.0, float("inf")]}))
    with open_checkpoint(str(hf_folder)) as checkpoint:
        assert checkpoint.config["time_step_limit"] == [0.0, float("inf")]


@pytest.mark.parametrize(
    "config", ["", "[]", "{", '{"a": 1e', '{"a": Infinity', "\udcff", "[" * 100_000]
)
def test_refuses_a_broken_config(hf_folder: Path, config: str) -> None:
    (hf_folder / "config.json").write_bytes(config.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match=r"'config\.json' is not the JSON expected"):
        open_checkpoint(str(hf_folder))


def test_settings_of_another_file_are_as_short_as_a_config(hf_folder: Path) -> None:
    settings = json.dumps({"quantization": {"x": " " * CONFIG_LIMIT_BYTES}})
    (hf_folder / "hf_quant_config.json").write_text(settings)
    with pytest.raises(CheckpointError, match=r"'hf_quant_config\.json' has \d+ bytes; at most"):
        open_checkpoint(str(hf_folder))


def test_reading_after_close_is_a_clear_error(hf_folder: Path) -> None:
    checkpoint = open_checkpoint(str(hf_folder))
    checkpoint.close()
    with pytest.raises(CheckpointError, match=r"cannot read 'model\.safetensors'"):
        checkpoint.read("lm_head.weight")


def test_a_file_that_shrinks_while_open_is_a_clear_error(hf_folder: Path) -> None:
    with open_checkpoint(str(hf_folder)) as checkpoint:
        with (hf_folder / "model.safetensors").open("r+b") as file:
            file.truncate(4096)
        with pytest.raises(CheckpointError, match="shrank while it was being read"):
            for name in checkpoint.tensors():
                checkpoint.read(name)


def test_an_unknown_name_is_a_clear_error(hf_folder: Path) -> None:
    with (
        open_checkpoint(str(hf_folder)) as checkpoint,
        pytest.raises(CheckpointError, match="has no tensor 'nope'"),
    ):
        checkpoint.read("nope")
