import json
import re
import shutil

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError, MissingDependencyError, UnsupportedError
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.verify.compare import (
    VerificationError,
    divergence,
    relative_error,
    run_onnx,
    sample_ids,
    verify,
)
from tests.support.peers import needs_complete_onnxruntime


@pytest.mark.parametrize("weights", ["fp32", "int8", "int4"])
def test_report_measures_the_damage_of_the_format(weights, exported):
    quality = exported("qwen3", weights=weights, verify=True).manifest["quality"]
    assert quality["tokens"] == 48
    assert quality["max_error"] <= 1e-4
    assert quality["kernel_error"] <= (1e-4 if weights == "fp32" else 0.05)
    assert (quality["kl_divergence"] == 0) == (weights == "fp32")
    assert quality["top1_agreement"] >= {"fp32": 1, "int8": 0.8, "int4": 0.3}[weights]


def altered(result, golden, tmp_path, source_weights, change):
    """Verifies a copy of a bundle whose graph or data ``change`` has altered."""
    model = golden("qwen3")
    folder = shutil.copytree(result.folder, tmp_path / "bundle")
    change(folder)
    ids = sample_ids(model.spec, (folder / "tokenizer.json").read_bytes())
    return verify(folder, model.spec, source_weights(model), ids)


def test_unaltered_bundle_passes(exported, golden, tmp_path, source_weights):
    result = exported("qwen3", weights="int4")
    report = altered(result, golden, tmp_path, source_weights, lambda folder: None)
    assert report.max_error <= report.bound


@pytest.mark.parametrize("op", ["Neg", "Sigmoid"])
def test_wrong_operator_is_found(op, exported, golden, tmp_path, source_weights):
    def change(folder):
        model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
        next(node for node in model.graph.node if node.op_type == op).op_type = "Identity"
        (folder / "model.onnx").write_bytes(model.SerializeToString())

    with pytest.raises(VerificationError, match="differ from the reference by"):
        altered(exported("qwen3", weights="int4"), golden, tmp_path, source_weights, change)


@needs_complete_onnxruntime
@pytest.mark.parametrize("stage", ["open", "run"])
def test_a_bundle_that_onnxruntime_cannot_run_fails_to_verify(
    stage, exported, golden, tmp_path, source_weights
):
    def change(folder):
        model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
        node = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
        if stage == "open":
            node.op_type = "Nothing"
        else:
            next(each for each in node.attribute if each.name == "num_heads").i *= 32
        (folder / "model.onnx").write_bytes(model.SerializeToString())

    with pytest.raises(VerificationError, match="onnxruntime cannot run the bundle: "):
        altered(exported("qwen3", profile="genai"), golden, tmp_path, source_weights, change)


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_chat_template_that_cannot_be_parsed_is_said_and_fails_to_verify(name, golden, tmp_path):
    source = shutil.copytree(golden("llama").folder, tmp_path / "source")
    broken = "{% for message in messages %}{{ message.content }"
    if name == "tokenizer_config.json":
        config = json.loads((source / name).read_text()) | {"chat_template": broken}
        (source / name).write_text(json.dumps(config))
    else:
        (source / name).write_text(broken)
    said = r"^tokenizer_config\.json: the chat template cannot be parsed: syntax error: .* mended"
    (warning,) = export(source, tmp_path / "out", ExportOptions()).warnings
    assert re.match(said, warning)
    with pytest.raises(VerificationError, match=said):
        export(source, tmp_path / "verified", ExportOptions(verify=True))
    assert not (tmp_path / "verified").exists()


def test_what_rounding_does_to_the_largest_weights_is_a_number_or_they_are_refused(
    tmp_path, golden
):
    source = shutil.copytree(golden("llama").folder, tmp_path / "source")
    (file,) = source.glob("*.safetensors")
    tensors = load_file(file)
    name = "model.layers.0.mlp.down_proj.weight"
    largest = np.finfo(np.float32).max
    weights = tensors[name] / np.abs(tensors[name]).max() * np.float32(0.9)
    tensors[name] = weights * largest
    save_file(tensors, file)
    quality = export(source, tmp_path / "out", ExportOptions(weights="int4")).manifest["quality"]
    assert 0.05 < quality["relative_weight_error"] < 0.15
    # All but the first are whole steps, of which seven are more than the first, and too much.
    weights[0, :32] = [1, *(np.arange(31) % 6 * np.float32(1.04 / 7))]
    tensors[name] = weights * largest
    save_file(tensors, file)
    with pytest.raises(UnsupportedError, match=f"'{name}' has weights that are too large to be"):
        export(source, tmp_path / "refused", ExportOptions(weights="int4"))
    assert not (tmp_path / "refused").exists()


def test_checkpoint_that_overflows_is_refused(tmp_path, golden):
    source = shutil.copytree(golden("llama").folder, tmp_path / "source")
    (file,) = source.glob("*.safetensors")
    tensors = load_file(file)
    name = "model.layers.1.input_layernorm.weight"
    tensors[name] = np.full(tensors[name].shape, 3e38, np.float32)
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match="^what layer 1 computes of a short text is infinite"):
        export(source, tmp_path / "out", ExportOptions(weights="ternary"))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_failed_verification_leaves_no_bundle(tmp_path, monkeypatch, golden):
    monkeypatch.setattr("edgerun_export.verify.compare._BOUND_EXACT", 0.0)
    with pytest.raises(VerificationError):
        export(golden("llama").folder, tmp_path / "out", ExportOptions(verify=True))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "weights", "profile", "installed", "what"),
    [
        ("llama", "int2", "portable", "1.23.2", "1.24 for 2-bit weights"),
        ("llama", "fp32", "genai", "1.23.2", "1.24 for the profile genai"),
        ("gemma2", "fp32", "portable", "1.26.1", "1.27 for scores that are bounded before"),
    ],
)
def test_releases_that_cannot_run_a_model_are_named(
    name, weights, profile, installed, what, exported, golden, monkeypatch
):
    monkeypatch.setattr("onnxruntime.__version__", installed)
    folder = exported(name, weights=weights, profile=profile).folder
    model = golden(name)
    with pytest.raises(MissingDependencyError, match=f"{what}.*, and {installed} is installed"):
        run_onnx(folder, model.spec, model.ids)


def test_text_for_models_without_words_is_made_of_arbitrary_ids(golden):
    spec = golden("llama").spec
    empty = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}
    ids = sample_ids(spec, json.dumps(empty).encode())
    assert len(ids) == 48
    assert ids.max() < spec.vocab_size


def test_measures():
    logits = np.array([[0, 1, 2], [2, 1, 0]], np.float32)
    assert relative_error(logits, logits) == 0
    assert relative_error(logits + np.float32(0.5), logits) == 0.25
    assert relative_error(logits * np.float32(np.nan), logits) == np.inf
    assert divergence(logits, logits + 1) == pytest.approx(0, abs=1e-7)
    assert divergence(logits, logits[::-1]) > 0.1
