"""Nothing of a checkpoint is dropped: biases, heads, stray tensors, and what had to be assumed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from edgerun.errors import CheckpointError
from edgerun_export.architectures import describe
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.graph.linear import LinearBuilder
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.model import interpret
from edgerun_export.verify.bundle_weights import BundleWeights
from edgerun_export.verify.compare import VerificationError, relative_error, run_onnx
from edgerun_export.verify.numpy_model import forward
from tests.support.gguf_model import write_gguf

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
ALL = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = ALL - ATTENTION
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
EXACT = 1e-4


def load(name):
    folder = GOLDEN / name
    with open_checkpoint(str(folder)) as source:
        tensors = {key: source.read(key) for key in source.tensors()}
    return json.loads((folder / "config.json").read_text()), tensors


def save(folder, config, tensors):
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(GOLDEN / "llama" / name, folder / name)
    (folder / "config.json").write_text(json.dumps(config))
    contiguous = {key: np.ascontiguousarray(value) for key, value in tensors.items()}
    save_file(contiguous, folder / "model.safetensors")
    return folder


def with_biases(config, tensors, projections, layers=None):
    spec = describe(config)
    generator = np.random.default_rng(1)
    biased = dict(tensors)
    for layer in range(spec.num_layers) if layers is None else layers:
        linears = {linear.name: linear for linear in spec.projections(layer)}
        for name in sorted(projections):
            linear = linears[name]
            bias = generator.standard_normal(linear.out_features, np.float32)
            biased[f"model.layers.{layer}.{linear.path}.bias"] = bias
    return biased


class ByName:
    """The tensors themselves, for the NumPy reference."""

    def __init__(self, tensors):
        self.tensors = tensors

    def vector(self, name):
        return self.tensors[name]

    matrix = vector

    def head_name(self):
        return HEAD if HEAD in self.tensors else EMBEDDING

    def rows(self, name, rows):
        return self.tensors[name][rows]


@pytest.mark.parametrize(
    ("architecture", "golden_name", "projections"),
    [
        ("llama", "mistral", ALL),
        ("llama", "mistral", {"q_proj", "k_proj", "v_proj"}),
        ("llama", "mistral", MLP),
        ("qwen3", "qwen3", ATTENTION),
    ],
)
def test_gguf_biases_are_computed_with(tmp_path, architecture, golden_name, projections):
    config, tensors = load(golden_name)
    config = {**config, "model_type": architecture, "sliding_window": None}
    config |= {"attention_bias": None, "mlp_bias": None}
    biased = with_biases(config, tensors, projections)
    path = write_gguf(tmp_path / "m.gguf", architecture, config, biased)
    result = export(path, tmp_path / "out", ExportOptions(weights="fp32", verify=True))
    assert result.warnings == []
    spec = describe(config, biased)
    assert spec.biases == projections
    ids = np.arange(3, 19)
    expected = forward(spec, ByName(biased), ids)
    plain = forward(describe(config), ByName(tensors), ids)
    assert relative_error(plain, expected) > 0.1, "the biases must matter for this test"
    assert relative_error(run_onnx(result.folder, spec, ids), expected) <= EXACT
    written = json.loads((result.folder / "config.json").read_text())
    assert written.get("attention_bias", False) is projections.issuperset(ATTENTION)
    assert written.get("mlp_bias", False) is projections.issuperset(MLP)


def test_silence_about_biases_leaves_it_to_the_tensors_in_safetensors_too(tmp_path):
    config, tensors = load("llama")
    del config["attention_bias"]
    folder = save(tmp_path / "model", config, tensors)
    result = export(folder, tmp_path / "out", ExportOptions(weights="fp32"))
    with np.load(GOLDEN / "llama" / "golden.npz") as golden:
        logits = run_onnx(result.folder, describe(config, tensors), golden["ids"].astype(np.int64))
        assert relative_error(logits, golden["logits"]) <= EXACT


def test_a_bias_that_some_layers_lack_is_named(tmp_path):
    config, tensors = load("mistral")
    config = {**config, "model_type": "llama"}
    config.pop("attention_bias", None)
    folder = save(tmp_path / "m", config, with_biases(config, tensors, {"q_proj"}, layers=[0]))
    with pytest.raises(CheckpointError, match=r"no tensor 'model\.layers\.1\.self_attn\.q_proj\.b"):
        export(folder, tmp_path / "out")


STRAY = {
    "a bias that config.json denies": ("llama", "model.layers.0.mlp.up_proj.bias"),
    "a bias the architecture has not": ("mistral", "model.layers.0.self_attn.q_proj.bias"),
    "a bias of the head": ("qwen2", "lm_head.bias"),
    "a layer too many": ("qwen3", "model.layers.2.mlp.up_proj.weight"),
    "a scale of nothing": ("qwen2", "model.layers.0.mlp.up_proj.weight_scale"),
}


@pytest.mark.parametrize("case", STRAY)
def test_a_tensor_that_nothing_reads_is_named(case, tmp_path):
    name, stray = STRAY[case]
    config, tensors = load(name)
    if name == "llama":
        config["mlp_bias"] = False
    folder = save(tmp_path / "m", config, {**tensors, stray: np.ones(64, np.float32)})
    with pytest.raises(CheckpointError, match=f"'{stray}' has no place in the {name}"):
        export(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tensor_that_the_index_forgot_is_not_dropped(tmp_path):
    config, tensors = load("qwen2")
    stray = "model.layers.0.self_attn.o_proj.bias"
    folder = save(tmp_path / "m", config, {**tensors, stray: np.ones(64, np.float32)})
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"weight_map": {name: "model-00001-of-00001.safetensors" for name in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=f"'{stray}' has no place"):
        export(folder, tmp_path / "out")


def test_buffers_that_follow_from_the_configuration_may_be_stored(tmp_path):
    config, tensors = load("qwen2")
    buffers = {
        "model.rotary_emb.inv_freq": np.ones(8, np.float32),
        "model.layers.1.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
        "model.layers.1.self_attn.masked_bias": np.ones(1, np.float32),
    }
    folder = save(tmp_path / "m", config, tensors | buffers)
    options = ExportOptions(weights="fp32", verify=True)
    result = export(folder, tmp_path / "out", options)
    assert result.manifest["quality"]["source_tensors"] == len(tensors)


def test_every_source_tensor_must_have_been_read(tmp_path, monkeypatch):
    """An exporter that forgets biases is found by itself, without a comparison of logits."""
    add = LinearBuilder.projection

    def forget_bias(self, value, prefix, linear):
        return add(self, value, prefix, replace(linear, bias=False))

    monkeypatch.setattr(LinearBuilder, "projection", forget_bias)
    with pytest.raises(VerificationError, match=r"not read all of 6 of \d+ tensors.*k_proj\.bias"):
        export(GOLDEN / "qwen2", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tied_checkpoint_may_store_its_one_matrix_as_the_head(tmp_path, exported):
    config, tensors = load("qwen2")
    assert config["tie_word_embeddings"]
    tensors.pop(HEAD, None)
    tensors[HEAD] = tensors.pop(EMBEDDING)
    folder = save(tmp_path / "m", config, tensors)
    result = export(folder, tmp_path / "out")
    assert result.warnings == []
    data = (result.folder / "model.onnx.data").read_bytes()
    assert data == (exported("qwen2").folder / "model.onnx.data").read_bytes()


def test_an_equal_head_beside_a_tied_embedding_is_stored_once(tmp_path, exported):
    config, tensors = load("qwen2")
    folder = save(tmp_path / "m", config, {**tensors, HEAD: tensors[EMBEDDING]})
    result = export(folder, tmp_path / "out", ExportOptions(verify=True))
    assert result.warnings == []
    data = (result.folder / "model.onnx.data").read_bytes()
    assert data == (exported("qwen2").folder / "model.onnx.data").read_bytes()


def test_another_head_beside_a_tied_embedding_is_used_and_said(tmp_path):
    config, tensors = load("qwen2")
    other = tensors[EMBEDDING].copy()
    other[-1, -1] += 1  # the very last weight
    tensors[HEAD] = other
    folder = save(tmp_path / "m", config, tensors)
    result = export(folder, tmp_path / "out", ExportOptions(weights="fp32"))
    (warning,) = result.warnings
    assert "tied" in warning and "'lm_head.weight' with other weights" in warning
    assert json.loads((result.folder / "config.json").read_text())["tie_word_embeddings"] is False
    spec = describe({**config, "tie_word_embeddings": False})
    np.testing.assert_array_equal(BundleWeights(result.folder, spec).rows(HEAD, slice(None)), other)


@pytest.mark.parametrize(
    "name", ["gemma2", "gemma3_text", "gemma3n_text", "gemma4_text-per-layer", "granite"]
)
def test_a_head_of_its_own_takes_no_factor_of_the_embedding_back(name, tmp_path):
    config, tensors = load(name)
    tensors["lm_head.weight"] = 2 * tensors["model.embed_tokens.weight"]
    logits = []
    for tied in (True, False):
        save(tmp_path / str(tied), {**config, "tie_word_embeddings": tied}, tensors)
        with open_checkpoint(str(tmp_path / str(tied))) as checkpoint:
            weights, _ = interpret(checkpoint)
            logits.append(forward(weights.spec, weights, np.arange(8)))
    np.testing.assert_array_equal(*logits)


def test_a_head_of_another_shape_is_named(tmp_path):
    config, tensors = load("qwen2")
    folder = save(tmp_path / "m", config, {**tensors, HEAD: tensors[EMBEDDING][:-1]})
    with pytest.raises(CheckpointError, match=r"'lm_head.weight' has shape \[263, 64\]"):
        export(folder, tmp_path / "out")


def test_weights_that_become_ternary_by_assumption_are_said(tmp_path, exported):
    config, tensors = load("bitnet-master")
    del config["quantization_config"]
    result = export(save(tmp_path / "m", config, tensors), tmp_path / "out")
    (warning,) = result.warnings
    assert "no quantization_config" in warning and "-1, 0 and 1" in warning
    assert exported("bitnet-master").warnings == []
    assert exported("bitnet-packed").warnings == []
