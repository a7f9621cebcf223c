"""GGUF files of bitnet.cpp: its type I2_S, written here by the definition of its packing."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.verify.compare import run_onnx
from tests.fuzz.mutate.gguf_file import ARRAY, STRING, Entry, GgufFile, TensorEntry, write
from tests.support.peers import needs_complete_onnxruntime

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "bitnet-offline"
I2_S, TAIL_BYTES = 36, 32
U32, F32, BOOL, I32 = 4, 6, 7, 5
HIDDEN, WIDTH, LAYERS, KV_ROWS, VOCABULARY = 128, 256, 2, 64, 264
DOWN = "model.layers.1.mlp.down_proj.weight"
NAMES = {
    "self_attn.q_proj": ("attn_q", (HIDDEN, HIDDEN)),
    "self_attn.k_proj": ("attn_k", (KV_ROWS, HIDDEN)),
    "self_attn.v_proj": ("attn_v", (KV_ROWS, HIDDEN)),
    "self_attn.o_proj": ("attn_output", (HIDDEN, HIDDEN)),
    "mlp.gate_proj": ("ffn_gate", (WIDTH, HIDDEN)),
    "mlp.up_proj": ("ffn_up", (WIDTH, HIDDEN)),
    "mlp.down_proj": ("ffn_down", (HIDDEN, WIDTH)),
}
NORMS = {
    "input_layernorm": ("attn_norm", HIDDEN),
    "self_attn.attn_sub_norm": ("attn_sub_norm", HIDDEN),
    "post_attention_layernorm": ("ffn_norm", HIDDEN),
    "mlp.ffn_sub_norm": ("ffn_sub_norm", WIDTH),
}
Values = dict[str, tuple[np.ndarray, np.float32]]


def packed(values: np.ndarray, scale: float, tail: bytes = b"\xa5" * 28) -> bytes:
    """I2_S by its definition, weight by weight; after the scale lies what happened to be there."""
    out = bytearray(values.size // 4)
    for index, value in enumerate(values.reshape(-1).tolist()):
        block, place = divmod(index, 128)
        quarter, byte = divmod(place, 32)
        out[block * 32 + byte] |= (value + 1) << (6 - 2 * quarter)
    return bytes(out) + struct.pack("<f", scale) + tail


def ternary_model() -> tuple[Values, dict[str, np.ndarray]]:
    """Ternary projections with their scales, and the other tensors, in Hugging Face names."""
    draw = np.random.default_rng(5)
    values: Values = {}
    others = {"model.embed_tokens.weight": draw.normal(0, 1, (VOCABULARY, HIDDEN))}
    others["model.norm.weight"] = draw.normal(1, 0.1, HIDDEN)
    for layer in range(LAYERS):
        for name, (_, shape) in NAMES.items():
            scale = np.float32(draw.uniform(0.05, 0.2))
            chosen = draw.choice([-1, 0, 1], shape, p=[0.2, 0.5, 0.3]).astype(np.int8)
            values[f"model.layers.{layer}.{name}.weight"] = chosen, scale
        for name, (_, width) in NORMS.items():
            others[f"model.layers.{layer}.{name}.weight"] = draw.normal(1, 0.1, width)
    # What F16 holds, as the embedding of published files is stored.
    return values, {name: value.astype(np.float16) for name, value in others.items()}


def gguf_name(name: str) -> str:
    """What bitnet.cpp calls a tensor."""
    if not name.startswith("model.layers."):
        return {"embed_tokens": "token_embd", "norm": "output_norm"}[name.split(".")[1]] + ".weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{(NAMES | NORMS)[rest.removesuffix('.weight')][0]}.weight"


def alphabet() -> list[str]:
    """GPT-2's letters for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [value for value in range(256) if value not in plain]
    return [chr(value) for value in plain] + [chr(256 + index) for index in range(len(rest))]


