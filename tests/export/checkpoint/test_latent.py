"""Keys and values of every head, of checkpoints that store what makes them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.checkpoint.base import F32, I8, Affine, TensorInfo
from edgerun_export.checkpoint.views.latent import LatentHeads, with_single_heads

SOURCE = Path(__file__).resolve().parents[2] / "golden" / "deepseek_v2"
AT = "model.layers.1.self_attn"
HEADS, PLAIN, TURNED, VALUES, RANK, HIDDEN = 4, 24, 8, 16, 32, 64
WIDTH = PLAIN + TURNED
CONFIG = {
    "kv_lora_rank": RANK,
    "num_attention_heads": HEADS,
    "qk_nope_head_dim": PLAIN,
    "qk_rope_head_dim": TURNED,
    "v_head_dim": VALUES,
}
Tensors = dict[str, NDArray]


def raw() -> Tensors:
    """What the file itself holds."""
    return load_file(SOURCE / "model.safetensors")


def altered(folder: Path, change: Callable[[Tensors], None]) -> Path:
    """A copy of the checkpoint with other tensors, as float32."""
    shutil.copytree(SOURCE, folder)
    with open_checkpoint(str(SOURCE)) as checkpoint:
        stored = checkpoint._checkpoint
        tensors = {name: stored.read(name) for name in stored.tensors()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_rows_of_keys_and_values_are_those_of_both() -> None:
    with open_checkpoint(str(SOURCE)) as checkpoint:
        both = checkpoint._checkpoint.read(f"{AT}.kv_b_proj.weight")
        keys, values = (checkpoint.read(f"{AT}.{name}_proj.weight") for name in "kv")
        heads = both.reshape(HEADS, PLAIN + VALUES, RANK)
        for head in range(HEADS):
            of_keys, of_values = (part.reshape(HEADS, WIDTH, RANK)[head] for part in (keys, values))
            np.testing.assert_array_equal(of_keys[:PLAIN], heads[head, :PLAIN])
            np.testing.assert_array_equal(of_values[:VALUES], heads[head, PLAIN:])
            assert not of_keys[PLAIN:].any() and not of_values[VALUES:].any()
        for name, whole in (("k", keys), ("v", values)):
            for rows in (slice(0, 1), slice(26, 29), slice(20, 70), slice(100, None)):
                part = checkpoint.read(f"{AT}.{name}_proj.weight", rows)
                np.testing.assert_array_equal(part, whole[rows])


def test_turned_rows_are_behind_zeros() -> None:
    with open_checkpoint(str(SOURCE)) as checkpoint:
        stored = checkpoint._checkpoint.read(f"{AT}.kv_a_proj_with_mqa.weight")
        row = checkpoint.read(f"{AT}.kv_a_proj.weight")
        turned = checkpoint.read(f"{AT}.k_rope_proj.weight")
        part = checkpoint.read(f"{AT}.k_rope_proj.weight", slice(20, 27))
    np.testing.assert_array_equal(row, stored[:RANK])
    np.testing.assert_array_equal(turned[PLAIN:], stored[RANK:])
    assert turned.shape == (WIDTH, HIDDEN) and not turned[:PLAIN].any()
    np.testing.assert_array_equal(part, turned[20:27])


def test_columns_of_outputs_are_those_of_value_heads() -> None:
    name = f"{AT}.o_proj.weight"
    with open_checkpoint(str(SOURCE)) as checkpoint:
        stored, wide = checkpoint._checkpoint.read(name), checkpoint.read(name, slice(3, 9))
        assert checkpoint.tensors()[name].shape == (HIDDEN, HEADS * WIDTH)
    heads = wide.reshape(6, HEADS, WIDTH)
    np.testing.assert_array_equal(heads[..., :VALUES].reshape(6, -1), stored[3:9])
    assert not heads[..., VALUES:].any()


class Codes:
    """A checkpoint whose tensors are codes, scales and minima in blocks."""

    def __init__(self, block: int) -> None:
        self.config, self.source, self.notes = CONFIG, None, ()
        self.shapes = {
            f"{AT}.kv_a_proj_with_mqa.weight": (RANK + TURNED, HIDDEN),
            f"{AT}.kv_b_proj.weight": (HEADS * (PLAIN + VALUES), RANK),
            f"{AT}.o_proj.weight": (HIDDEN, HEADS * VALUES),
        }
        self.block = block

    def tensors(self) -> dict[str, TensorInfo]:
        return {name: TensorInfo(name, shape, "Q4_1") for name, shape in self.shapes.items()}

    def affine(self, name: str, rows: slice) -> Affine:
        rng = np.random.default_rng(5)
        n, k = self.shapes[name]
        codes = rng.integers(-8, 8, (n, k)).astype(np.int8)
        scales, minima = rng.uniform(1, 2, (2, n, k // self.block)).astype(np.float32)
        return Affine(codes[rows], scales[rows], minima[rows])

    def integers(self, name: str, rows: slice) -> tuple[I8, F32]:
        return self.affine(name, rows)[:2]

    def read(self, name: str, rows: slice) -> F32:
        codes, scales, minima = (part.astype(np.float32) for part in self.affine(name, rows))
        return codes * scales.repeat(self.block, 1) + minima.repeat(self.block, 1)

    def ternary(self, name: str, rows: slice) -> tuple[I8, F32]:
        return self.integers(name, rows)


@pytest.mark.parametrize("name", ["k_proj", "v_proj", "o_proj", "kv_a_proj", "k_rope_proj"])
@pytest.mark.parametrize("rows", [slice(0, 32), slice(25, 31), slice(7, 28)], ids=str)
def test_integers_are_kept(name: str, rows: slice) -> None:
    view = with_single_heads(Codes(8))
    assert isinstance(view, LatentHeads)
    codes, scales, minima = view.affine(f"{AT}.{name}.weight", rows)
    weights = codes * scales.repeat(8, 1) + minima.repeat(8, 1)
    np.testing.assert_array_equal(weights, view.read(f"{AT}.{name}.weight", rows))
    plain, of_plain = view.integers(f"{AT}.{name}.weight", rows)
    np.testing.assert_array_equal(plain, codes)
    np.testing.assert_array_equal(of_plain, scales)
    assert (scales > 0).all()  # also those of zeros
    assert view.ternary(f"{AT}.{name}.weight", rows) is None


def test_blocks_of_several_heads_are_no_integers_of_single_ones() -> None:
    view = with_single_heads(Codes(32))  # of 16 values a head
    assert (
        view.integers(f"{AT}.o_proj.weight") is None and view.affine(f"{AT}.o_proj.weight") is None
    )
    assert view.integers(f"{AT}.k_proj.weight") is not None


def test_what_was_read_is_told_by_the_names_here() -> None:
    with open_checkpoint(str(SOURCE)) as checkpoint:
        name = f"{AT}.k_proj.weight"
        checkpoint.read(name, slice(0, HEADS * WIDTH - 1))
        assert name not in checkpoint.read_to_the_end()
        checkpoint.read(name)
        assert checkpoint.read_to_the_end() == {name}
        assert not {each for each in checkpoint.tensors() if "kv_b" in each}


def test_other_checkpoints_stay_as_they_are() -> None:
    for config in ({}, {**CONFIG, "v_head_dim": "16"}, {**CONFIG, "num_attention_heads": 0}):
        other = Codes(8)
        other.config = config
        assert with_single_heads(other) is other


def split(tensors: Tensors) -> None:
    both = tensors.pop(f"{AT}.kv_b_proj.weight").reshape(HEADS, PLAIN + VALUES, RANK)
    tensors[f"{AT}.k_b_proj.weight"] = both[:, :PLAIN].transpose(0, 2, 1).copy()
    tensors[f"{AT}.v_b_proj.weight"] = both[:, PLAIN:].copy()


def test_keys_and_values_may_be_stored_apart(tmp_path: Path) -> None:
    folder = altered(tmp_path / "apart", split)
    with open_checkpoint(str(SOURCE)) as joined, open_checkpoint(str(folder)) as apart:
        for name in ("k_proj", "v_proj"):
            whole = joined.read(f"{AT}.{name}.weight")
            np.testing.assert_array_equal(apart.read(f"{AT}.{name}.weight"), whole)
            for rows in (slice(0, 3), slice(30, 70), slice(90, 128)):
                part = apart.read(f"{AT}.{name}.weight", rows)
                np.testing.assert_array_equal(part, whole[rows])
            assert apart.integers(f"{AT}.{name}.weight") is None


def test_integers_with_an_axis_of_heads_are_none_of_single_heads() -> None:
    stored = Codes(8)
    del stored.shapes[f"{AT}.kv_b_proj.weight"]
    stored.shapes[f"{AT}.k_b_proj.weight"] = HEADS, RANK, PLAIN
    stored.shapes[f"{AT}.v_b_proj.weight"] = HEADS, VALUES, RANK
    stored.affine = lambda name, rows: Affine(*np.ones((3, 4, 4), np.float32))  # as if there were
    view = with_single_heads(stored)
    for name in ("k_proj", "v_proj"):
        assert view.affine(f"{AT}.{name}.weight") is None
        assert view.integers(f"{AT}.{name}.weight") is None


def put(name: str, shape: tuple[int, ...]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({f"{AT}.{name}.weight": np.ones(shape, np.float32)})


def both_ways(tensors: Tensors) -> None:
    both = tensors[f"{AT}.kv_b_proj.weight"]
    split(tensors)
    tensors[f"{AT}.kv_b_proj.weight"] = both


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            put("kv_b_proj", (161, 32)),
            r"kv_b_proj.weight' has shape \[161, 32\]; .* asks for \[160, 32\]",
        ),
        (put("kv_b_proj", ()), r"has shape \[\]; config.json asks for \[160, 32\]"),
        (put("o_proj", (64, 128)), r"o_proj.weight' has shape \[64, 128\]; .* for \[64, 64\]"),
        (put("k_b_proj", (4, 24, 32)), r"k_b_proj.weight' has shape \[4, 24, 32\]"),
        (put("v_b_proj", (4, 32)), r"v_b_proj.weight' has shape \[4, 32\]"),
        (put("kv_a_proj_with_mqa", (40,)), r"with_mqa.weight' has shape \[40\]; .* \[40, 0\]"),
        (put("k_rope_proj", (32, 64)), "k_rope_proj.weight' is there twice, once in"),
        (both_ways, "k_proj.weight' is there twice, once in 'model.layers.1.self_attn.k"),
        (
            lambda tensors: tensors.pop(f"{AT}.kv_b_proj.weight"),
            "has 'model.layers.1.self_attn.kv_a_proj_with_mqa.weight' and no '.*kv_b_proj.weight'",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    change: Callable[[Tensors], None], message: str, tmp_path: Path
) -> None:
    folder = altered(tmp_path / "bad", change)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(folder)).close()


def test_sizes_are_compared_before_anything_is_made(tmp_path: Path) -> None:
    folder = altered(tmp_path / "large", lambda tensors: None)
    config = json.loads((folder / "config.json").read_text())
    config |= {"qk_rope_head_dim": 1 << 60, "v_head_dim": 1 << 60}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"has shape \[40, 64\]; config.json asks for"):
        open_checkpoint(str(folder)).close()
