"""llama2.c files of both versions, and a real one run to its golden tokens."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint import Checkpoint, open_checkpoint

Make = Callable[..., Path]
Tensors = dict[str, np.ndarray]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("tied", [True, False])
def test_gives_back_the_model_it_was_made_from(
    make_llama2c: Make, make_tensors: Callable[..., Tensors], version: int, tied: bool
) -> None:
    tensors = make_tensors(tied=tied)
    with open_checkpoint(str(make_llama2c(tensors, version))) as checkpoint:
        assert set(checkpoint.tensors()) == set(tensors)
        for name, weight in tensors.items():
            np.testing.assert_array_equal(checkpoint.read(name), weight, err_msg=name)
        assert checkpoint.config["tie_word_embeddings"] is tied
        assert checkpoint.config["num_key_value_heads"] == 2
        assert checkpoint.config["head_dim"] == 4
        assert checkpoint.config["rms_norm_eps"] == 1e-5
        assert checkpoint.source.kind == "llama2c"


@pytest.mark.parametrize("version", [0, 1])
def test_any_rows_of_a_rotary_projection_come_in_half_split_order(
    make_llama2c: Make, tensors: Tensors, version: int
) -> None:
    name = "model.layers.1.self_attn.q_proj.weight"
    with open_checkpoint(str(make_llama2c(tensors, version))) as checkpoint:
        for first in range(17):
            for end in range(first, 17):
                got = checkpoint.read(name, slice(first, end))
                np.testing.assert_array_equal(got, tensors[name][first:end])


@pytest.mark.parametrize("version", [2, 0, -1])
def test_refuses_int8_files(tmp_path: Path, version: int) -> None:
    path = tmp_path / "q.bin"
    path.write_bytes(struct.pack("<Ii", 0x616B3432, version).ljust(4096, b"\1"))
    with pytest.raises(UnsupportedError, match=f"version {version}; supported: 0 and 1"):
        open_checkpoint(str(path))


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("change", [-1, 1, -1000])
def test_refuses_a_file_of_the_wrong_size(
    make_llama2c: Make, tensors: Tensors, version: int, change: int
) -> None:
    path = make_llama2c(tensors, version)
    data = path.read_bytes()
    path.write_bytes(data[:change] if change < 0 else data + b"\0")
    with pytest.raises(CheckpointError, match="but its header describes"):
        open_checkpoint(str(path))


LARGEST = 1 << 24


def with_sizes(path: Path, sizes: tuple[int, ...]) -> Path:
    """A file of version 1 that has sizes and no weights."""
    path.write_bytes(struct.pack("<Ii7i", 0x616B3432, 1, *sizes).ljust(256, b"\0"))
    return path


@pytest.mark.parametrize(
    "sizes",
    [
        (16, 24, 2, 0, 2, 260, 8),
        (16, 24, 2, 3, 1, 260, 8),  # rows that are no heads
        (13, 24, 2, 3, 1, 260, 8),  # the same, though 4 is even
        (12, 24, 2, 4, 2, 260, 8),  # heads of 3
        (16, 24, 2, 4, 3, 260, 8),  # 4 heads of 3 groups
        (16, 24, 2, 4, 0, 260, 8),
        (16, 24, -1, 4, 2, 260, 8),
        (16, 24, 1025, 4, 2, 260, 8),
        (LARGEST + 2, 24, 1, 1, 1, 260, 8),
        (16, LARGEST + 1, 2, 4, 2, 260, 8),
        (16, 0, 2, 4, 2, 260, 8),
        (16, 24, 2, 4, 2, 0, 8),
        (16, 24, 2, 4, 2, LARGEST + 1, 8),
        (16, 24, 2, 4, 2, 260, 0),
        (16, 24, 2, 4, 2, 260, LARGEST + 1),
    ],
)
def test_refuses_impossible_sizes(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    with pytest.raises(CheckpointError, match="impossible sizes"):
        open_checkpoint(str(with_sizes(tmp_path / "m.bin", sizes)))


@pytest.mark.parametrize(
    "sizes",
    [
        (16, 24, 1024, 4, 2, 260, 8),
        (2, 1, 1, 1, 1, 1, 1),
        (LARGEST, LARGEST, 1, 2, 2, LARGEST, LARGEST),
    ],
)
def test_possible_sizes_are_compared_with_the_file_s(
    tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    with pytest.raises(CheckpointError, match="has 256 bytes, but its header describes"):
        open_checkpoint(str(with_sizes(tmp_path / "m.bin", sizes)))


def test_finds_the_tokenizer_beside_the_model(make_llama2c: Make, tensors: Tensors) -> None:
    path = make_llama2c(tensors, 1)
    with open_checkpoint(str(path)) as checkpoint:
        assert json.loads(checkpoint.tokenizer_files()["tokenizer.json"])["model"]["vocab"]["a"]
    moved = path.parent / "else.bin"
    (path.parent / "tokenizer.bin").rename(moved)
    with (
        open_checkpoint(str(path)) as checkpoint,
        pytest.raises(CheckpointError, match="tok260.bin or tokenizer.bin.*--tokenizer"),
    ):
        checkpoint.tokenizer_files()
    with open_checkpoint(str(path), tokenizer=str(moved)) as checkpoint:
        assert "tokenizer.json" in checkpoint.tokenizer_files()


def forward(checkpoint: Checkpoint, ids: list[int]) -> np.ndarray:
    """Logits ``[positions, vocab]`` of a Hugging Face Llama in float64, rotate-half rotary."""
    config = checkpoint.config
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim, count = config["head_dim"], len(ids)

    def weight(name: str) -> np.ndarray:
        return checkpoint.read(f"{name}.weight").astype(np.float64)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean + config["rms_norm_eps"]) * weight(name)

    frequencies = config["rope_theta"] ** -(np.arange(0, head_dim, 2) / head_dim)
    angles = np.tile(np.outer(np.arange(count), frequencies), 2)[:, None, :]

    def rotate(x: np.ndarray) -> np.ndarray:
        left, right = np.split(x, 2, axis=-1)
        return x * np.cos(angles) + np.concatenate([-right, left], axis=-1) * np.sin(angles)

    x = weight("model.embed_tokens")[ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        h = norm(x, f"{at}.input_layernorm")
        q = rotate((h @ weight(f"{at}.self_attn.q_proj").T).reshape(count, heads, head_dim))
        k = rotate((h @ weight(f"{at}.self_attn.k_proj").T).reshape(count, kv_heads, head_dim))
        v = (h @ weight(f"{at}.self_attn.v_proj").T).reshape(count, kv_heads, head_dim)
        k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(head_dim)
        scores += np.triu(np.full((count, count), -np.inf), 1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v)
        x = x + mixed.reshape(count, -1) @ weight(f"{at}.self_attn.o_proj").T
        h = norm(x, f"{at}.post_attention_layernorm")
        gate, up = h @ weight(f"{at}.mlp.gate_proj").T, h @ weight(f"{at}.mlp.up_proj").T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weight(f"{at}.mlp.down_proj").T
    return norm(x, "model.norm") @ weight("model.embed_tokens").T


@pytest.mark.parametrize("name", ["stories260K.bin", "stories260K_v1.bin"])
def test_the_real_model_predicts_its_golden_tokens(shared_data: Path, name: str) -> None:
    folder = shared_data / "models" / "stories260K"
    golden = json.loads((folder / "golden_bos.json").read_text())
    ids = golden["greedy_ids"][:120]
    with open_checkpoint(str(folder / name)) as checkpoint:
        logits = forward(checkpoint, ids)
    assert logits.argmax(-1)[:-1].tolist() == ids[1:]