def metadata(arch: str) -> list[Entry]:
    """The keys of the published file, as its users' logs show them: ``pre`` is not among them."""
    tokens = [*alphabet(), "11", "111", *(f"<|reserved_{n}|>" for n in range(4))]
    tokens += ["<|begin_of_text|>", "<|eot_id|>"]
    sizes = {
        "vocab_size": VOCABULARY,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "block_count": LAYERS,
        "feed_forward_length": WIDTH,
        "rope.dimension_count": 32,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }
    kinds = [1] * 258 + [3] * 6
    return [
        Entry(b"general.architecture", STRING, arch),
        *(Entry(f"{arch}.{key}".encode(), U32, value) for key, value in sizes.items()),
        Entry(f"{arch}.attention.layer_norm_rms_epsilon".encode(), F32, 1e-5),
        Entry(f"{arch}.rope.freq_base".encode(), F32, 500000.0),
        Entry(b"general.file_type", U32, 40),
        Entry(b"tokenizer.ggml.model", STRING, "gpt2"),
        Entry(b"tokenizer.ggml.add_bos_token", BOOL, True),
        Entry(b"tokenizer.ggml.tokens", ARRAY, tokens, STRING),
        Entry(b"tokenizer.ggml.token_type", ARRAY, kinds, I32),
        Entry(b"tokenizer.ggml.merges", ARRAY, ["1 1", "11 1"], STRING),
        Entry(b"tokenizer.ggml.bos_token_id", U32, VOCABULARY - 2),
        Entry(b"tokenizer.ggml.eos_token_id", U32, VOCABULARY - 1),
    ]


Row = tuple[str, list[int], int, bytes]  # name, dimensions (innermost first), type, bytes


def rows_of(values: Values, others: dict[str, np.ndarray]) -> list[Row]:
    """The tensors as bitnet.cpp stores them: norms as F32."""
    rows: list[Row] = []
    for name, array in others.items():
        is_matrix = array.ndim == 2
        data = array.astype("<f2" if is_matrix else "<f4").tobytes()
        rows.append((gguf_name(name), [*array.shape[::-1]], int(is_matrix), data))
    for name, (codes, scale) in values.items():
        rows.append((gguf_name(name), [*codes.shape[::-1]], I2_S, packed(codes, scale)))
    return rows


def write_file(path: Path, rows: list[Row], arch: str = "bitnet-b1.58") -> Path:
    """Writes a GGUF file; its tensors begin at multiples of 32 bytes."""
    tensors, data = [], b""
    for name, dims, kind, content in rows:
        tensors.append(TensorEntry(name.encode(), dims, kind, len(data)))
        data += content + bytes(-len(content) % 32)
    path.write_bytes(write(GgufFile(3, metadata(arch), tensors, data)))
    return path


def changed(path: Path, name: str, change: Callable[[Row], Row | list[Row]]) -> Path:
    """Writes the model with one tensor changed, or with others in its place."""
    rows: list[Row] = []
    for row in rows_of(*ternary_model()):
        other = change(row) if row[0] == gguf_name(name) else row
        rows += other if isinstance(other, list) else [other]
    return write_file(path, rows)


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_file(tmp_path_factory.mktemp("i2_s") / "m.gguf", rows_of(*ternary_model()))


def packed_rows(values: np.ndarray) -> np.ndarray:
    """transformers' packing of ternary weights: a quarter of the rows in two bits each."""
    quarters = (values + 1).astype(np.uint8).reshape(4, -1, values.shape[1])
    return quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6


