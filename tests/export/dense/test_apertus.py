"""Apertus, whose layers have learned the curve of their activation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from edgerun_export.architectures import describe
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.model import interpret
from edgerun_export.verify.numpy_model import forward
from tests.support.altered import AlteredBundle
from tests.support.bundles import GOLDEN, bundle_of, config_of

LAYER = "model.layers.1.mlp.act_fn"


def changed(folder: Path, name: str, values: list[float]) -> Path:
    copy = Path(shutil.copytree(GOLDEN / "apertus", folder / "checkpoint"))
    stored = load_file(copy / "model.safetensors")
    stored[f"{LAYER}.{name}"] = np.array(values, np.float32).reshape(-1)
    save_file(stored, copy / "model.safetensors")
    return copy


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("beta", [0.25], "holds 0.25 where 0.5 was expected"),
        ("eps", [-1e-3], "where -1e-06 was expected"),
        ("beta", [0.5, 0.5], "holds 2 numbers where 0.5 was expected"),
        ("alpha_p", [0.1, 0.2], r"act_fn.alpha_p' has shape \[2\]"),
    ],
)
def test_a_curve_of_another_kind_is_refused(
    tmp_path: Path, name: str, values: list[float], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said):
        export(changed(tmp_path, name, values), tmp_path / "out", ExportOptions())


def test_numbers_that_were_rounded_to_bfloat16_are_theirs(tmp_path: Path) -> None:
    folder = changed(tmp_path, "eps", [-9.9838e-07])
    assert export(folder, tmp_path / "out", ExportOptions(weights="int4")).manifest


def curves(bundle: Path) -> list[dict[str, float]]:
    path = bundle / "model.onnx"
    nodes = lower(read_graph(path, path.read_bytes())).nodes
    return [dict(node.attrs) for node in nodes if node.op == "xielu"]


def test_layers_have_the_curves_that_are_stored() -> None:
    stored = load_file(GOLDEN / "apertus" / "model.safetensors")
    for layer, attrs in enumerate(curves(bundle_of("apertus", weights="int4"))):
        square, bend = (
            np.log1p(np.exp(np.float64(stored[f"model.layers.{layer}.mlp.act_fn.{name}"].item())))
            for name in ("alpha_p", "alpha_n")
        )
        expected = {"square": square, "bend": 0.5 + bend, "slope": 0.5}
        assert attrs == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("function", ["Elu", "Abs"])
def test_other_functions_are_not_taken_for_it(tmp_path: Path, function: str) -> None:
    altered = AlteredBundle(bundle_of("apertus", weights="int4"), tmp_path / "bundle")
    if function == "Elu":
        altered.set("layers.0/mlp/activation/Elu", alpha=2.0)
    else:
        altered.node("layers.0/mlp/activation/Relu").op_type = "Abs"
    with pytest.raises(UnsupportedError, match=f"is '{function}', for which"):
        curves(altered.save())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_vocab_size": 265}, "'output_vocab_size' is 265 .* from 1 to 264"),
        ({"output_vocab_size": 0}, "'output_vocab_size' is 0"),
        ({"tie_word_embeddings": True}, "is 260 of 264 tokens, and the head is the embedding"),
    ],
)
def test_a_head_of_impossible_size_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        describe(config_of("apertus1p5_text", **changes))


def test_tokens_without_a_row_in_the_head_are_left_out(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "apertus1p5_text", tmp_path / "checkpoint"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    piece = {**tokenizer["added_tokens"][-1], "id": 261, "content": "<|visual token 1|>"}
    tokenizer["added_tokens"].append(piece)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    result = export(folder, tmp_path / "bundle", ExportOptions(weights="int4"))
    assert result.manifest["model"]["vocab_size"] == 260
    assert result.warnings == [
        "tokens of the tokenizer are without a row in the embedding, and left out: "
        "<|visual token 1|>"
    ]
    with open_checkpoint(str(folder)) as checkpoint:
        source, _ = interpret(checkpoint)
        rows = source.matrix(source.spec.embedding_weight)
        stored = checkpoint.read(source.spec.embedding_weight, slice(0, 260))
        np.testing.assert_array_equal(rows, stored.astype(np.float32))
        forward(source.spec, source, np.arange(4))
        assert source.unread() == []
