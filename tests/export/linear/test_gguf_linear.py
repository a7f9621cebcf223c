"""GGUF files of Qwen3-Next and Qwen3.5, written as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, EdgerunError
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.checkpoint.base import TensorInfo
from edgerun_export.checkpoint.views.linear import LinearHeads, Sizes
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.model import interpret
from tests.support.gguf_model import difference, source_of, write_gguf

gguf = pytest.importorskip("gguf")

ARCHITECTURES = {
    "qwen3_next": "qwen3next",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
}
Tensors = dict[str, np.ndarray]


def tiled(rows: np.ndarray, key_heads: int, heads: int, axis: int = 0) -> np.ndarray:
    """The first value head of every key head, the second of every key head, and so on."""
    parts = np.split(rows, heads, axis)
    shared = heads // key_heads
    order = [key * shared + head for head in range(shared) for key in range(key_heads)]
    return np.concatenate([parts[head] for head in order], axis)


def converted(name: str, config: dict[str, Any], tensors: Tensors) -> tuple[Tensors, Tensors]:
    """What the file has: tensors that are called as elsewhere, and those of linear attention."""
    key_heads, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    queries = 2 * key_heads * config["linear_key_head_dim"]

    def of_heads(rows: np.ndarray, axis: int = 0) -> np.ndarray:
        return rows if name == "qwen3_next" else tiled(rows, key_heads, heads, axis)

    def behind(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([rows[:queries], of_heads(rows[queries:])])

    forms: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
        "in_proj_ba.weight": ("ssm_ba.weight", lambda value: value),
        "in_proj_qkv.weight": ("attn_qkv.weight", behind),
        "in_proj_z.weight": ("attn_gate.weight", of_heads),
        "in_proj_a.weight": ("ssm_alpha.weight", of_heads),
        "in_proj_b.weight": ("ssm_beta.weight", of_heads),
        "A_log": ("ssm_a", lambda value: of_heads(-np.exp(value))),
        "dt_bias": ("ssm_dt.bias", of_heads),
        "conv1d.weight": ("ssm_conv1d.weight", lambda value: behind(value[:, 0])),
        "norm.weight": ("ssm_norm.weight", lambda value: value),
        "out_proj.weight": ("ssm_out.weight", lambda value: of_heads(value, axis=1)),
    }
    others: Tensors = {}
    own: Tensors = {}
    for key, value in tensors.items():
        if ".linear_attn." not in key:
            others[key] = value + 1 if key.endswith("norm.weight") else value
            continue
        _, _, layer, _, part = key.split(".", 4)
        if part == "in_proj_qkvz.weight":
            each = [np.split(rows, [16, 32, 96]) for rows in np.split(value, key_heads)]
            *parts, gate = (np.concatenate(rows) for rows in zip(*each, strict=True))
            own[f"blk.{layer}.attn_qkv.weight"] = np.concatenate(parts)
            own[f"blk.{layer}.attn_gate.weight"] = gate
        else:
            stored, change = forms[part]
            own[f"blk.{layer}.{stored}"] = change(value)
    return others, own


def written(
    path: Path,
    name: str,
    kinds: dict[str, str] | None = None,
    alter: Callable[[Tensors], object] = lambda own: None,
    predicting: int = 0,
    **changes: Any,
) -> Path:
    """Writes a golden checkpoint as a GGUF file; ``kinds`` are types of linear attention's."""
    config, tensors = source_of(name, predicting=predicting)
    others, own = converted(name, config, tensors)
    alter(own)
    sizes = {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
        **changes,
    }

    def extra(writer: Any) -> None:
        writer.add_rope_dimension_count(8)
        writer.add_uint32(f"{ARCHITECTURES[name]}.full_attention_interval", 2)
        writer.add_array(f"{ARCHITECTURES[name]}.rope.dimension_sections", [2, 1, 1, 0])
        for key, value in sizes.items():
            writer.add_uint32(f"{ARCHITECTURES[name]}.{key}", value)
        kept = [kind == "linear_attention" for kind in config["layer_types"]]
        kept += [False] * predicting
        writer.add_array(f"{ARCHITECTURES[name]}.attention.recurrent_layers", kept)
        for layer in range(len(kept) - predicting, len(kept)):
            writer.add_tensor(f"blk.{layer}.nextn.eh_proj.weight", np.ones((64, 128), np.float32))
            writer.add_uint32(f"{ARCHITECTURES[name]}.nextn_predict_layers", predicting)
        for key, value in own.items():
            kind = next((kind for part, kind in (kinds or {}).items() if part in key), "F32")
            raw = gguf.GGMLQuantizationType[kind]
            stored = gguf.quants.quantize(np.ascontiguousarray(value), raw)
            writer.add_tensor(key, stored, raw_dtype=raw)

    return write_gguf(path, ARCHITECTURES[name], config, others, extra=extra)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_files_of_llama_cpp_compute_what_the_checkpoint_computes(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", name)
    assert difference(path, name, {}) < 2e-6
    result = export(path, tmp_path / "out", ExportOptions(verify=True))
    assert not result.warnings


def test_layers_that_predict_more_tokens_are_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", "qwen3_5_text", predicting=1)
    assert difference(path, "qwen3_5_text", {}) < 2e-6
    with open_checkpoint(str(path)) as checkpoint:
        _, warnings = interpret(checkpoint)
    assert warnings == ["its layers for multi-token prediction (MTP) are left out"]


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_text"])
def test_integers_of_such_files_are_kept(name: str, tmp_path: Path) -> None:
    """Also where rows come of two tensors, and columns of whole heads are in another order."""
    kinds = {"attn_qkv": "Q8_0", "ssm_out": "Q8_0", "attn_gate": "Q4_1"}
    path = written(tmp_path / "model.gguf", name, kinds)
    with open_checkpoint(str(path)) as checkpoint:
        weights, _ = interpret(checkpoint)
        own, rows = "model.layers.0.linear_attn.in_proj_z.weight", slice(3, 40)
        affine = weights.affine(own, rows)
        assert affine is not None and weights.integers(own, rows) is None
        scales, offsets = (np.repeat(each, 32, axis=1) for each in affine[1:])
        np.testing.assert_array_equal(affine[0] * scales + offsets, weights.rows(own, rows))
        for part in ("in_proj_qkv", "out_proj"):
            own = f"model.layers.0.linear_attn.{part}.weight"
            stored = weights.integers(own, rows)
            assert stored is not None
            values, scales = stored
            restored = values * np.repeat(scales, 32, axis=1)
            np.testing.assert_array_equal(restored, weights.rows(own, rows))


def test_blocks_that_heads_cut_are_floats(tmp_path: Path) -> None:
    """Heads of 32 elements in blocks of 256 columns cannot be put in another order."""

    def wide(own: Tensors) -> None:
        rows = own["blk.0.ssm_out.weight"]
        own["blk.0.ssm_out.weight"] = np.ascontiguousarray(np.tile(rows, 2))

    path = written(
        tmp_path / "model.gguf",
        "qwen3_5_text",
        {"blk.0.ssm_out": "Q8_0"},
        wide,
        **{"ssm.inner_size": 64 * 4, "ssm.time_step_rank": 16},
    )
    with open_checkpoint(str(path)) as checkpoint:
        own = "model.layers.0.linear_attn.out_proj.weight"
        assert checkpoint.tensors()[own].shape == (64, 256)
        assert checkpoint.integers(own) is None
        assert checkpoint.read(own).shape == (64, 256)


def flat(name: str) -> Callable[[Tensors], object]:
    return lambda own: own.update({name: own[name].reshape(-1)})


@pytest.mark.parametrize(
    ("alter", "changes", "message"),
    [
        (lambda own: own["blk.0.ssm_a"].__setitem__(1, 0.5), {}, "rate' holds 0.5; expected"),
        (lambda own: own.pop("blk.2.ssm_dt.bias"), {}, "no tensor 'model.layers.2.*dt_bias'"),
        (flat("blk.0.ssm_out.weight"), {}, r"out_proj.weight' has shape \[8192\]; config"),
        (lambda own: None, {"ssm.group_count": 8}, "4 is not a multiple of linear_num_key_heads 8"),
        (lambda own: None, {"ssm.group_count": 3}, "4 is not a multiple of linear_num_key_heads 3"),
        (lambda own: None, {"ssm.inner_size": 130}, "130 elements of values are not a multiple"),
        (lambda own: None, {"ssm.state_size": 24}, r"conv1d.weight' has shape \[192, 1, 4\]"),
    ],
)
def test_what_such_a_file_cannot_have_is_refused(
    alter: Callable[[Tensors], object], changes: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(EdgerunError, match=message):
        path = written(tmp_path / "model.gguf", "qwen3_5_text", alter=alter, **changes)
        export(path, tmp_path / "out", ExportOptions())


def test_rows_of_one_key_head_come_of_two_tensors() -> None:
    """Its gates follow its values in number, and lie elsewhere."""
    rows = np.arange(2 * 2 + 2 * 3 + 2 * 3, dtype=np.float32)[:, None]
    module = "model.layers.0.linear_attn"
    stored = {
        f"{module}.in_proj_qkv.weight": rows[:10],
        f"{module}.in_proj_z.weight": rows[10:],
        f"{module}.rate": np.array(-1, np.float32),  # which has no row
    }

    class Stored:
        config, source, notes = MappingProxyType({}), None, ()

        def tensors(self) -> dict[str, TensorInfo]:
            return {name: TensorInfo(name, each.shape, "F32") for name, each in stored.items()}

        def read(self, name: str, part: slice) -> np.ndarray:
            assert 0 <= part.start < part.stop <= len(stored[name])
            return stored[name][part]

    view = LinearHeads(Stored(), Sizes(1, 2, 2, 3), are_tiled=False)  # type: ignore[arg-type]
    assert {*view.tensors()} == {f"{module}.in_proj_qkvz.weight", f"{module}.rate"}
    np.testing.assert_array_equal(view.read(f"{module}.in_proj_qkvz.weight"), rows)


def test_every_fourth_layer_attends_where_a_file_names_none(tmp_path: Path) -> None:
    from edgerun_export.checkpoint.kinds.keys import Keys
    from edgerun_export.checkpoint.kinds.linear import linear_attention

    metadata = {
        **{"a.ssm.time_step_rank": 4, "a.ssm.inner_size": 64, "a.ssm.conv_kernel": 4},
        **{"a.ssm.state_size": 16, "a.ssm.group_count": 2, "a.nextn_predict_layers": 1},
    }
    config = linear_attention(Keys(metadata, "a"), {"num_hidden_layers": 6}, {})
    linear, full = "linear_attention", "full_attention"
    assert config["layer_types"] == [linear, linear, linear, full, linear]
    assert (config["num_hidden_layers"], config["num_nextn_predict_layers"]) == (5, 1)
    with pytest.raises(CheckpointError, match="expected a truth value for each of 6 layers"):
        linear_attention(
            Keys({**metadata, "a.attention.recurrent_layers": [True]}, "a"),
            {"num_hidden_layers": 6},
            {},
        )
