"""Experts in GGUF files, which hold those of a layer in one tensor, and ternary ones."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun.graph.passes.experts.groups import NO_GROUPS
from edgerun_export.architectures import DecoderSpec, Experts, describe, registry
from edgerun_export.checkpoint import gguf as gguf_reader
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.model import interpret
from edgerun_export.verify.bundle_weights import BundleWeights
from edgerun_export.verify.compare import relative_error, run_onnx
from edgerun_export.verify.numpy_model import forward
from tests.support import gguf_model
from tests.support.bundles import GOLDEN, error_of, runner
from tests.support.gguf_model import stacked, write_experts, write_gguf
from tests.support.peers import needs_complete_onnxruntime

ARCHITECTURES = {
    "mixtral": "llama",
    "olmoe": "olmoe",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
}


def source(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    config = json.loads((GOLDEN / name / "config.json").read_text())
    with open_checkpoint(str(GOLDEN / name)) as checkpoint:
        tensors = {key: checkpoint.read(key) for key in checkpoint.tensors()}
    return config, {key: value.astype(np.float32) for key, value in tensors.items()}


class ByName:
    """The tensors themselves, for the NumPy reference."""

    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        self._tensors = tensors

    def vector(self, name: str) -> np.ndarray:
        return self._tensors[name]

    matrix = vector

    def rows(self, name: str, rows: slice) -> np.ndarray:
        return self._tensors[name][rows]

    def head_name(self) -> str:
        return "lm_head.weight"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_file_computes_what_the_checkpoint_computes(name: str, tmp_path: Path) -> None:
    config, tensors = source(name)
    if config.pop("mlp_only_layers", None):  # which these files have no way to say
        config["num_hidden_layers"] = 1
        remaining = {key: value for key, value in tensors.items() if ".layers.0." not in key}
        tensors = {
            key.replace(".layers.1.", ".layers.0."): value for key, value in remaining.items()
        }
    path = write_gguf(tmp_path / "model.gguf", ARCHITECTURES[name], config, tensors)
    ids = np.arange(20)
    expected = forward(describe(config), ByName(tensors), ids)
    with open_checkpoint(str(path)) as checkpoint:
        weights, warnings = interpret(checkpoint)
        assert (weights.spec.architecture, warnings) == (name, [])
        np.testing.assert_array_equal(forward(weights.spec, weights, ids), expected)


def test_integers_of_experts_are_those_of_the_file(tmp_path: Path) -> None:
    config, tensors = source("olmoe")
    path = write_gguf(tmp_path / "model.gguf", "olmoe", config, tensors, "Q8_0")
    kind = gguf.GGMLQuantizationType.Q8_0
    with open_checkpoint(str(path)) as checkpoint:
        weights, _ = interpret(checkpoint)
        for expert in (0, 5):
            name = f"model.layers.1.mlp.experts.{expert}.up_proj.weight"
            stored = gguf.quants.quantize(tensors[name], kind)
            expected = gguf.quants.dequantize(stored, kind)
            np.testing.assert_array_equal(weights.matrix(name), expected)
            assert weights.integers(name, slice(0, 8)) is not None


def test_mxfp4_of_files_is_kept(tmp_path: Path) -> None:
    config, tensors = source("gpt_oss")
    path = write_gguf(tmp_path / "model.gguf", "gpt-oss", config, tensors, "MXFP4")
    kind = gguf.GGMLQuantizationType.MXFP4
    with open_checkpoint(str(path)) as checkpoint:
        weights, _ = interpret(checkpoint)
        name = "model.layers.1.mlp.experts.2.up_proj.weight"
        stored = weights.integers(name, slice(0, 32))
        assert stored is not None and np.abs(stored[0]).max() == 12
        quantised = gguf.quants.quantize(tensors[name], kind)
        expected = gguf.quants.dequantize(quantised, kind)
        np.testing.assert_array_equal(stored[0] * np.repeat(stored[1], 32, axis=1), expected)
        np.testing.assert_array_equal(weights.matrix(name), expected)


def test_scales_of_mxfp4_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    config, tensors = source("gpt_oss")
    path = write_gguf(tmp_path / "model.gguf", "gpt-oss", config, tensors, "MXFP4")
    stacks = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    with path.open("r+b") as file:
        file.seek(stacks["blk.1.ffn_up_exps.weight"].data_offset)
        file.write(b"\xff")
    name = "model.layers.1.mlp.experts.0.up_proj.weight"
    with open_checkpoint(str(path)) as checkpoint:
        for read in (checkpoint.read, checkpoint.integers):
            with pytest.raises(CheckpointError, match=f"'{name}' holds NaN or Inf"):
                read(name)


def test_two_names_of_a_tensor_are_not_both_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, tensors = source("gpt_oss")

    def write_other(writer: gguf.GGUFWriter, spec: DecoderSpec) -> None:
        write_experts(writer, spec)
        writer.add_tensor("blk.0.ffn_norm.weight", np.ones(64, np.float32))

    monkeypatch.setattr(gguf_model, "write_experts", write_other)
    path = gguf_model.write_gguf(tmp_path / "model.gguf", "gpt-oss", config, tensors)
    with pytest.raises(
        CheckpointError, match="two tensors that are 'model.layers.0.post_attention"
    ):
        open_checkpoint(str(path))


def test_dense_models_have_no_experts(tmp_path: Path) -> None:
    config, tensors = source("olmoe")
    path = write_gguf(tmp_path / "model.gguf", "qwen3", config, tensors)
    with pytest.raises(UnsupportedError, match="GGUF files of qwen3 with experts"):
        open_checkpoint(str(path))


def test_all_experts_must_be_there(tmp_path: Path) -> None:
    config, tensors = source("olmoe")
    fewer = {key: value for key, value in tensors.items() if ".experts.7." not in key}
    path = write_gguf(tmp_path / "model.gguf", "olmoe", config, fewer)
    missing = pytest.raises(CheckpointError, match="no tensor 'model.layers.0.mlp.experts.7")
    with open_checkpoint(str(path)) as checkpoint, missing:
        interpret(checkpoint)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("expert_weights_norm", True, "'expert_weights_norm' is True"),
        ("expert_shared_count", 1, "'expert_shared_count' is 1"),
        ("expert_used_count", 9, "num_experts_per_tok 9 experts, and there are num_experts 8"),
        (
            "expert_count",
            7,
            r"mlp.gate.weight' has shape \[8, 64\]; config.json asks for \[7, 64\]",
        ),
    ],
)
def test_what_files_say_of_experts_is_never_ignored(
    key: str, value: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, tensors = source("olmoe")

    def write_other(writer: gguf.GGUFWriter, spec: DecoderSpec) -> None:
        write_experts(writer, spec)
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        name = f"olmoe.{key}"
        writer.kv_data[0].pop(name, None)
        add(name, value)

    monkeypatch.setattr(gguf_model, "write_experts", write_other)
    path = gguf_model.write_gguf(tmp_path / "model.gguf", "olmoe", config, tensors)
    with pytest.raises(EdgerunError, match=message), open_checkpoint(str(path)) as checkpoint:
        interpret(checkpoint)


def test_a_tensor_of_experts_has_three_axes_and_there_are_not_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, tensors = source("olmoe")
    path = gguf_model.write_gguf(tmp_path / "model.gguf", "olmoe", config, tensors)
    monkeypatch.setattr(gguf_reader, "MAX_TENSORS", 20)
    with pytest.raises(CheckpointError, match="has more than 20 tensors"):
        open_checkpoint(str(path))
    monkeypatch.undo()
    monkeypatch.setattr(gguf_model, "stacked", flat)
    path = gguf_model.write_gguf(tmp_path / "flat.gguf", "olmoe", config, tensors)
    with pytest.raises(CheckpointError, match="expected 3 axes, the first of experts"):
        open_checkpoint(str(path))


def flat(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As ``stacked``, but with all rows of all experts one after the other."""
    whole = stacked(tensors)
    return {
        key: value.reshape(-1, value.shape[-1]) if value.ndim == 3 else value
        for key, value in whole.items()
    }


