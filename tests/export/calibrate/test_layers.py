"""Weights fitted layer by layer."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from edgerun.errors import CheckpointError, MissingDependencyError, UnsupportedError
from edgerun_export.calibrate import layers, observed
from edgerun_export.calibrate.fitted import FittedLayers
from edgerun_export.calibrate.moments import Moments
from edgerun_export.calibrate.step import CalibrationOptions, calibrate, with_methods
from edgerun_export.calibrate.streams import Stream
from edgerun_export.calibrate.taps import all_groups, observe, parts
from edgerun_export.calibrate.text import CalibrationText, Sample
from edgerun_export.calibrate.weights import LayerWeights
from edgerun_export.calibrate.workers import Workers, single_threaded
from edgerun_export.graph.external_data import DataWriter
from edgerun_export.graph.onnx_graph import OnnxGraph
from edgerun_export.graph.weight_store import WeightStore
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.quantize import block_layout, hessian
from edgerun_export.quantize.factor import inverse_factor
from edgerun_export.recipe import make_recipe
from edgerun_export.rules import with_rules
from edgerun_export.verify.bundle_weights import BundleWeights
from edgerun_export.verify.numpy_model import forward
from tests.export.calibrate.fitting import contents, fitted, text_of


def logits(source, store, ids):
    """What the model computes with the weights that were fitted."""

    class Replaced:
        def __getattr__(self, name):
            return getattr(source, name)

        def matrix(self, name):
            packed = store.packed(name)
            return (
                source.matrix(name)
                if packed is None
                else block_layout(packed.format).unpack(packed)
            )

    return forward(source.spec, Replaced(), ids)


@pytest.mark.parametrize(
    "name",
    ["llama", "gpt_oss", "lfm2", "lfm2_moe", "deepseek_v2-query-rank", "qwen3_5_text"]
    + ["granitemoehybrid-mamba", "granitemoehybrid-experts", "nemotron_h-experts"],
)
def test_projections_see_what_a_pass_over_the_model_gives_them(name, golden, source_weights):
    """The last stage's inputs times its weights are what the layer adds in the end."""
    source = source_weights(golden(name))
    spec = source.spec
    weights = LayerWeights(source, 0)
    hidden = np.random.default_rng(0).standard_normal((9, spec.hidden_size)).astype(np.float32)
    stages = [stage for part in parts(spec, 0) for stage in part.stages]
    seen = [observe(spec, weights, 0, hidden, groups) for groups in stages]
    paths = {projection.path for (projection, *_) in all_groups(spec, 0)}
    assert {path for each in seen for path in each.inputs} <= paths
    assert all(each.inputs for each in seen)
    first, *_, last = spec.mixer(0).values()
    before_output, before_down = seen[len(spec.mixer_groups(0)) - 1], seen[-1]
    query, output = seen[0].inputs[first.path], before_output.inputs[last.path]
    assert query.shape == (9, spec.hidden_size)
    assert output.shape == (9, last.in_features)
    np.testing.assert_array_equal(before_output.residuals[last.path], hidden)
    is_dense = spec.router(0) is None
    assert bool(before_down.residuals) is is_dense  # what experts add is weighed first


def test_sums_of_few_experts_are_made_at_once(golden, source_weights, tmp_path, monkeypatch):
    source, alive, most = source_weights(golden("mixtral")), [], []

    class Counted(Moments):
        def __init__(self, *given):
            alive.append(self)
            most.append(len(alive))
            super().__init__(*given)

        def means(self):
            alive.remove(self)
            return super().means()

    monkeypatch.setattr(observed, "Moments", Counted)
    many, _ = fitted(source, tmp_path / "many", make_recipe("int4", method="residual"))
    assert max(most) > 1
    most.clear()
    monkeypatch.setattr(observed, "_MOMENTS_BYTES", 1)
    few, _ = fitted(source, tmp_path / "few", make_recipe("int4", method="residual"))
    assert max(most) == 1
    assert contents(few, source.spec) == contents(many, source.spec)


@pytest.mark.parametrize("method", ["mse", "gptq", "residual"])
def test_slabs_of_rows_make_what_all_rows_make(
    method, golden, source_weights, tmp_path, monkeypatch
):
    source = source_weights(golden("llama"))
    recipe = make_recipe("int4", method=method, scales="fp16")
    whole, _ = fitted(source, tmp_path / "whole", recipe)
    monkeypatch.setattr(layers, "_SLAB_WEIGHTS", 2000)
    parts, _ = fitted(source, tmp_path / "parts", recipe)
    for name in contents(whole, source.spec):
        a, b = (block_layout("int4").unpack(each.packed(name)) for each in (whole, parts))
        assert np.square(a - b).mean() < 1e-4 * np.square(a).mean()


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_threads_make_no_difference(name, golden, source_weights, tmp_path):
    source = source_weights(golden(name))
    recipe = make_recipe("int2", method="residual")
    first, _ = fitted(source, tmp_path / "a", recipe, threads=1)
    second, _ = fitted(source, tmp_path / "b", recipe, threads=2)
    assert contents(first, source.spec) == contents(second, source.spec) != {}