@pytest.fixture(scope="module")
def safetensors_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as transformers stores it."""
    folder = tmp_path_factory.mktemp("safetensors")
    config = json.loads((GOLDEN / "config.json").read_text())
    config |= {"hidden_size": HIDDEN, "intermediate_size": WIDTH}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(GOLDEN / name, folder)
    values, others = ternary_model()
    tensors = {name: value.astype(np.float32) for name, value in others.items()}
    for name, (codes, scale) in values.items():
        tensors[name] = packed_rows(codes)
        tensors[f"{name}_scale"] = np.array([scale], np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_bytes_made_by_hand_are_read(tmp_path: Path) -> None:
    """Byte 0 holds weights 0, 32, 64 and 96, the first in its highest bits; 0x55 is four zeros."""
    code = {-1: 0, 0: 1, 1: 2}
    first = code[-1] << 6 | code[1] << 4 | code[0] << 2 | code[1]
    assert first == 0b00_10_01_10
    block = bytes([first]) + b"\x55" * 30 + bytes([0b10_01_01_00])
    data = (block + b"\x55" * 32) * HIDDEN + struct.pack("<f", 0.75) + bytes(28)
    path = changed(tmp_path / "m.gguf", DOWN, lambda row: (*row[:3], data))
    expected = np.zeros(WIDTH, np.int8)
    expected[[0, 32, 96]] = -1, 1, 1
    expected[[31, 127]] = 1, -1
    with open_checkpoint(str(path)) as checkpoint:
        values, scales = checkpoint.ternary(DOWN)
        np.testing.assert_array_equal(values, np.tile(expected, (HIDDEN, 1)))
        np.testing.assert_array_equal(scales, np.full((HIDDEN, 1), 0.75, np.float32))
        np.testing.assert_array_equal(checkpoint.read(DOWN), values * np.float32(0.75))


@pytest.mark.parametrize("rows", [None, slice(3, 9), slice(63, 64), slice(5, 5)])
def test_codes_and_scale_are_those_of_the_file(gguf_file: Path, rows: slice | None) -> None:
    with open_checkpoint(str(gguf_file)) as checkpoint:
        for name, (codes, scale) in ternary_model()[0].items():
            info = checkpoint.tensors()[name]
            assert (info.shape, info.dtype) == (codes.shape, "I2_S")
            values, scales = checkpoint.ternary(name, rows)
            part = codes[rows or slice(None)]
            np.testing.assert_array_equal(values, part)
            np.testing.assert_array_equal(scales, np.full((len(part), 1), scale))
            np.testing.assert_array_equal(checkpoint.read(name, rows), part * scale)


def test_rows_of_llama_are_put_back_in_order(tmp_path: Path) -> None:
    """bitnet.cpp's converter interleaves pairs of rows in files of that architecture, too."""
    values, others = ternary_model()
    name = "model.layers.0.self_attn.q_proj.weight"
    codes, scale = values[name]
    turned = codes.reshape(4, 2, 16, HIDDEN).swapaxes(1, 2).reshape(HIDDEN, HIDDEN)
    rows = rows_of({**values, name: (turned, scale)}, others)
    plain = [row for row in rows if "sub_norm" not in row[0]]
    with open_checkpoint(str(write_file(tmp_path / "m.gguf", plain, "llama"))) as checkpoint:
        np.testing.assert_array_equal(checkpoint.ternary(name, slice(7, 90))[0], codes[7:90])


def model_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if "model" in path.name}


@pytest.mark.parametrize("weights", [None, "source"])
def test_exports_what_the_safetensors_export_to(
    gguf_file: Path, safetensors_folder: Path, tmp_path: Path, weights: str | None
) -> None:
    options = ExportOptions(weights=weights, head_weights="fp32")
    theirs = export(safetensors_folder, tmp_path / "theirs", options)
    ours = export(gguf_file, tmp_path / "ours", options)
    assert ours.recipe.weights == "ternary"
    assert ours.manifest["quality"]["relative_weight_error"] == 0
    files = model_files(ours.folder)
    assert len(files) >= 2 and files == model_files(theirs.folder)
    (warning,) = ours.warnings
    assert warning.startswith("14 tensors are I2_S, which bitnet.cpp packs in an order of its own")
    assert theirs.warnings == []


@needs_complete_onnxruntime
def test_writes_the_tokens_that_the_safetensors_write(
    gguf_file: Path, safetensors_folder: Path, tmp_path: Path
) -> None:
    options = ExportOptions(verify=True)
    results = [
        export(source, tmp_path / str(number), options)
        for number, source in enumerate((gguf_file, safetensors_folder))
    ]
    with open_checkpoint(str(safetensors_folder)) as checkpoint:
        from edgerun_export.source.model import interpret

        spec = interpret(checkpoint)[0].spec
    replies = []
    for result in results:
        ids = [3, 200, 17, 99]
        for _ in range(8):
            logits = run_onnx(result.folder, spec, np.array(ids))
            ids.append(int(logits[-1].argmax()))
        replies.append((ids, logits))
    assert replies[0][0] == replies[1][0]
    np.testing.assert_array_equal(replies[0][1], replies[1][1])


def scaled(scale: float) -> Callable[[Row], Row]:
    return lambda row: (*row[:3], row[3][:-TAIL_BYTES] + struct.pack("<f", scale) + bytes(28))


@pytest.mark.parametrize("scale", [0.0, -0.5, float("nan"), float("inf"), float("-inf")])
def test_refuses_a_scale_that_is_none(tmp_path: Path, scale: float) -> None:
    path = changed(tmp_path / "m.gguf", DOWN, scaled(scale))
    message = rf"'blk.1.ffn_down.weight' of type I2_S has the scale {scale}; expected a finite one"
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(path))


