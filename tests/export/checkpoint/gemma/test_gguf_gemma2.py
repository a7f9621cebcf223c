"""GGUF files of Gemma 2: what is read is what was written, and what they cannot have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgerun.errors import EdgerunError
from edgerun_export.architectures import DecoderSpec, describe
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from tests.support.gguf_model import difference, source_of, type_of, write_gguf
from tests.support.peers import needs_bounds_of_onnxruntime

gguf = pytest.importorskip("gguf")

NAME = "gemma2"
BOUNDS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"


def written(
    tmp_path: Path, changes: dict[str, Any] | None = None, quantised: Any = None, **others: Any
) -> tuple[Path, dict[str, Any]]:
    """As llama.cpp's converter writes the golden checkpoint, but for some keys.

    What scores are divided by follows from the sizes, and 1 is added to norms.
    """
    config, tensors = source_of(NAME, query_pre_attn_scalar=32)
    tensors = {
        name: value + 1 if name.endswith("norm.weight") else value
        for name, value in tensors.items()
    }
    keys = {WINDOW: 8, **BOUNDS, **(changes or {})}

    def extra(writer: Any) -> None:
        for key, value in keys.items():
            if value is not None:
                kind = type_of(value)
                writer.add_key_value(f"gemma2.{key}", value, kind)

    path = tmp_path / "model.gguf"
    return write_gguf(path, "gemma2", {**config, **others}, tensors, quantised, extra), config


def spec_of(path: Path) -> DecoderSpec:
    with open_checkpoint(str(path)) as checkpoint:
        return describe(checkpoint.config)


def test_files_of_llama_cpp_compute_what_the_checkpoint_computes(tmp_path: Path) -> None:
    path, config = written(tmp_path)
    assert difference(path, NAME, config) < 2e-6


def test_what_a_file_leaves_out_is_as_llama_cpp_has_it(tmp_path: Path) -> None:
    spec = spec_of(written(tmp_path, dict.fromkeys((WINDOW, *BOUNDS)))[0])
    assert [layer.window for layer in spec.layers] == [4096, None, 4096]
    assert (spec.score_softcap, spec.softcap) == (50.0, 30.0)
    assert spec.attention_scale(0) == 32**-0.5


def test_a_pattern_says_which_layers_have_a_window(tmp_path: Path) -> None:
    spec = spec_of(written(tmp_path, {PATTERN: 3})[0])
    assert [layer.window for layer in spec.layers] == [8, 8, None]
    spec = spec_of(written(tmp_path, {PATTERN: [False, True, True]})[0])
    assert [layer.window for layer in spec.layers] == [None, 8, 8]


def test_scores_of_27b_are_divided_by_the_root_of_a_share_of_the_hidden_size(
    tmp_path: Path,
) -> None:
    """By its number of layers, which is all that llama.cpp goes by."""
    path, _ = written(tmp_path, num_hidden_layers=46, layer_types=None)
    assert spec_of(path).attention_scale(0) == (64 // 4) ** -0.5


@needs_bounds_of_onnxruntime
def test_integers_of_such_files_are_kept(tmp_path: Path) -> None:
    path, _ = written(
        tmp_path, None, dict.fromkeys(("_proj.weight", "embed_tokens", "lm_head"), "Q8_0")
    )
    options = ExportOptions(weights="source", verify=True, activations="fp32")
    result = export(path, tmp_path / "out", options)
    assert result.recipe.weights == "int8" and result.recipe.tensors == {}
    assert result.manifest["quality"]["relative_weight_error"] == 0
    assert result.manifest["quality"]["kl_divergence"] < 1e-9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_logit_softcapping": -3.0}, "'attn_logit_softcapping' is -3.0"),
        ({"attn_logit_softcapping": float("nan")}, "attn_logit_softcapping' is nan"),
        ({"final_logit_softcapping": float("inf")}, "final_logit_softcapping' is inf"),
        ({"attn_logit_softcapping": "50"}, "softcapping' is 50; expected one number"),
        ({PATTERN: [True, False]}, "sliding_window_pattern' is .* value for each of 3 layers"),
        ({WINDOW: 0}, "sliding_window' is 0; expected 1 to"),
        ({"expert_count": 8}, "with experts are not supported"),
    ],
)
def test_what_such_a_file_cannot_have_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path, _ = written(tmp_path, changes)
    with pytest.raises(EdgerunError, match=message):
        spec_of(path)