def test_methods_come_closer_to_the_source_in_the_order_of_what_they_know(
    golden, source_weights, tmp_path
):
    source = source_weights(golden("llama"))
    text = text_of(source.spec)
    errors = {}
    for method in ("rtn", "mse", "gptq", "gptaq", "residual"):
        store, _ = fitted(source, tmp_path / method, make_recipe("int4", method=method))
        errors[method] = sum(
            float(np.square(logits(source, store, ids) - forward(source.spec, source, ids)).mean())
            for ids in text.windows
        )
    assert errors["mse"] < errors["rtn"]
    assert errors["gptq"] < 0.9 * errors["mse"]
    assert errors["residual"] < errors["gptaq"] < errors["gptq"]


def test_a_layer_that_computes_no_numbers_is_named(golden, source_weights, tmp_path, monkeypatch):
    source = source_weights(golden("llama"))
    read = source.vector
    name = "model.layers.1.input_layernorm.weight"
    monkeypatch.setattr(
        source, "vector", lambda each: read(each) * np.float32(1e38 if each == name else 1)
    )
    with pytest.raises(CheckpointError, match="layer 1 before self_attn.q_proj .* window 0"):
        fitted(source, tmp_path, make_recipe("int4", method="gptq"))


def test_streams_are_open_until_workers_ended(golden, source_weights, tmp_path, monkeypatch):
    """Of a window that fails, others are computed meanwhile and put into a stream."""
    ended = []

    def watched(kind):
        leave = kind.__exit__
        return lambda self, *given: (leave(self, *given), ended.append(kind))[0]

    for kind in (Workers, Stream):
        monkeypatch.setattr(kind, "__exit__", watched(kind))
    fitted(source_weights(golden("llama")), tmp_path, make_recipe("int4", method="gptq"))
    assert ended == [Workers, Stream, Stream]


