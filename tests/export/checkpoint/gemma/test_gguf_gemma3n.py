"""GGUF files of Gemma 3n: what is read is what was written, and what they cannot have."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from edgerun.errors import EdgerunError
from edgerun_export.architectures import describe
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.model import interpret
from tests.support.gguf_model import difference, source_of, type_of, write_gguf

gguf = pytest.importorskip("gguf")

NAME = "gemma3n_text"
TABLE = "model.embed_tokens_per_layer.weight"
PATTERN, CUT = "attention.sliding_window_pattern", "activation_sparsity_scale"
WIDTHS = "feed_forward_length"


def written(
    tmp_path: Path,
    changes: dict[str, Any] | None = None,
    quantised: Any = None,
    tensors: Any = lambda tensors: tensors,
) -> tuple[Path, dict[str, Any]]:
    """As llama.cpp's converter writes the golden checkpoint, but for some keys."""
    config, own = source_of(NAME)
    # Zeros are behind the rows that a table has.
    own[TABLE] = np.concatenate([own[TABLE], np.zeros((8, 96), np.float32)])
    shares = config["activation_sparsity_pattern"]
    keys = {
        "attention.sliding_window": 8,
        PATTERN: [kind == "sliding_attention" for kind in config["layer_types"]],
        CUT: [NormalDist().inv_cdf(share) if share else -math.inf for share in shares],
        "attention.shared_kv_layers": 2,
        "embedding_length_per_layer_input": 16,
        "altup.active_idx": 0,
        "altup.num_inputs": 4,
        "final_logit_softcapping": 5.0,
        **(changes or {}),
    }

    def extra(writer: Any) -> None:
        for key, value in keys.items():
            if value is not None:
                kind = type_of(value)
                writer.add_key_value(f"gemma3n.{key}", value, kind)

    plain = {**config, "rope_theta": 1000000.0, "vocab_size_per_layer_input": 264}
    path = tmp_path / "model.gguf"
    return write_gguf(path, "gemma3n", plain, tensors(own), quantised, extra), config


def test_files_of_llama_cpp_compute_what_the_checkpoint_computes(tmp_path: Path) -> None:
    path, config = written(tmp_path)
    assert difference(path, NAME, config) < 2e-6


def test_a_table_may_have_rows_for_some_tokens_alone(tmp_path: Path) -> None:
    path, config = written(tmp_path, tensors=lambda own: {**own, TABLE: own[TABLE][:256]})
    assert difference(path, NAME, config) < 2e-6
    with open_checkpoint(str(path)) as checkpoint:
        assert describe(checkpoint.config).storage.rows == {TABLE: 256}


def test_what_a_file_leaves_out_is_as_llama_cpp_has_it(tmp_path: Path) -> None:
    absent = (PATTERN, CUT, "altup.active_idx", "altup.num_inputs", "final_logit_softcapping")
    path, _ = written(
        tmp_path,
        {**dict.fromkeys(absent), "attention.shared_kv_layers": None, "rope.freq_base_swa": 7.0},
    )
    with open_checkpoint(str(path)) as checkpoint:
        spec = describe(checkpoint.config)
    assert [layer.window for layer in spec.layers] == [8, 8, 8, 8, None, 8]
    assert {layer.kv_source for layer in spec.layers} == {None}
    assert all(layer.feed_forward.deviations is None for layer in spec.layers)  # type: ignore[union-attr]
    assert spec.softcap == 30.0 and spec.altup is not None and spec.altup.count == 4
    assert spec.ropes[1].inv_freq[1] == pytest.approx(7.0**-0.125)


def test_integers_of_such_files_are_kept(tmp_path: Path) -> None:
    parts = ("_proj.weight", "altup_", "embed_tokens", "per_layer_model", "linear_left")
    kinds = dict.fromkeys(parts, "Q8_0")
    kinds["per_layer_projection.weight"] = "F32"  # whose rows are no whole blocks
    path, _ = written(tmp_path, None, kinds)
    with open_checkpoint(str(path)) as checkpoint:
        source, _ = interpret(checkpoint)
        for number in range(3):
            name = f"model.altup_unembed_projections.{number}.weight"
            integers = checkpoint.integers(name)
            assert integers is not None
            values, scales = integers
            wide = np.repeat(scales, 32, axis=1)
            np.testing.assert_array_equal(values * wide, source.matrix(name))
    options = ExportOptions(weights="source", verify=True, activations="fp32")
    result = export(path, tmp_path / "out", options)
    assert result.manifest["quality"]["relative_weight_error"] == 0
    assert result.manifest["quality"]["kl_divergence"] < 1e-9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({PATTERN: 5}, "expected a truth value for each of 6"),
        ({PATTERN: [True]}, "for each of 6 layers"),
        ({CUT: [1.0] * 5}, "expected a number for each of 6 layers"),
        ({CUT: [math.nan] * 6}, "expected a number for each of 6 layers"),
        ({CUT: [True] * 6}, "expected a number for each of 6 layers"),
        ({CUT: [math.inf] * 6}, "has 1.0; expected shares"),
        ({"embedding_length_per_layer_input": None}, "lacks 'gemma3n.embedding_length_per_layer"),
        ({"attention.shared_kv_layers": -1}, "shared_kv_layers' is -1; expected 0 to"),
        ({"altup.active_idx": 1}, "altup_active_idx 1 layers see another"),
        ({"altup.num_inputs": 1}, "'altup_num_inputs' is 1"),
        ({"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is 50"),
        ({"expert_count": 8}, "with experts are not supported"),
    ],
)
def test_what_such_a_file_cannot_have_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path, _ = written(tmp_path, changes)
    with pytest.raises(EdgerunError, match=message), open_checkpoint(str(path)) as checkpoint:
        describe(checkpoint.config)


STACK = "model.altup_projections"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda own: {f"{STACK}.weight": own[f"{STACK}.0.weight"]},
            r"shape \[64, 64\]; expected 3",
        ),
        (
            lambda own: {f"{STACK}.weight": own[f"{STACK}.0.weight"][None, None]},
            r"shape \[1, 1, 64, 64\]; expected 3",
        ),
        (lambda own: {f"{STACK}.3.weight": own[f"{STACK}.0.weight"]}, "3.weight' has no place in"),
        (lambda own: {f"{STACK}.2.weight": None}, f"no tensor '{STACK}.2.weight'"),
        (
            lambda own: {"model.layers.0.laurel.linear_left.weight": np.ones((8, 64), np.float32)},
            r"linear_right.weight' has shape \[64, 16\]; config.json asks for \[64, 8\]",
        ),
        (lambda own: {TABLE: np.resize(own[TABLE], (265, 96))}, "is 265 and vocab_size 264"),
        (
            lambda own: {TABLE: own[TABLE][:, :-16]},
            r"\[264, 80\]; config.json asks for \[264, 96\]",
        ),
    ],
)
def test_tensors_of_other_shapes_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    def changed(own: dict[str, Any]) -> dict[str, Any]:
        changes = change(own)
        if f"{STACK}.weight" in changes:
            own = {name: value for name, value in own.items() if not name.startswith(STACK)}
        return {name: value for name, value in {**own, **changes}.items() if value is not None}

    path, _ = written(tmp_path, tensors=changed)
    with pytest.raises(EdgerunError, match=message):
        export(path, tmp_path / "out", ExportOptions())