@needs_complete_onnxruntime
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(
    ("scale", "epsilon", "options"),
    [
        (2.5, 0.25, {"weights": "fp32"}),
        (2.5, 0.0, {"weights": "int4", "profile": "genai"}),
        (1.0, 0.25, {"weights": "int4", "profile": "genai"}),
        (1.0, 0.0, {"weights": "int4", "profile": "genai"}),
    ],
    ids=["written out", "QMoE with a factor", "QMoE with an epsilon", "QMoE"],
)
def test_scores_may_be_sigmoids_and_have_a_factor(
    scale: float,
    epsilon: float,
    options: dict[str, Any],
    normalise: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One by one, as no architecture has them."""
    config, _ = source("olmoe")
    spec = describe(config)
    part = spec.layers[0].feed_forward
    assert isinstance(part, Experts)
    epsilon *= normalise
    part = replace(part, scoring="sigmoid", scale=scale, normalise=normalise, epsilon=epsilon)
    spec = spec.with_feed_forward([part] * spec.num_layers)
    monkeypatch.setitem(registry._architectures(), "olmoe", lambda config: spec)
    out = tmp_path / "bundle"
    result = export(GOLDEN / "olmoe", out, ExportOptions(activations="fp32", **options))
    assert not result.warnings
    ids = np.arange(20)
    expected = forward(spec, BundleWeights(out, spec), ids)
    assert relative_error(run_onnx(out, spec, ids), expected) <= 1e-4
    with runner(out, "cpu") as model:
        assert error_of(model.run(ids), expected) <= 1e-4
        routes = [node.attrs for node in model.bundle.graph.nodes if node.op == "route"]
    attributes = {
        "top_k": 3,
        "scoring": "sigmoid",
        "biased": "scores",
        "normalise": int(normalise),
        **NO_GROUPS,
    }
    assert routes == [attributes | {"epsilon": epsilon, "scale": scale, "margin": 0.0}] * 2


# Experts of a model that was trained ternary: the graph rounds what goes into each of them.
ONLINE = {
    "quant_method": "bitnet",
    "linear_class": "autobitlinear",
    "quantization_mode": "online",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ternary") / "olmoe"
    shutil.copytree(GOLDEN / "olmoe", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": ONLINE}))
    return folder


@pytest.fixture(scope="module")
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ternary") / "bundle"
    result = export(checkpoint, out, ExportOptions(head_weights="fp32", activations="fp32"))
    assert result.recipe.weights == "ternary"
    assert result.manifest["quality"]["relative_weight_error"] == 0
    return out


def test_routers_are_not_ternary(checkpoint: Path) -> None:
    with open_checkpoint(str(checkpoint)) as source:
        weights, _ = interpret(source)
        assert weights.natively_ternary()
        assert not weights.is_ternary("model.layers.0.mlp.gate.weight")


@needs_complete_onnxruntime
def test_onnxruntime_and_edgerun_compute_what_numpy_computes(
    checkpoint: Path, bundle: Path
) -> None:
    ids = np.arange(20)
    with open_checkpoint(str(checkpoint)) as source:
        spec = interpret(source)[0].spec
    expected = forward(spec, BundleWeights(bundle, spec), ids)
    # Where a rounding turns over, a sum moves by a step of 1/127.
    assert relative_error(run_onnx(bundle, spec, ids), expected) <= 0.05
    for backend in ("cpu", "reference"):
        with runner(bundle, backend) as model:
            assert error_of(model.run(ids), expected) <= 0.05


def test_experts_take_rows_rounded_as_a_whole(bundle: Path) -> None:
    with runner(bundle, "cpu") as model:
        nodes = [node for node in model.bundle.graph.nodes if node.op == "experts"]
        assert {node.attrs["activations"] for node in nodes} == {"int8_row"}
        logits = model.run(np.arange(20))
    with runner(bundle, "cpu", threads=2) as model:
        pieces = [model.run([token]) for token in range(20)]
    np.testing.assert_array_equal(np.concatenate(pieces), logits)