def test_refuses_a_code_that_is_no_trit(tmp_path: Path) -> None:
    def damage(row: Row) -> Row:
        return (*row[:3], row[3][:40] + bytes([0b01_01_11_01]) + row[3][41:])

    path = changed(tmp_path / "m.gguf", DOWN, damage)
    with open_checkpoint(str(path)) as checkpoint:
        with pytest.raises(CheckpointError, match="down_proj.weight' holds a I2_S code for 2"):
            checkpoint.ternary(DOWN)
        with pytest.raises(CheckpointError, match="down_proj.weight' holds NaN or Inf in rows 0"):
            checkpoint.read(DOWN)
        checkpoint.ternary(DOWN, slice(1, None))
    with pytest.raises(CheckpointError, match="I2_S code for 2"):
        export(path, tmp_path / "out", ExportOptions())


def sized(change: int) -> Callable[[Row], Row]:
    return lambda row: (*row[:3], (row[3] + bytes(max(change, 0)))[: len(row[3]) + change])


def dims(*others: int) -> Callable[[Row], Row]:
    return lambda row: (row[0], [*others], I2_S, bytes(4096))


BAD = {
    "no scale": (sized(-TAIL_BYTES), r"'blk\.\d\.\w+\.weight' and 'blk\.\d\.\w+\.weight' overlap"),
    "scale per row": (
        sized(4 * HIDDEN - 4),
        r"'blk\.0\.ffn_down\.weight' of type I2_S has 8736 bytes in the file; expected 8224, codes",
    ),
    "width of 64s": (dims(192, 128), r"has shape \[128, 192\]; .* the last in multiples of 128"),
    "three axes": (dims(128, 64, 2), r"has shape \[2, 64, 128\]; expected two axes"),
    "one axis": (dims(128), r"has shape \[128\]; expected two or more axes"),
}


@pytest.mark.parametrize("case", BAD)
def test_refuses_a_tensor_of_another_form(tmp_path: Path, case: str) -> None:
    change, message = BAD[case]
    path = changed(tmp_path / "m.gguf", DOWN.replace("layers.1", "layers.0"), change)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(path))


@pytest.mark.parametrize("missing", [1, 28, 40, 9000])
def test_refuses_a_file_that_ends_early(gguf_file: Path, tmp_path: Path, missing: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_file.read_bytes()[:-missing])
    with pytest.raises(CheckpointError, match="'m.gguf' is truncated: tensor 'blk.1"):
        open_checkpoint(str(path))


@pytest.mark.parametrize(("kind", "name"), [(37, "I8_S"), (38, "TL1"), (39, "TL2")])
def test_refuses_the_types_of_one_processor_s_kernels(tmp_path: Path, kind: int, name: str) -> None:
    """TL2 has the number of MXFP4; a tensor with its scale stands beside it."""

    def other(row: Row) -> list[Row]:
        scale = (f"{row[0]}_scale", [1], 0, struct.pack("<f", 0.5))
        return [(row[0], row[1], kind, row[3]), scale]

    path = changed(tmp_path / "m.gguf", DOWN, other)
    message = rf"type {kind} \({name} of bitnet.cpp\); supported: .*, TQ2_0, I2_S, MXFP4, .*; take"
    with pytest.raises(UnsupportedError, match=message):
        open_checkpoint(str(path))


def test_a_scale_beside_the_tensor_is_not_left_out(tmp_path: Path) -> None:
    """Other converters write I2_S so, in another order of bits."""

    def other(row: Row) -> list[Row]:
        return [row, (f"{row[0]}_scale", [1], 0, struct.pack("<f", 0.5))]

    with pytest.raises(EdgerunError, match="'blk.1.ffn_down.weight_scale' has no known place"):
        open_checkpoint(str(changed(tmp_path / "m.gguf", DOWN, other)))


@pytest.mark.parametrize("arch", ["bitnet-b1.58", "bitnet-25"])
def test_the_configuration_is_that_of_bitnet_2b4t(tmp_path: Path, arch: str) -> None:
    path = write_file(tmp_path / "m.gguf", rows_of(*ternary_model()), arch)
    with open_checkpoint(str(path)) as checkpoint:
        config = checkpoint.config
        expected: dict[str, Any] = {"model_type": "bitnet", "hidden_act": "relu2"}
        expected |= {"rope_theta": 500000.0, "rms_norm_eps": 1e-5, "head_dim": 32}
        expected |= {"tie_word_embeddings": True, "vocab_size": VOCABULARY}
        assert {key: config[key] for key in expected} == expected
        tokenizer = json.loads(checkpoint.tokenizer_files()["tokenizer.json"])
    assert tokenizer["model"]["ignore_merges"] is True
    (split, _) = tokenizer["pre_tokenizer"]["pretokenizers"]
    assert r"\p{N}{1,3}" in split["pattern"]["Regex"]