def test_a_plain_installation_is_told_what_it_lacks(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'edgerun\[export\]'$"):
        single_threaded()


def test_experts_that_no_token_comes_to_are_mentioned(golden, source_weights, tmp_path):
    source = source_weights(golden("mixtral"))
    _, fitter = fitted(source, tmp_path, make_recipe("int4", method="gptq"))
    assert fitter.gaps.starved
    assert all("experts" in path for path in fitter.gaps.starved)


def test_inputs_that_are_always_zero_are_mentioned_once(
    golden, source_weights, tmp_path, monkeypatch
):
    source = source_weights(golden("llama"))
    read = source.vector

    def silenced(name):
        weight = read(name).copy()
        if name.endswith("layers.1.input_layernorm.weight"):
            weight[[3, 5]] = 0
        return weight

    monkeypatch.setattr(source, "vector", silenced)
    text, options = text_of(source.spec), CalibrationOptions(windows=6, threads=1)
    recipe = with_methods(make_recipe("int4"), source, calibrates=True)
    done = calibrate(source, recipe, text, options, tmp_path / "layers", lambda part: None)
    (warning,) = done.warnings
    assert warning.startswith("2 inputs of 1 projections, first layers.1.self_attn.q_proj, were")


def test_inputs_that_need_more_on_their_diagonal_are_mentioned_once(
    golden, source_weights, tmp_path, monkeypatch
):
    source, calls = source_weights(golden("llama")), []

    def fails_twice(matrix):
        calls.append(matrix)
        if len(calls) in (1, 4):
            raise np.linalg.LinAlgError
        inverse_factor(matrix)

    monkeypatch.setattr(hessian, "inverse_factor", fails_twice)
    recipe = with_methods(make_recipe("int4"), source, calibrates=True)
    text, options = text_of(source.spec), CalibrationOptions(windows=6, threads=1)
    done = calibrate(source, recipe, text, options, tmp_path / "layers", lambda part: None)
    (warning,) = done.warnings
    assert warning.startswith("inputs of 2 projections, first layers.0.self_attn.q_proj, hang")


def test_rules_have_their_own_methods(golden, source_weights, tmp_path):
    source = source_weights(golden("llama"))
    rules = ["*.down_proj=int8", "layers.0.*=fp32", "layers.1.self_attn.*=int4:16:rtn"]
    recipe = with_rules(make_recipe("int2"), rules, source.spec)
    recipe = with_methods(recipe, source, calibrates=True)
    assert recipe.method == "residual"
    assert recipe.tensor("model.layers.1.self_attn.q_proj").method == "rtn"
    store, _ = fitted(source, tmp_path, recipe)
    assert store.packed("model.layers.0.mlp.up_proj.weight") is None
    assert store.packed("model.layers.1.mlp.down_proj.weight").format == "int8"
    assert store.packed("model.layers.1.mlp.up_proj.weight").format == "int2"


@pytest.mark.parametrize(
    ("name", "recipe", "calibrates", "message"),
    [
        ("llama", {"weights": "int4", "method": "gptq"}, False, "--method gptq fits .*--calibrate"),
        ("llama", {"weights": "fp32"}, True, "nothing is rounded with --weights fp32"),
        ("bitnet-packed", {"weights": "ternary", "method": "gptq"}, True, "ternary already"),
        ("bitnet-packed", {"weights": "ternary"}, True, "--calibrate: .* ternary already"),
    ],
)
def test_methods_that_cannot_be_are_refused(
    name, recipe, calibrates, message, golden, source_weights
):
    with pytest.raises(UnsupportedError, match=message):
        with_methods(make_recipe(**recipe), source_weights(golden(name)), calibrates=calibrates)


def test_an_export_is_fitted_to_a_text_and_says_so(golden, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a house. " * 400, encoding="utf-8")
    options = ExportOptions(
        weights="int4", calibration=CalibrationOptions((text,), windows=16, tokens=32, threads=1)
    )
    result = export(golden("llama").folder, tmp_path / "out", options)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["recipe"]["method"] == "residual"
    calibration = manifest["quality"]["calibration"]
    assert calibration["texts"] == ["text.txt"] and calibration["windows"] == 16
    assert calibration["held_out"]["bits_per_byte"] > 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert result.warnings == []
    # The files hold what was fitted, and not what rounding makes.
    plain = export(golden("llama").folder, tmp_path / "plain", ExportOptions(weights="int4"))
    name = "model.layers.1.mlp.down_proj.weight"
    spec = golden("llama").spec
    ours, rounded = (BundleWeights(each.folder, spec).matrix(name) for each in (result, plain))
    assert not np.array_equal(ours, rounded)
    assert np.abs(ours - rounded).max() < np.abs(rounded).max()


def test_what_was_fitted_is_stored_where_integers_of_some_rows_would_do(
    golden, source_weights, tmp_path, monkeypatch
):
    """Of a source that has integers too large for the format in some rows alone."""
    source = source_weights(golden("llama"))
    name = "model.layers.1.mlp.down_proj.weight"
    rows, columns = source.shape(name)
    integers = np.full((rows, columns), 3, np.int8)
    integers[-1] = 100
    scales = np.ones((rows, columns // 32), np.float32)

    def stored(each, part):
        return (integers[part], scales[part]) if each == name else None

    monkeypatch.setattr(source, "integers", stored)
    monkeypatch.setattr(source, "slabs", lambda each: [slice(0, rows - 1), slice(rows - 1, rows)])
    store, _ = fitted(source, tmp_path / "layers", make_recipe("int4", method="gptq"))
    expected = store.packed(name)
    with DataWriter(tmp_path / "data") as data:
        recipe = make_recipe("int4")
        weights = WeightStore(source, recipe, data, OnnxGraph(), fitted=store.packed)
        weights.projection(name)
    written = (tmp_path / "data").read_bytes()
    assert written.startswith(expected.codes.tobytes())


def test_layers_behind_see_scales_as_they_are_stored(golden, source_weights, tmp_path):
    source = source_weights(golden("llama"))
    stores = {
        kind: fitted(source, tmp_path / kind, make_recipe("int4", method="gptq", scales=kind))[0]
        for kind in ("fp32", "fp16")
    }
    first, last = (f"model.layers.{layer}.mlp.down_proj.weight" for layer in (0, 1))
    whole, halves = (stores[kind].packed(first).scales for kind in ("fp32", "fp16"))
    np.testing.assert_array_equal(halves, halves.astype(np.float16))
    assert 0 < np.abs(halves - whole).max() <= 2.0**-11 * np.abs(whole).max()
    whole, halves = (stores[kind].packed(last).scales for kind in ("fp32", "fp16"))
    assert not np.array_equal(halves, whole.astype(np.float16))  # fitted to other inputs


def test_too_little_text_is_used_and_mentioned(golden, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a house. " * 30, encoding="utf-8")
    options = ExportOptions(calibration=CalibrationOptions((text,), windows=500, tokens=32))
    (warning,) = export(golden("llama").folder, tmp_path / "out", options).warnings
    assert "of the 500 windows" in warning


def test_the_recipe_that_calibration_leaves_alone_is_the_one_it_was(golden, source_weights):
    recipe = make_recipe("int4")
    same = with_methods(recipe, source_weights(golden("llama")), calibrates=False)
    assert same == replace(recipe)


def test_costs_are_of_all_but_what_documents_begin_with(golden, source_weights, tmp_path):
    source = source_weights(golden("llama"))
    ids = np.random.default_rng(0).integers(2, source.spec.vocab_size, (2, 16))
    ids[:, [0, 5, 15]] = 1
    text = CalibrationText((), ids[:0], (Sample("text", ids, 100, begins=(1,)),))
    store = FittedLayers(tmp_path, {})
    (cost,) = layers.LayerFitter(source, make_recipe("int8"), text, store, 1).run()
    nats = 0.0
    for window in ids:
        rows = forward(source.spec, source, window).astype(np.float64)[:-1]
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
        chosen = rows[np.arange(15), window[1:]]
        nats -= chosen[window[1:] != 1].sum()
    assert cost.tokens == 2 * 13
    assert cost.source_nats == pytest.approx(nats, rel=1e-5)
    assert cost.nats == pytest.approx(nats, rel=0.05)
